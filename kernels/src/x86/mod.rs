//! x86-64 vectors: bit tricks only; the algorithms are in `generic`.
pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;

pub(crate) use crate::simd::ops;
