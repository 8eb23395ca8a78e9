//! Fast CPU kernels.
