//! 64-bit Arm vectors: bit tricks only; the algorithms are in `generic`.
mod doubles;
pub mod neon;
