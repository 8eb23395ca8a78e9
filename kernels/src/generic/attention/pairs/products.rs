//! Products of queries and keys, weights of scores, and products of weights and values.

use super::packing::pair;
use super::{LARGEST, LEAST_WEIGHT, MOST_GROUPS, Parts, SPAN, Seen, TOTAL, weights};
use crate::generic::pairs::dots::{
    NEIGHBOURS, Rows, Twos, add_by_winograd, add_dots, winograd_rows,
};
use crate::simd::Simd;

impl Parts {
    /// Scores of `W` rows from `row` on, of two vectors of positions.
    ///
    /// # Safety
    /// Queries and keys are packed.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
    pub(super) unsafe fn score<S: Simd, const W: usize, const WINOGRAD: bool>(
        &self,
        row: usize,
        vectors: usize,
    ) {
        let d = self.d;
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [[S::iset1(0); W]; 2];
            let at: [usize; 2] = [vectors * S::R, (vectors + 1) * S::R];
            let panels = at.map(
                #[inline(always)]
                |at| self.k.add(at * d / 2).cast_const(),
            );
            let queries = Rows {
                at: self.q.add(row * d / 2),
                row: d / 2,
                pair: 1,
            };
            if WINOGRAD {
                for s in 0..2 {
                    let keys = S::load_bytes(self.k_products.add(at[s]).cast());
                    for j in 0..winograd_rows(W) {
                        let query = S::iset1(self.q_products.add(row + j).read());
                        dots[s][j] = S::iadd(keys, query);
                    }
                }
                add_by_winograd::<S, 2, W>(&mut dots, panels, queries, NEIGHBOURS, d / 4);
            } else {
                add_dots::<S, 2, W>(&mut dots, panels, queries, d / 2);
            }
            for s in 0..2 {
                let of_keys = S::load(self.k_scales.add(at[s]));
                for j in 0..W {
                    let of_query = S::set1(self.q_scales.add(row + j).read());
                    let score = S::mul(S::mul(S::to_f(dots[s][j]), of_keys), of_query);
                    S::store(self.scores.add((row + j) * SPAN + at[s]), score);
                }
            }
        }
    }

    /// Scores of row `r` to weights, as integers.
    ///
    /// # Safety
    /// The scores of what it sees and the scales of values are there.
    #[inline(always)]
    pub(super) unsafe fn weigh<S: Simd, const WINOGRAD: bool>(
        &self,
        r: usize,
        seen: Seen,
        cap: Option<f32>,
        state: &mut (f32, f32),
    ) {
        // SAFETY: the caller's promise; a row has whole vectors of scores and of weights.
        unsafe {
            let to = self.weights.add(r * SPAN / 2);
            let p = std::slice::from_raw_parts_mut(self.scores.add(r * SPAN), SPAN);
            let (mut correction, mut of_weights, mut inverse) = (1.0, 0.0, 0.0);
            if !seen.is_empty() {
                let end = seen.end.next_multiple_of(S::R);
                correction = weights::<S>(p, cap, seen, end, state);
                let (mut largest, mut total) = (S::zero(), S::zero());
                let from = seen.first / S::R * S::R;
                for i in (from..end).step_by(S::R) {
                    let of_values = S::load(self.v_scales.add(i));
                    let v = S::mul(S::load(p.as_ptr().add(i)), of_values);
                    // where nothing is seen, values may be anything
                    let v = seen.choose::<S>(i, v, S::zero());
                    S::store(p.as_mut_ptr().add(i), v);
                    largest = S::max(largest, v);
                    total = S::add(total, v);
                }
                p[end..].fill(0.0);
                let total = S::sum(total);
                let largest = S::largest(largest);
                if !total.is_finite() {
                    of_weights = f32::NAN;
                } else if largest >= LEAST_WEIGHT {
                    // the largest weight is a whole number, and so are all where all are equal:
                    // their errors would add up
                    let whole = LARGEST.min(TOTAL * (largest / total)) as i32 as f32;
                    inverse = whole / largest;
                    of_weights = largest / whole;
                }
            } else {
                p.fill(0.0);
            }
            self.corrections.add(r).write(correction);
            self.w_scales.add(r).write(of_weights);
            let inverse = S::set1(inverse);
            let mut products = S::iset1(0);
            for group in 0..SPAN / (4 * S::R) {
                let mut words = [S::iset1(0); 2];
                for (half, word) in words.iter_mut().enumerate() {
                    let at = p.as_ptr().add((4 * group + 2 * half) * S::R);
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
                self.w_products.add(r).write(sum);
            }
        }
    }

    /// Adds weights times values to the sums of `W` rows from `row` on, `MS` vectors of values from
    /// `first` on, of the positions that any of the rows sees.
    ///
    /// # Safety
    /// Weights and values are packed.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
    pub(super) unsafe fn add_values<
        S: Simd,
        const MS: usize,
        const W: usize,
        const WINOGRAD: bool,
    >(
        &self,
        row: usize,
        first: usize,
        seen: Seen,
    ) {
        let of_group = 2 * S::R;
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [[S::iset1(0); W]; MS];
            if WINOGRAD {
                // weights are zero in groups that are left out
                for j in 0..winograd_rows(W) {
                    let weights = S::iset1(self.w_products.add(row + j).read());
                    for s in 0..MS {
                        dots[s][j] = weights;
                    }
                }
            }
            for group in seen.first / (4 * S::R)..seen.end.div_ceil(4 * S::R) {
                let panels: [*const f32; MS] = std::array::from_fn(
                    #[inline(always)]
                    |s| {
                        let vector = self.v.add((first + s * S::R) * SPAN / 2);
                        vector.add(group * of_group * S::R).cast_const()
                    },
                );
                let weights = Rows {
                    at: self.weights.add(row * SPAN / 2 + group * of_group),
                    row: SPAN / 2,
                    pair: 1,
                };
                if WINOGRAD {
                    for s in 0..MS {
                        let at = (first + s * S::R) * MOST_GROUPS + group * S::R;
                        let values = S::load_bytes(self.v_products.add(at).cast());
                        for j in 0..winograd_rows(W) {
                            dots[s][j] = S::iadd(dots[s][j], values);
                        }
                    }
                    let twos = Twos {
                        apart: S::R,
                        next: 1,
                    };
                    add_by_winograd::<S, MS, W>(&mut dots, panels, weights, twos, S::R);
                } else {
                    add_dots::<S, MS, W>(&mut dots, panels, weights, of_group);
                }
            }
            for j in 0..W {
                let correction = S::set1(self.corrections.add(row + j).read());
                let scale = S::set1(self.w_scales.add(row + j).read());
                for s in 0..MS {
                    let sums = self.sums.add((row + j) * self.d + first + s * S::R);
                    let so_far = S::mul(S::load(sums), correction);
                    S::store(sums, S::fma(S::to_f(dots[s][j]), scale, so_far));
                }
            }
        }
    }
}
