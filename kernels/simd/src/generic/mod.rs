//! The algorithms, once: generic over the vectors ([`crate::simd::Simd`]) and the weight format
//! ([`crate::formats`]). Everything here is `#[inline(always)]` and carries no target feature;
//! `dispatch` instantiates the outermost functions, which do.

pub mod attention;
pub mod batch;
pub mod elementwise;
pub mod float_rows;
pub mod gemm;
pub mod gemv;
pub mod int16;
pub mod int8;
pub mod logits;
pub mod probe;
pub mod recurrence;
pub mod routing;
