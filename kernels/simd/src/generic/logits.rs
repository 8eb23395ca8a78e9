//! A row of logits in f64, as long as a vocabulary: the largest and the sum of exponentials of each
//! block. Every result has the same bits on every instruction set: sums have eight lanes and one
//! order.

use crate::doubles::{Doubles, LANES, bounded, exp};

/// Values of a block: a multiple of the lanes.
pub const BLOCK: usize = 256;

/// An element type of stored logits.
pub trait Logit: Copy {
    const LEAST: Self;
    /// Reads eight.
    ///
    /// # Safety
    /// There are eight at `p`, and the CPU has the instruction set.
    unsafe fn load<S: Doubles>(p: *const Self) -> S::D;
}

impl Logit for f32 {
    const LEAST: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    unsafe fn load<S: Doubles>(p: *const f32) -> S::D {
        // SAFETY: as the caller's.
        unsafe { S::dwiden(p) }
    }
}

impl Logit for f64 {
    const LEAST: f64 = f64::NEG_INFINITY;
    #[inline(always)]
    unsafe fn load<S: Doubles>(p: *const f64) -> S::D {
        // SAFETY: as the caller's.
        unsafe { S::dload(p) }
    }
}

/// Reads up to eight values; negative infinity takes the place of those behind the last.
///
/// # Safety
/// There are `n` at `p`, and the CPU has the instruction set.
#[inline(always)]
unsafe fn load_part<S: Doubles, T: Logit>(p: *const T, n: usize) -> S::D {
    // SAFETY: as the caller's.
    unsafe { load_part_or::<S, T>(p, n, T::LEAST) }
}

/// Reads up to eight values; `other` takes the place of those behind the last.
///
/// # Safety
/// There are `n` at `p`, and the CPU has the instruction set.
#[inline(always)]
unsafe fn load_part_or<S: Doubles, T: Logit>(p: *const T, n: usize, other: T) -> S::D {
    // SAFETY: as the caller's; `lanes` has eight.
    unsafe {
        if n >= LANES {
            return T::load::<S>(p);
        }
        let mut lanes = [other; LANES];
        p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n);
        T::load::<S>(lanes.as_ptr())
    }
}

/// Writes up to eight values.
///
/// # Safety
/// There is room for `n` at `p`, and the CPU has the instruction set.
#[inline(always)]
unsafe fn store_part<S: Doubles>(p: *mut f64, v: S::D, n: usize) {
    // SAFETY: as the caller's; `lanes` has eight.
    unsafe {
        if n >= LANES {
            return S::dstore(p, v);
        }
        let mut lanes = [0.0; LANES];
        S::dstore(lanes.as_mut_ptr(), v);
        p.copy_from_nonoverlapping(lanes.as_ptr(), n);
    }
}

/// Lanes of a vector.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
unsafe fn lanes<S: Doubles>(v: S::D) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array has eight.
    unsafe { S::dstore(lanes.as_mut_ptr(), v) };
    lanes
}

/// Sum of the lanes, in one order.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
unsafe fn sum<S: Doubles>(v: S::D) -> f64 {
    // SAFETY: as the caller's.
    let v = unsafe { lanes::<S>(v) };
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

/// Largest lane.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
unsafe fn largest<S: Doubles>(v: S::D) -> f64 {
    // SAFETY: as the caller's.
    let v = unsafe { lanes::<S>(v) };
    let max = |a: f64, b: f64| if a > b { a } else { b };
    v.into_iter().fold(f64::NEG_INFINITY, max)
}

/// Copies `n` values as f64, negative zeros as zeros, and writes the largest of each block. Returns
/// whether all are finite; the maxima are only right if so.
///
/// # Safety
/// `x` and `y` are `n` values, `maxima` is one for each [`BLOCK`] or part of one.
#[inline(always)]
pub unsafe fn widen<S: Doubles>(x: *const f32, n: usize, y: *mut f64, maxima: *mut f64) -> bool {
    // SAFETY: all indices are below n, and blocks below their number.
    unsafe {
        // products with 0 are 0, or NaN where the value is not finite
        let mut zeros = S::dset1(0.0);
        for (block, first) in (0..n).step_by(BLOCK).enumerate() {
            let mut most = S::dset1(f64::NEG_INFINITY);
            for i in (first..n.min(first + BLOCK)).step_by(LANES) {
                let v = load_part_or::<S, f32>(x.add(i), n - i, x.add(i).read());
                let v = S::dadd(v, S::dset1(0.0));
                zeros = S::dadd(zeros, S::dmul(v, S::dset1(0.0)));
                store_part::<S>(y.add(i), v, n - i);
                most = S::dmax(most, v);
            }
            maxima.add(block).write(largest::<S>(most));
        }
        sum::<S>(zeros) == 0.0
    }
}

/// Writes the largest of each block of `n` values, of which none is NaN.
///
/// # Safety
/// `x` is `n` values, `maxima` is one for each [`BLOCK`] or part of one.
#[inline(always)]
pub unsafe fn maxima<S: Doubles>(x: *const f64, n: usize, maxima: *mut f64) {
    // SAFETY: all indices are below n, and blocks below their number.
    unsafe {
        for (block, first) in (0..n).step_by(BLOCK).enumerate() {
            let mut most = S::dset1(f64::NEG_INFINITY);
            for i in (first..n.min(first + BLOCK)).step_by(LANES) {
                most = S::dmax(most, load_part::<S, f64>(x.add(i), n - i));
            }
            maxima.add(block).write(largest::<S>(most));
        }
    }
}

/// Writes two sums of each block of `n` values, with `d` a value less `max`: of `e^d`, and of
/// `d e^d`. No value is above `max`, and none is NaN.
///
/// # Safety
/// `x` is `n` values, `sums` is one for each [`BLOCK`] or part of one.
#[inline(always)]
pub unsafe fn exp_sums<S: Doubles, T: Logit>(x: *const T, n: usize, max: f64, sums: *mut [f64; 2]) {
    // SAFETY: all indices are below n, and blocks below their number.
    unsafe {
        for (block, first) in (0..n).step_by(BLOCK).enumerate() {
            let mut powers = S::dset1(0.0);
            let mut products = S::dset1(0.0);
            for i in (first..n.min(first + BLOCK)).step_by(LANES) {
                let d = S::dsub(load_part::<S, T>(x.add(i), n - i), S::dset1(max));
                let d = bounded::<S>(d);
                let power = exp::<S>(d);
                powers = S::dadd(powers, power);
                products = S::dadd(products, S::dmul(d, power));
            }
            sums.add(block)
                .write([sum::<S>(powers), sum::<S>(products)]);
        }
    }
}

/// Writes `e^(x - max)` for `n` values. No value is above `max`, and none is NaN.
///
/// # Safety
/// `x` and `y` are `n` values; `y` may be `x`.
#[inline(always)]
pub unsafe fn exps<S: Doubles>(x: *const f64, n: usize, max: f64, y: *mut f64) {
    // SAFETY: all indices are below n.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let d = S::dsub(load_part::<S, f64>(x.add(i), n - i), S::dset1(max));
            store_part::<S>(y.add(i), exp::<S>(bounded::<S>(d)), n - i);
        }
    }
}
