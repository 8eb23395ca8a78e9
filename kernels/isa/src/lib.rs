//! The kernels of every instruction set: `octavo-simd`'s algorithms, compiled once for each, in
//! tables by operation and weight format.
//!
//! This is most of what a build compiles, and does nothing else: code that is changed often is in
//! `octavo-kernels`, which runs these tables.
#![allow(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("weights are used as they lie in the file: little-endian");

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod dispatch;
mod isa;
mod portable;
mod prompt_bits;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::{Isa, IsaChoice, IsaError, Rounding};
pub use prompt_bits::PromptBits;
