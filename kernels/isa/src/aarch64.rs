//! Kernels of 64-bit Arm.

use octavo_simd::aarch64::neon::{MixedDot, Neon, SignedDot, Widening};

use crate::dispatch::instantiate;

// two strips of six tokens are 24 of the 32 registers; weights and tokens take the others
instantiate!(neon, Neon<Widening>, floats 6, queries [8, 4, 2, 1], prompts 6,
    features ["neon"]);
instantiate!(dotprod, Neon<SignedDot>, extends neon, prompts 6,
    features ["neon", "dotprod"]);
instantiate!(i8mm, Neon<MixedDot>, extends neon, prompts 6,
    features ["neon", "dotprod", "i8mm"]);
