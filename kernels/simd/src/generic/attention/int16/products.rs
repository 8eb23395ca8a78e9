//! Products of queries and keys, and of weights and values.

use super::{MAX_GROUPS, Parts, SPAN, VisibleRange};
use crate::generic::int16::dots::{
    NEIGHBOURS, Rows, Twos, add_by_winograd, add_dots, winograd_rows,
};
use crate::simd::Simd;

impl Parts {
    /// Computes scores of `W` rows from `row` on, of two vectors of positions.
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
        visible: VisibleRange,
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
            for group in visible.first / (4 * S::R)..visible.end.div_ceil(4 * S::R) {
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
                        let at = (first + s * S::R) * MAX_GROUPS + group * S::R;
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
