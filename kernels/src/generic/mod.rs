//! The algorithms, once: generic over the vectors ([`crate::simd::Simd`]) and the weight format
//! ([`crate::formats`]). Everything here is `#[inline(always)]` and carries no target feature;
//! `dispatch` instantiates the outermost functions, which do.

pub(crate) mod attention;
pub(crate) mod batch;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod gemv;
pub(crate) mod int16;
pub(crate) mod int8;
pub(crate) mod probe;
pub(crate) mod recurrence;
pub(crate) mod routing;
