//! Queries, and pages of keys and values, as pairs of 16-bit integers.

use super::{LARGEST, LENGTH, MAX_GROUPS, MAX_HEAD_DIM, PAGE, Parts, SPAN, Stored};
use crate::simd::Simd;

/// Packs two 16-bit integers in every lane, the lower halves of both vectors' lanes.
#[inline(always)]
pub(super) unsafe fn pair<S: Simd>(low: S::I, high: S::I) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::or(S::and(low, S::iset1(0xffff)), S::shl(high, 16)) }
}

/// Range of values, lane by lane.
#[derive(Clone, Copy)]
struct Extent<S: Simd> {
    squares: S::F,
    largest: S::F,
    lowest: S::F,
}

impl<S: Simd> Extent<S> {
    /// The range of no values.
    #[inline(always)]
    unsafe fn none() -> Self {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            Extent {
                squares: S::zero(),
                largest: S::zero(),
                lowest: S::zero(),
            }
        }
    }

    /// The range with one more value in every lane.
    #[inline(always)]
    unsafe fn with(self, v: S::F) -> Self {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            Extent {
                squares: S::fma(v, v, self.squares),
                largest: S::max(self.largest, v),
                lowest: S::min(self.lowest, v),
            }
        }
    }

    /// The largest magnitude in every lane.
    #[inline(always)]
    unsafe fn magnitude(self) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::max(self.largest, S::sub(S::zero(), self.lowest)) }
    }
}

/// Least sum of squares; smaller ones are too small for f32.
const LEAST_SQUARES: f32 = 1e-36;

/// The scale of the integers of a vector of `d` values, from their sum of squares and largest
/// magnitude. A value that is not finite makes it NaN, so that it reaches the logits.
#[inline(always)]
fn scale(squares: f32, largest: f32, d: usize) -> f32 {
    let length = if (LEAST_SQUARES..f32::INFINITY).contains(&squares) {
        squares.sqrt()
    } else {
        largest * (d as f32).sqrt()
    };
    if squares.is_nan() || !length.is_finite() {
        return f32::NAN;
    }
    (length / LENGTH).max(largest / LARGEST)
}

/// The same from the sum of squares alone: no value is larger than the vector's length. If that is
/// too small for f32, all count as zeros, and if too large, as not finite.
#[inline(always)]
fn scale_of_length(squares: f32) -> f32 {
    if !squares.is_finite() {
        f32::NAN
    } else if squares < LEAST_SQUARES {
        0.0
    } else {
        squares.sqrt() / LARGEST
    }
}

/// Factor that converts values of a scale to integers: zero where it underflows, or is NaN.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale >= f32::MIN_POSITIVE {
        1.0 / scale
    } else {
        0.0
    }
}

impl Parts {
    /// Converts query `r` to integers.
    ///
    /// # Safety
    /// `q` is `d` floats, `r` is below [`ROWS`].
    #[inline(always)]
    pub(super) unsafe fn pack_query<S: Simd, const WINOGRAD: bool>(
        &self,
        r: usize,
        q: *const f32,
        by: f32,
    ) {
        let d = self.d;
        // SAFETY: the caller's promise; there are as many integers as values.
        unsafe {
            let mut extent = Extent::<S>::none();
            let by = S::set1(by);
            for i in (0..d).step_by(S::R) {
                extent = extent.with(S::mul(S::load(q.add(i)), by));
            }
            let largest = S::largest(extent.magnitude());
            let scale = scale(S::sum(extent.squares), largest, d);
            let inverse = inverse(scale);
            let mut integers = [0i32; MAX_HEAD_DIM];
            for i in (0..d).step_by(S::R) {
                let v = S::mul(S::mul(S::load(q.add(i)), by), S::set1(inverse));
                S::store_bytes(integers.as_mut_ptr().add(i).cast(), S::to_i(v));
            }
            let integers = &integers[..d];
            for (i, pair) in integers.chunks_exact(2).enumerate() {
                let word = (pair[0] & 0xffff) | pair[1] << 16;
                self.q.add(r * d / 2 + i).write(word);
            }
            self.q_scales.add(r).write(scale);
            if WINOGRAD {
                let mut products = 0i32;
                for two in integers.chunks_exact(4) {
                    products = products.wrapping_add(two[0] * two[2] + two[1] * two[3]);
                }
                self.q_products.add(r).write(products);
            }
        }
    }

    /// Converts the keys of page `p` of a span to integers.
    ///
    /// # Safety
    /// `k` is the page.
    #[inline(always)]
    pub(super) unsafe fn pack_keys<S: Simd, E: Stored, const WINOGRAD: bool>(
        &self,
        k: *const u8,
        p: usize,
    ) {
        let d = self.d;
        for first in (0..PAGE).step_by(S::R) {
            // SAFETY: the caller's promise; there is a vector of positions for each pair of values.
            unsafe {
                let mut extent = Extent::<S>::none();
                for i in 0..d {
                    extent = extent.with(self.keys::<S, E>(k, i, first));
                }
                let (mut squares, mut largest) = ([0f32; 16], [0f32; 16]);
                S::store(squares.as_mut_ptr(), extent.squares);
                S::store(largest.as_mut_ptr(), extent.magnitude());
                let (mut scales, mut inverses) = ([0f32; 16], [0f32; 16]);
                for i in 0..S::R {
                    scales[i] = scale(squares[i], largest[i], d);
                    inverses[i] = inverse(scales[i]);
                }
                let at = p * PAGE + first;
                S::store(self.k_scales.add(at), S::load(scales.as_ptr()));
                let inverse = S::load(inverses.as_ptr());
                let mut products = S::iset1(0);
                let to = self.k.add(at * d / 2);
                for two in 0..d / 4 {
                    let mut words = [S::iset1(0); 2];
                    for (half, word) in words.iter_mut().enumerate() {
                        let i = 4 * two + 2 * half;
                        let low = S::mul(self.keys::<S, E>(k, i, first), inverse);
                        let high = S::mul(self.keys::<S, E>(k, i + 1, first), inverse);
                        *word = pair::<S>(S::to_i(low), S::to_i(high));
                    }
                    S::store_bytes(to.add(2 * two * S::R).cast(), words[0]);
                    S::store_bytes(to.add((2 * two + 1) * S::R).cast(), words[1]);
                    if WINOGRAD {
                        products = S::dot2(products, words[0], words[1]);
                    }
                }
                if WINOGRAD {
                    S::store_bytes(self.k_products.add(at).cast(), products);
                }
            }
        }
    }

    /// Element `i` of the keys of a page from position `first` on, times their scales.
    ///
    /// # Safety
    /// `k` is the page.
    #[inline(always)]
    unsafe fn keys<S: Simd, E: Stored>(&self, k: *const u8, i: usize, first: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let lines = E::lines::<S>(k, self.d, i, first);
            E::stands_for::<S>(E::keys::<S>(k, i, first), lines)
        }
    }

    /// Elements from `i` on of the value at position `at` of a page, times its scale.
    ///
    /// # Safety
    /// `v` is the page.
    #[inline(always)]
    unsafe fn values<S: Simd, E: Stored>(&self, v: *const u8, at: usize, i: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let values = E::values::<S>(v, self.d, at, i);
            if E::GROUP.is_none() {
                return values;
            }
            let first = at / S::R * S::R;
            let lines = E::lines::<S>(v, self.d, i, first);
            let mut line = lines;
            for (line, lines) in line.iter_mut().zip(lines) {
                let mut all = [0f32; 16];
                S::store(all.as_mut_ptr(), lines);
                *line = S::set1(all[at - first]);
            }
            E::stands_for::<S>(values, line)
        }
    }

    /// Scales of the values of page `p` of a span: zero where there is no page.
    ///
    /// # Safety
    /// `v` is the page.
    #[inline(always)]
    pub(super) unsafe fn scale_values<S: Simd, E: Stored>(&self, v: Option<*const u8>, p: usize) {
        for at in 0..PAGE {
            // SAFETY: the caller's promise.
            unsafe {
                let mut of_position = 0.0;
                if let Some(v) = v {
                    let mut squares = S::zero();
                    for i in (0..self.d).step_by(S::R) {
                        let values = self.values::<S, E>(v, at, i);
                        squares = S::fma(values, values, squares);
                    }
                    of_position = scale_of_length(S::sum(squares));
                }
                self.v_scales.add(p * PAGE + at).write(of_position);
                let inverse = inverse(of_position);
                self.v_inverses.add(p * PAGE + at).write(inverse);
            }
        }
    }

    /// Converts the values of a group of `4 R` positions to integers.
    ///
    /// # Safety
    /// `page` has the pages of the span, and their scales are there.
    #[inline(always)]
    pub(super) unsafe fn pack_values<S: Simd, E: Stored, const WINOGRAD: bool>(
        &self,
        page: impl Fn(usize) -> Option<*const u8>,
        group: usize,
    ) {
        let first = group * 4 * S::R;
        for i in (0..self.d).step_by(S::R) {
            // SAFETY: the caller's promise; there is a vector of values for each pair of positions.
            unsafe {
                let mut products = S::iset1(0);
                let to = self.v.add(i * SPAN / 2 + first / 2 * S::R);
                for lane in 0..S::R {
                    let mut integers = [S::iset1(0); 4];
                    for (part, integers) in integers.iter_mut().enumerate() {
                        let at = first + part * S::R + lane;
                        if let Some(v) = page(at / PAGE) {
                            let values = self.values::<S, E>(v, at % PAGE, i);
                            let inverse = S::set1(self.v_inverses.add(at).read());
                            *integers = S::to_i(S::mul(values, inverse));
                        }
                    }
                    let [a, b, c, d] = integers;
                    let words = [pair::<S>(a, b), pair::<S>(c, d)];
                    S::store_bytes(to.add(lane * S::R).cast(), words[0]);
                    S::store_bytes(to.add((S::R + lane) * S::R).cast(), words[1]);
                    if WINOGRAD {
                        products = S::dot2(products, words[0], words[1]);
                    }
                }
                if WINOGRAD {
                    let to = self.v_products.add(i * MAX_GROUPS + group * S::R);
                    S::store_bytes(to.cast(), products);
                }
            }
        }
    }
}
