//! x86-64 vectors: bit tricks only; the algorithms are in `generic`.
pub mod avx2;
pub mod avx512;
mod doubles;

use crate::simd::ops;

/// The `vpdpwssd` instruction of a vector type, in registers of a class, as inline assembly. The
/// compiler splits the intrinsic into a product and an addition where that shortens a chain in its
/// model, which costs a third of the time of prompts on a Zen 4 with AVX-512, and made AVX-VNNI
/// slower than AVX2.
macro_rules! multiply_add_at_once {
    ($vector:ty, $class:ident, $instruction:literal, $($feature:literal),+) => {
        /// Adds both products of every lane's 16-bit halves.
        #[inline]
        $(#[target_feature(enable = $feature)])+
        fn multiply_add_at_once(mut acc: $vector, a: $vector, b: $vector) -> $vector {
            // SAFETY: registers in, registers out.
            unsafe {
                std::arch::asm!(
                    concat!($instruction, " {acc}, {a}, {b}"),
                    acc = inout($class) acc,
                    a = in($class) a,
                    b = in($class) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            acc
        }
    };
}
use multiply_add_at_once;

/// Defines `now` for a vector type, in registers of a class: an empty piece of inline assembly,
/// which the compiler moves past no other one.
macro_rules! now {
    ($vector:ty, $class:ident, $feature:literal) => {
        /// Returns the same vector, which is in a register at this place of the program.
        #[inline]
        #[target_feature(enable = $feature)]
        fn now(mut v: $vector) -> $vector {
            if cfg!(miri) {
                return v; // it cannot run assembly
            }
            // SAFETY: no instruction at all; not `pure`, so that the order of several is kept.
            unsafe {
                std::arch::asm!(
                    "/* {0} */",
                    inout($class) v,
                    options(nomem, nostack, preserves_flags),
                );
            }
            v
        }
    };
}
use now;
