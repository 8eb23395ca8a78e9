//! Vectors, packed weight formats, and the algorithms of the kernels on CPUs, each of which is
//! written once: generic over the vectors and the format.
//!
//! Nothing here carries a target feature. `octavo-isa` compiles the algorithms for each instruction
//! set, and fills the [tables](table::Table) of them.
#![allow(unsafe_code)]
#![allow(
    missing_docs,
    reason = "operations of vectors and fields of kernels' tables say it all"
)]

#[cfg(target_arch = "aarch64")]
pub mod aarch64;
pub mod act;
pub mod doubles;
pub mod formats;
pub mod function;
pub mod generic;
pub mod kv_layout;
pub mod pack;
pub mod portable;
pub mod prefetch;
pub mod simd;
pub mod table;
#[cfg(target_arch = "x86_64")]
pub mod x86;
