//! Conversion of scores to weights, as integers.

use super::packing::pair;
use super::{
    LARGEST, LEAST_WEIGHT, Parts, SPAN, TOTAL, VisibleRange, largest_score, weights_below,
};
use crate::simd::Simd;

/// Rows whose weights are computed together, interleaved. One row's steps wait for each other, from
/// its largest score to its smallest scale; those of several rows do not.
pub(super) const ABREAST: usize = 4;

impl Parts {
    /// Turns the scores of rows from `row` on into integer weights. For each row: the visible part
    /// of the span, and the largest score and the sum of weights so far.
    ///
    /// # Safety
    /// The scores of what they see and the scales of values are there; they are at most
    /// [`ABREAST`] rows.
    #[inline(always)]
    pub(super) unsafe fn weigh<S: Simd, const WINOGRAD: bool>(
        &self,
        row: usize,
        visible: &[VisibleRange],
        cap: Option<f32>,
        states: &mut [(f32, f32)],
    ) {
        let is_whole = |visible: &VisibleRange| visible.first == 0 && visible.end == SPAN;
        // SAFETY: passed on.
        unsafe {
            match <&mut [_; ABREAST]>::try_from(&mut *states) {
                // almost all: constants known to the compiler cost no comparisons
                Ok(states) if visible.iter().all(is_whole) => {
                    let whole = VisibleRange {
                        first: 0,
                        end: SPAN,
                    };
                    self.weigh_rows::<S, WINOGRAD, true>(row, &[whole; ABREAST], cap, states);
                }
                _ => self.weigh_rows::<S, WINOGRAD, false>(row, visible, cap, states),
            }
        }
    }

    /// # Safety
    /// As [`Parts::weigh`].
    #[inline(always)]
    unsafe fn weigh_rows<S: Simd, const WINOGRAD: bool, const WHOLE: bool>(
        &self,
        row: usize,
        visible: &[VisibleRange],
        cap: Option<f32>,
        states: &mut [(f32, f32)],
    ) {
        let mut tops = [0f32; ABREAST];
        let mut sums = [(0f32, 0f32); ABREAST];
        let mut inverses = [0f32; ABREAST];
        let n = visible.len().min(states.len()).min(ABREAST);
        // SAFETY: the caller's promise; a row has whole vectors of scores.
        unsafe {
            for r in 0..n {
                if !visible[r].is_empty() {
                    tops[r] = largest_score::<S, WHOLE>(
                        self.scores(row + r),
                        cap,
                        visible[r],
                        states[r].0,
                    );
                }
            }
            for r in 0..n {
                let mut correction = 1.0;
                if !visible[r].is_empty() {
                    let (p, end) = (self.scores(row + r), visible[r].end.next_multiple_of(S::R));
                    correction =
                        weights_below::<S, WHOLE>(p, tops[r], visible[r], end, &mut states[r]);
                }
                self.corrections.add(row + r).write(correction);
            }
            for r in 0..n {
                sums[r] = self.scale_weights::<S, WHOLE>(row + r, visible[r]);
            }
            for r in 0..n {
                inverses[r] = self.scale_of_integers(row + r, sums[r]);
            }
            for (r, inverse) in inverses[..n].iter().enumerate() {
                self.integers_of_weights::<S, WINOGRAD>(row + r, *inverse);
            }
        }
    }

    /// The scores of a row in the span.
    ///
    /// # Safety
    /// They are there, and no other thread uses them.
    #[inline(always)]
    unsafe fn scores<'a>(self, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.scores.add(row * SPAN), SPAN) }
    }

    /// Multiplies weights by the scales of values; zero where nothing is seen, whatever values are
    /// there. Returns the largest product and the sum.
    ///
    /// # Safety
    /// As [`Parts::weigh`].
    #[inline(always)]
    unsafe fn scale_weights<S: Simd, const WHOLE: bool>(
        &self,
        row: usize,
        visible: VisibleRange,
    ) -> (f32, f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let p = self.scores(row);
            if visible.is_empty() {
                p.fill(0.0);
                return (0.0, 0.0);
            }
            let (mut largest, mut total) = (S::zero(), S::zero());
            let end = visible.end.next_multiple_of(S::R);
            for i in (visible.first / S::R * S::R..end).step_by(S::R) {
                let of_values = S::load(self.v_scales.add(i));
                let v = S::mul(S::load(p.as_ptr().add(i)), of_values);
                let v = visible.choose::<S, WHOLE>(i, v, S::zero());
                S::store(p.as_mut_ptr().add(i), v);
                largest = S::max(largest, v);
                total = S::add(total, v);
            }
            p[end..].fill(0.0);
            (S::largest(largest), S::sum(total))
        }
    }

    /// Stores the scale of a row's integers, and returns the factor that converts its weights to
    /// integers.
    ///
    /// # Safety
    /// The scratch has the row.
    #[inline(always)]
    unsafe fn scale_of_integers(&self, row: usize, (largest, total): (f32, f32)) -> f32 {
        let (mut of_weights, mut inverse) = (0.0, 0.0);
        if !total.is_finite() {
            of_weights = f32::NAN;
        } else if largest >= LEAST_WEIGHT {
            // the largest weight is a whole number, and so are all weights where all are equal:
            // their errors would add up
            let whole = LARGEST.min(TOTAL * (largest / total)) as i32 as f32;
            inverse = whole / largest;
            of_weights = largest / whole;
        }
        // SAFETY: the caller's promise.
        unsafe { self.w_scales.add(row).write(of_weights) };
        inverse
    }

    /// Weights times `inverse`, as integers, and the sum of products of their pairs.
    ///
    /// # Safety
    /// As [`Parts::weigh`].
    #[inline(always)]
    unsafe fn integers_of_weights<S: Simd, const WINOGRAD: bool>(&self, row: usize, inverse: f32) {
        // SAFETY: the caller's promise; a row has whole vectors of weights.
        unsafe {
            let p = self.scores.add(row * SPAN).cast_const();
            let to = self.weights.add(row * SPAN / 2);
            let inverse = S::set1(inverse);
            let mut products = S::iset1(0);
            for group in 0..SPAN / (4 * S::R) {
                let mut words = [S::iset1(0); 2];
                for (half, word) in words.iter_mut().enumerate() {
                    let at = p.add((4 * group + 2 * half) * S::R);
                    let low = S::to_i(S::mul(S::load(at), inverse));
                    let high = S::to_i(S::mul(S::load(at.add(S::R)), inverse));
                    *word = pair::<S>(low, high);
                }
                let to = to.add(2 * group * S::R);
                S::store_bytes(to.cast(), words[0]);
                S::store_bytes(to.add(S::R).cast(), words[1]);
                if WINOGRAD {
                    products = S::dot2(products, words[0], words[1]);
                }
            }
            if WINOGRAD {
                let mut lanes = [0i32; 16];
                S::store_bytes(lanes.as_mut_ptr().cast(), products);
                let sum = lanes.into_iter().fold(0, i32::wrapping_add);
                self.w_products.add(row).write(sum);
            }
        }
    }
}
