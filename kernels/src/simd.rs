//! The few vector operations the generic kernels use, and their portable form.
//!
//! A vector holds `R` f32 or i32 lanes; `R` is also the number of weight rows that a packed strip
//! interleaves. Integer vectors double as `4 R` bytes: lane `r` holds four consecutive codes of row
//! `r`.
//!
//! # Safety of every operation
//! Each is `unsafe` for one reason: the outermost kernel, which alone carries `#[target_feature]`,
//! guarantees that the CPU has the instruction set, and whoever passes a pointer guarantees that
//! the stated number of elements behind it is readable (or writable). Nothing needs alignment.

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
    /// Writes `R` IEEE half floats, rounded to nearest, ties to even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
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
    /// Writes `4 R` bytes.
    unsafe fn store_bytes(p: *mut u8, v: Self::I);
    /// Reads `R` bytes, widened without sign.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Reads `R` bytes, widened with sign.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    unsafe fn iset1(x: i32) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// Subtracts 16-bit halves of lanes.
    unsafe fn sub16(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Every byte, below 16, replaced by that entry of the table.
    unsafe fn lookup(a: Self::I, table: &[u8; 16]) -> Self::I;
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
    /// Adds to every lane the products of its two 16-bit halves with the two halves of `x`.
    unsafe fn dot2(acc: Self::I, w: Self::I, x: *const i32) -> Self::I;
    /// Four 16-bit activations in the form `dot4` reads.
    fn act4(x: [i16; 4]) -> Act4;
    unsafe fn prefetch(p: *const u8);
}

/// Stamps trait operations whose bodies are intrinsics. The one SAFETY text for all of them is
/// inside.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        #[allow(unused_unsafe)] // not every body has an intrinsic that needs it
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            // SAFETY: the outermost kernel carries the target features, its caller has checked the
            // CPU, and pointers cover what `Simd` says (head of simd.rs).
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
    unsafe fn store_f16(p: *mut u16, v: F8) {
        // SAFETY: the caller has 8 writable u16 at `p`.
        unsafe {
            p.cast::<[u16; 8]>()
                .write_unaligned(v.0.map(|x| half::f16::from_f32(x).to_bits()))
        }
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
        v.0.into_iter()
            .fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> I8 {
        // SAFETY: the caller has 32 readable bytes at `p`.
        let w = unsafe { p.cast::<[[u8; 4]; 8]>().read_unaligned() };
        lanes!(I8, |i| i32::from_le_bytes(w[i]))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: I8) {
        // SAFETY: the caller has 32 writable bytes at `p`.
        unsafe {
            p.cast::<[[u8; 4]; 8]>()
                .write_unaligned(v.0.map(i32::to_le_bytes))
        }
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
    unsafe fn sub16(a: I8, b: I8) -> I8 {
        lanes!(I8, |i| {
            let (low, high) = (
                (a.0[i] as i16).wrapping_sub(b.0[i] as i16),
                (a.0[i] >> 16) - (b.0[i] >> 16),
            );
            (i32::from(low) & 0xffff) | high << 16
        })
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
    unsafe fn lookup(a: I8, table: &[u8; 16]) -> I8 {
        lanes!(I8, |i| i32::from_le_bytes(
            a.0[i].to_le_bytes().map(|b| table[usize::from(b & 15)])
        ))
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
    unsafe fn dot2(acc: I8, w: I8, x: *const i32) -> I8 {
        // SAFETY: the caller has one readable word at `x`.
        let x = unsafe { x.read_unaligned() };
        lanes!(I8, |i| {
            let (low, high) = (i32::from(w.0[i] as i16), w.0[i] >> 16);
            acc.0[i]
                .wrapping_add(low * i32::from(x as i16))
                .wrapping_add(high * (x >> 16))
        })
    }
    #[inline(always)]
    fn act4(x: [i16; 4]) -> Act4 {
        Act4::from_i16(x)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}

/// Exact, and short enough to vectorise: shifts the exponent into place and lets one multiply do
/// the rest.
#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let body = u32::from(h & 0x7fff);
    // finite halves, subnormal ones too: the bits scaled by 2^112
    let finite = f32::from_bits(body << 13) * f32::from_bits(0x7780_0000);
    let special = 0x7f80_0000 | (body << 13);
    let bits = if body >= 0x7c00 {
        special
    } else {
        finite.to_bits()
    };
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
        for c in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = S::fma(p, r, S::set1(c));
        }
        let p = S::add(S::fma(S::mul(r, r), p, r), S::set1(1.0));
        S::mul(p, S::bits_f(S::shl(S::iadd(n, S::iset1(127)), 23)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "aarch64")]
    use crate::aarch64::neon;
    use crate::isa::Isa;
    use std::collections::BTreeMap;

    #[test]
    fn every_half_float_converts_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#x}"
            );
        }
    }

    /// What `S` makes of 16 lanes, by operation; `x` holds numbers that halves can come near.
    fn results<S: Simd>(
        a: &[i32; 16],
        b: &[i32; 16],
        x: &[f32; 16],
    ) -> BTreeMap<&'static str, [i32; 16]> {
        let mut all = BTreeMap::new();
        let table = std::array::from_fn(|i| (a[i] >> 9) as u8);
        let act = S::act4([b[0], b[1], b[2], b[3]].map(|b| (b % 32_640) as i16));
        for at in (0..16).step_by(S::R) {
            // SAFETY: the caller asks only for what this CPU has; every pointer has R elements
            // behind it.
            unsafe {
                let mut is = |name, v: S::I| {
                    let y: &mut [i32; 16] = all.entry(name).or_insert([0; 16]);
                    S::store_bytes(y[at..].as_mut_ptr().cast(), v);
                };
                let bytes = a.as_ptr().cast::<u8>().add(at);
                let (v, w) = (
                    S::load_bytes(a[at..].as_ptr().cast()),
                    S::load_bytes(b[at..].as_ptr().cast()),
                );
                let f = S::load(x[at..].as_ptr());
                is("load_u8", S::load_u8(bytes));
                is("load_i8", S::load_i8(bytes));
                is("iadd", S::iadd(v, w));
                is("isub", S::isub(v, w));
                is("sub16", S::sub16(v, w));
                is("and, or", S::or(S::and(v, w), S::iset1(b[1] & 0xff)));
                is(
                    "lookup",
                    S::lookup(S::and(v, S::iset1(0x0f0f_0f0f)), &table),
                );
                for (n, name) in [
                    (0, "shift by 0"),
                    (4, "shift by 4"),
                    (23, "shift by 23"),
                    (31, "shift by 31"),
                ] {
                    is(name, S::isub(S::shr(v, n), S::shl(v, n)));
                }
                is("dot2", S::dot2(v, w, &b[5]));
                is(
                    "dot4",
                    S::acc_sum(S::dot4(S::dot4(S::acc_zero(), v, &act), w, &act)),
                );
                let small = S::iset1(0x7f7f_7f7f);
                let acc = S::dot4_small(S::dot4(S::acc_zero(), v, &act), S::and(w, small), &act);
                is("dot4_small", S::acc_sum(acc));
                is("to_i", S::to_i(f));
                let mut half = [0u16; 16];
                S::store_f16(half.as_mut_ptr(), f);
                let back = |v: S::F| {
                    let mut y = [0f32; 16];
                    S::store(y.as_mut_ptr(), v);
                    S::load_bytes(y.as_ptr().cast())
                };
                is("store_f16, load_f16", back(S::load_f16(half.as_ptr())));
                is(
                    "load_bf16",
                    back(S::load_bf16(a.as_ptr().cast::<u16>().add(at))),
                );
                is("to_f", back(S::to_f(v)));
                is("bits_f", back(S::bits_f(v)));
                is(
                    "min, max",
                    back(S::max(S::set1(-3.0), S::min(f, S::set1(2.5)))),
                );
                is(
                    "first",
                    back(S::first(5usize.saturating_sub(at), f, S::zero())),
                );
                is(
                    "add to div",
                    back(S::div(S::sub(S::add(f, f), S::set1(1.0)), S::mul(f, f))),
                );
            }
        }
        all
    }

    fn agrees<S: Simd>(isa: Isa) {
        let mut bits = 1u32;
        let mut random = || {
            bits = bits.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
            bits as i32
        };
        for turn in 0..500 {
            let (a, b): ([i32; 16], [i32; 16]) = (
                std::array::from_fn(|_| random()),
                std::array::from_fn(|_| random()),
            );
            // at first halves, between which integers and, above 1024, f16 must choose
            let x = std::array::from_fn(|_| match turn {
                0..100 => (random() % 4001) as f32 * 0.5,
                _ => (random() >> 8) as f32 * 0.000_123,
            });
            let expected = results::<Portable>(&a, &b, &x);
            for (name, got) in results::<S>(&a, &b, &x) {
                assert_eq!(
                    got, expected[name],
                    "{isa}: {name} of {a:x?}, {b:x?}, {x:?}"
                );
            }
        }
    }

    #[test]
    fn every_instruction_set_does_what_the_portable_form_does() {
        for isa in Isa::available() {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => agrees::<crate::x86::avx2::Avx2<false>>(isa),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => agrees::<crate::x86::avx2::Avx2<true>>(isa),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => agrees::<crate::x86::avx512::Avx512>(isa),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => agrees::<neon::Neon<neon::Widening>>(isa),
                #[cfg(target_arch = "aarch64")]
                Isa::NeonDot => agrees::<neon::Neon<neon::SignedDot>>(isa),
                #[cfg(target_arch = "aarch64")]
                Isa::NeonI8mm => agrees::<neon::Neon<neon::MixedDot>>(isa),
                _ => {} // portable vectors, or others' (AMX)
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let mut x = -87.0f32;
        while x < 88.0 {
            // SAFETY: the portable vectors need no instruction set; the pointers are to local
            // arrays.
            let y = unsafe {
                let mut y = [0.0; 8];
                Portable::store(y.as_mut_ptr(), exp::<Portable>(Portable::set1(x)));
                y[3]
            };
            let exact = f64::from(x).exp();
            assert!(
                (f64::from(y) - exact).abs() <= 2.0 * exact * f64::from(f32::EPSILON),
                "{x}: {y} {exact}"
            );
            x += 0.013;
        }
    }
}
