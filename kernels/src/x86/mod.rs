//! x86-64 vectors: bit tricks only; the algorithms are in `generic`.
pub(crate) mod amx;
pub(crate) mod amx_attention;
pub(crate) mod avx2;
pub(crate) mod avx512;

/// Stamps trait operations whose bodies are intrinsics. The one SAFETY text for all of them is inside.
macro_rules! ops {
    ($($name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // not every body has an intrinsic that needs it
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            // SAFETY: the outermost kernel carries the target features, its caller has checked the CPU, and pointers
            // cover what `Simd` says (head of simd.rs).
            unsafe { $body }
        }
    )*};
}
pub(crate) use ops;
