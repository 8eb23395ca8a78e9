//! Kernels in portable Rust.

use octavo_simd::portable::Portable;

use crate::dispatch::instantiate;

instantiate!(scalar, Portable, floats 2, queries [2, 1], prompts 2,
    bytes 2);
