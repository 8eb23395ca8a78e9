//! Eight f64 at a time, with the same bits on every instruction set: always eight lanes, and no
//! fused operation, which a CPU without the instruction would need a slow library call for.
//!
//! # Safety of every operation
//! As in [`crate::simd`].

use crate::portable::Portable;

/// Lanes of a vector of f64.
pub const LANES: usize = 8;

#[allow(clippy::missing_safety_doc)] // as `Simd`
pub trait Doubles: Copy {
    /// Eight f64, in as many registers as they take.
    type D: Copy;

    unsafe fn dset1(x: f64) -> Self::D;
    /// Reads eight f64.
    unsafe fn dload(p: *const f64) -> Self::D;
    /// Reads eight f32, widened.
    unsafe fn dwiden(p: *const f32) -> Self::D;
    /// Writes eight f64.
    unsafe fn dstore(p: *mut f64, v: Self::D);
    unsafe fn dadd(a: Self::D, b: Self::D) -> Self::D;
    unsafe fn dsub(a: Self::D, b: Self::D) -> Self::D;
    unsafe fn dmul(a: Self::D, b: Self::D) -> Self::D;
    /// Lane-wise maximum of numbers, of which none is NaN.
    unsafe fn dmax(a: Self::D, b: Self::D) -> Self::D;
    /// Moves the lowest 12 bits to where sign and exponent are; zeros follow.
    unsafe fn dexponent(v: Self::D) -> Self::D;
}

impl Doubles for Portable {
    type D = [f64; LANES];

    #[inline(always)]
    unsafe fn dset1(x: f64) -> [f64; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn dload(p: *const f64) -> [f64; LANES] {
        // SAFETY: the caller has 8 readable f64 at `p`.
        unsafe { p.cast::<[f64; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn dwiden(p: *const f32) -> [f64; LANES] {
        // SAFETY: the caller has 8 readable f32 at `p`.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }.map(f64::from)
    }
    #[inline(always)]
    unsafe fn dstore(p: *mut f64, v: [f64; LANES]) {
        // SAFETY: the caller has 8 writable f64 at `p`.
        unsafe { p.cast::<[f64; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn dadd(a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn dsub(a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn dmul(a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn dmax(a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn dexponent(v: [f64; LANES]) -> [f64; LANES] {
        v.map(|x| f64::from_bits(x.to_bits() << 52))
    }
}

/// Arguments from here down have the power 0: `2^n` is then 0 in [`exp`].
const LEAST: f64 = -709.09;

/// 1.5 * 2^52 and the bias of exponents: the sum of this and a number has the number, rounded to
/// nearest, ties to even, and biased, in its lowest bits.
const ROUND: f64 = 6_755_399_441_055_744.0 + 1023.0;

/// ln 2 in two parts, of which the first has so few bits that its products with exponents are
/// exact.
const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// Coefficients of a polynomial in r, highest first, that makes `1 + r + r^2 p(r)` equal to e^r for
/// r of at most ln 2 / 2 either way, to a relative error of 4e-18 (Remez's exchange).
const COEFFICIENTS: [f64; 10] = [
    2.500_006_160_283_566_6e-8,
    2.763_024_837_921_144e-7,
    2.755_758_637_384_016_5e-6,
    2.480_149_309_890_655e-5,
    1.984_126_950_657_868_8e-4,
    1.388_888_894_363_011_4e-3,
    8.333_333_333_494_461e-3,
    4.166_666_666_653_015_5e-2,
    1.666_666_666_666_641_3e-1,
    5.000_000_000_000_011e-1,
];

/// `x`, but at least as large as [`exp`] tells apart from negative infinity.
///
/// # Safety
/// As the head of this module says; no pointers here.
#[inline(always)]
pub unsafe fn bounded<S: Doubles>(x: S::D) -> S::D {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::dmax(x, S::dset1(LEAST)) }
}

/// `e^x` to 2 ulp, for [`bounded`] numbers that are not above 709. Powers below 2^-1022.5 are 0;
/// that of 0 is 1.
///
/// # Safety
/// As the head of this module says; no pointers here.
#[inline(always)]
pub unsafe fn exp<S: Doubles>(x: S::D) -> S::D {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let rounded = S::dadd(
            S::dmul(x, S::dset1(std::f64::consts::LOG2_E)),
            S::dset1(ROUND),
        );
        let n = S::dsub(rounded, S::dset1(ROUND));
        let r = S::dsub(x, S::dmul(n, S::dset1(LN_2[0])));
        let r = S::dsub(r, S::dmul(n, S::dset1(LN_2[1])));
        let mut p = S::dset1(COEFFICIENTS[0]);
        for c in &COEFFICIENTS[1..] {
            p = S::dadd(S::dmul(p, r), S::dset1(*c));
        }
        let less_one = S::dadd(S::dmul(S::dmul(r, r), p), r);
        S::dmul(S::dadd(less_one, S::dset1(1.0)), S::dexponent(rounded))
    }
}

/// As [`exp`], of one number that need not be bounded: the same bits as in a vector.
pub fn exp_of_one(x: f64) -> f64 {
    let x = if x > LEAST { x } else { LEAST };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let horner = |p: f64, c: &f64| p * r + c;
    let p = COEFFICIENTS[1..].iter().fold(COEFFICIENTS[0], horner);
    (r * r * p + r + 1.0) * f64::from_bits(rounded.to_bits() << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half an ulp each for the last sum and what is added in it, and room for the polynomial's
    /// roundings, which are a few ulp of at most 0.06.
    const BOUND: f64 = 1.5 * f64::EPSILON;

    #[test]
    fn powers_match_the_standard_library() {
        assert_eq!(exp_of_one(0.0), 1.0);
        assert_eq!(exp_of_one(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp_of_one(-1e9), 0.0);
        let near = |x: f64| {
            let (got, expected) = (exp_of_one(x), x.exp());
            let error = (got - expected).abs();
            assert!(
                error <= BOUND * expected + f64::MIN_POSITIVE,
                "{x}: {got}, expected {expected}"
            );
        };
        (0..2_000_000).for_each(|i| near(f64::from(i) * -0.000_361_3));
        (0..200_000).for_each(|i| near(f64::from(i) * 0.003_5));
        (0..1000).for_each(|i| near(-2f64.powi(-i)));
    }

    #[test]
    fn a_vector_has_the_bits_of_single_numbers() {
        for i in 0..100_000 {
            let x: [f64; LANES] =
                std::array::from_fn(|lane| -0.001_7 * f64::from(i) * (lane as f64 + 0.3));
            // SAFETY: portable operations, on values.
            let got = unsafe { exp::<Portable>(bounded::<Portable>(x)) };
            assert_eq!(got.map(f64::to_bits), x.map(|x| exp_of_one(x).to_bits()));
        }
    }
}
