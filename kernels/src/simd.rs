//! The few vector operations the generic kernels use, and their portable form.
//!
//! A vector holds `R` f32 or i32 lanes; `R` is also the number of weight rows that a packed strip interleaves.
//! Integer vectors double as `4 R` bytes: lane `r` holds four consecutive codes of row `r`.
//!
//! # Safety of every operation
//! Each is `unsafe` for one reason: the outermost kernel, which alone carries `#[target_feature]`, guarantees that the
//! CPU has the instruction set, and whoever passes a pointer guarantees that the stated number of elements behind it
//! is readable (or writable). Nothing needs alignment.

use crate::act::Act4;

#[allow(clippy::missing_safety_doc)] // one contract for all, stated at the head of this module
pub(crate) trait Simd: Copy {
    /// f32 lanes.
    const R: usize;
    /// `R` f32.
    type F: Copy;
    /// `R` i32, or `4 R` bytes.
    type I: Copy;
    /// Running integer dot products, one per lane.
    type Acc: Copy;

    unsafe fn zero() -> Self::F;
    unsafe fn set1(x: f32) -> Self::F;
    /// Reads `R` f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Writes `R` f32.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Reads `R` IEEE half floats.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Reads `R` bfloat16.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the CPU fuses.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lane-wise minimum; a NaN in `b` is kept.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Lane-wise maximum; a NaN in `b` is kept.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// Lanes below `n` of `a`, the others of `b`.
    unsafe fn first(n: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Sum of the lanes, in an order fixed for the instruction set.
    unsafe fn sum(v: Self::F) -> f32;
    /// Largest lane.
    unsafe fn largest(v: Self::F) -> f32;

    /// Reads `4 R` bytes.
    unsafe fn load_bytes(p: *const u8) -> Self::I;
    /// Reads `R` bytes, widened without sign.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Reads `R` bytes, widened with sign.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    unsafe fn iset1(x: i32) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shift of each 32-bit lane, `n < 32`.
    unsafe fn shr(a: Self::I, n: u32) -> Self::I;
    unsafe fn shl(a: Self::I, n: u32) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// Rounds to nearest, ties to even.
    unsafe fn to_i(a: Self::F) -> Self::I;
    /// The same bits as floats.
    unsafe fn bits_f(a: Self::I) -> Self::F;

    unsafe fn acc_zero() -> Self::Acc;
    /// Adds to every lane the dot product of its four unsigned codes with four activations.
    unsafe fn dot4(acc: Self::Acc, codes: Self::I, x: *const Act4) -> Self::Acc;
    /// As [`Simd::dot4`], for codes below 128, which a signed byte holds as well.
    #[inline(always)]
    unsafe fn dot4_small(acc: Self::Acc, codes: Self::I, x: *const Act4) -> Self::Acc {
        // SAFETY: the same contract.
        unsafe { Self::dot4(acc, codes, x) }
    }
    unsafe fn acc_sum(acc: Self::Acc) -> Self::I;
    /// Four 16-bit activations in the form `dot4` reads.
    fn act4(x: [i16; 4]) -> Act4;
    unsafe fn prefetch(p: *const u8);
}

/// Stamps trait operations whose bodies are intrinsics. The one SAFETY text for all of them is inside.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        #[allow(unused_unsafe)] // not every body has an intrinsic that needs it
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            // SAFETY: the outermost kernel carries the target features, its caller has checked the CPU, and pointers
            // cover what `Simd` says (head of simd.rs).
            unsafe { $body }
        }
    )*};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use ops;

/// Eight lanes in plain Rust: the path of every CPU without kernels of its own.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[derive(Clone, Copy)]
pub(crate) struct F8([f32; 8]);
#[derive(Clone, Copy)]
pub(crate) struct I8([i32; 8]);

macro_rules! lanes {
    ($t:ident, |$i:ident| $e:expr) => {
        $t(std::array::from_fn(
            #[inline(always)]
            |$i| $e,
        ))
    };
}

impl Simd for Portable {
    const R: usize = 8;
    type F = F8;
    type I = I8;
    type Acc = I8;

    #[inline(always)]
    unsafe fn zero() -> F8 {
        F8([0.0; 8])
    }
    #[inline(always)]
    unsafe fn set1(x: f32) -> F8 {
        F8([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F8 {
        // SAFETY: the caller has 8 readable f32 at `p`.
        F8(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F8) {
        // SAFETY: the caller has 8 writable f32 at `p`.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F8 {
        // SAFETY: the caller has 8 readable u16 at `p`.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        lanes!(F8, |i| f16_to_f32(h[i]))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F8 {
        // SAFETY: the caller has 8 readable u16 at `p`.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        lanes!(F8, |i| f32::from_bits(u32::from(h[i]) << 16))
    }
    #[inline(always)]
    unsafe fn add(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] + b.0[i])
    }
    #[inline(always)]
    unsafe fn sub(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] - b.0[i])
    }
    #[inline(always)]
    unsafe fn mul(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] * b.0[i])
    }
    #[inline(always)]
    unsafe fn div(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| a.0[i] / b.0[i])
    }
    // Not `mul_add`: without the instruction it is a library call a hundred times slower.
    #[inline(always)]
    unsafe fn fma(a: F8, b: F8, c: F8) -> F8 {
        lanes!(F8, |i| a.0[i] * b.0[i] + c.0[i])
    }
    #[inline(always)]
    unsafe fn min(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if a.0[i] < b.0[i] { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn max(a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn first(n: usize, a: F8, b: F8) -> F8 {
        lanes!(F8, |i| if i < n { a.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn sum(v: F8) -> f32 {
        let v = v.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn largest(v: F8) -> f32 {
        v.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> I8 {
        // SAFETY: the caller has 32 readable bytes at `p`.
        let w = unsafe { p.cast::<[[u8; 4]; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from_le_bytes(w[i]))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I8 {
        // SAFETY: the caller has 8 readable bytes at `p`.
        let b = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I8 {
        // SAFETY: the caller has 8 readable bytes at `p`.
        let b = unsafe { p.cast::<[i8; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from(b[i]))
    }
    #[inline(always)]
    unsafe fn iset1(x: i32) -> I8 {
        I8([x; 8])
    }
    #[inline(always)]
    unsafe fn iadd(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i].wrapping_add(b.0[i]))
    }
    #[inline(always)]
    unsafe fn isub(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i].wrapping_sub(b.0[i]))
    }
    #[inline(always)]
    unsafe fn and(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i] & b.0[i])
    }
    #[inline(always)]
    unsafe fn or(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| a.0[i] | b.0[i])
    }
    #[inline(always)]
    unsafe fn shr(a: I8, n: u32) -> I8 {
        lanes!(I8, |i| ((a.0[i] as u32) >> n) as i32)
    }
    #[inline(always)]
    unsafe fn shl(a: I8, n: u32) -> I8 {
        lanes!(I8, |i| a.0[i] << n)
    }
    #[inline(always)]
    unsafe fn to_f(a: I8) -> F8 {
        lanes!(F8, |i| a.0[i] as f32)
    }
    #[inline(always)]
    unsafe fn to_i(a: F8) -> I8 {
        // 1.5 * 2^23: adding it rounds to nearest even; every caller stays below 2^22 in magnitude
        const MAGIC: f32 = 12_582_912.0;
        lanes!(I8, |i| ((a.0[i] + MAGIC) - MAGIC) as i32)
    }
    #[inline(always)]
    unsafe fn bits_f(a: I8) -> F8 {
        lanes!(F8, |i| f32::from_bits(a.0[i] as u32))
    }
    #[inline(always)]
    unsafe fn acc_zero() -> I8 {
        I8([0; 8])
    }
    #[inline(always)]
    unsafe fn dot4(acc: I8, codes: I8, x: *const Act4) -> I8 {
        // SAFETY: the caller has one readable `Act4` at `x`.
        let x = unsafe { x.read() }.as_i16();
        lanes!(I8, |i| {
            let c = codes.0[i];
            acc.0[i]
                + (c & 255) * i32::from(x[0])
                + ((c >> 8) & 255) * i32::from(x[1])
                + ((c >> 16) & 255) * i32::from(x[2])
                + ((c >> 24) & 255) * i32::from(x[3])
        })
    }
    #[inline(always)]
    unsafe fn acc_sum(acc: I8) -> I8 {
        acc
    }
    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::from_i16(x)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

/// Exact, and short enough to vectorise: shifts the exponent into place and lets one multiply do the rest.
#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let body = u32::from(h & 0x7fff);
    // finite halves, subnormal ones too: the bits scaled by 2^112
    let finite = f32::from_bits(body << 13) * f32::from_bits(0x7780_0000);
    let special = 0x7f80_0000 | (body << 13);
    let bits = if body >= 0x7c00 { special } else { finite.to_bits() };
    f32::from_bits(sign | bits)
}

/// `e^x` to 2 ulp; arguments outside [-87.3, 88.3] are clamped; NaN stays NaN.
///
/// Cody-Waite reduction by ln 2 in two parts and the Cephes polynomial.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: see the head of this module; no pointers here.
    unsafe {
        let x = S::max(S::set1(-87.3), S::min(S::set1(88.3), x));
        let n = S::to_i(S::mul(x, S::set1(std::f32::consts::LOG2_E)));
        let f = S::to_f(n);
        let r = S::fma(f, S::set1(-0.693_359_4), x);
        let r = S::fma(f, S::set1(2.121_944_4e-4), r);
        let mut p = S::set1(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::set1(c));
        }
        let p = S::add(S::fma(S::mul(r, r), p, r), S::set1(1.0));
        S::mul(p, S::bits_f(S::shl(S::iadd(n, S::iset1(127)), 23)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_float_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let mut x = -87.0f32;
        while x < 88.0 {
            // SAFETY: the portable vectors need no instruction set; the pointers are to local arrays.
            let y = unsafe {
                let mut y = [0.0; 8];
                Portable::store(y.as_mut_ptr(), exp::<Portable>(Portable::set1(x)));
                y[3]
            };
            let exact = f64::from(x).exp();
            assert!((f64::from(y) - exact).abs() <= 2.0 * exact * f64::from(f32::EPSILON), "{x}: {y} {exact}");
            x += 0.013;
        }
    }
}
