//! Query rows, and what they see and compute.

use super::softmax::in_span;
use super::{Pages, SPAN_POSITIONS, Slope, VisibleRange};

/// Query rows against a run of pages.
pub struct QueryRows<'a> {
    pub pages: Pages<'a>,
    /// Scaled query values, of every `NQ` rows `[head_dim][NQ]`.
    pub q: *const f32,
    /// Positions that each row sees; those before `first` are not read. A multiple of `NQ` rows, at
    /// most [`QUERY_ROWS`](super::QUERY_ROWS).
    pub visible: &'a [VisibleRange],
    /// Positions that each row sees, in ascending order; all that are visible, if there are no
    /// rows.
    pub chosen: &'a [&'a [f32]],
    /// See `Scores::cap`.
    pub cap: Option<f32>,
    /// Distances that lower the scores of each row; none, if empty.
    pub slopes: &'a [Slope],
    /// First position of the run; a multiple of [`SPAN_POSITIONS`].
    pub first: usize,
    /// Room for the scores of a span, `[rows][SPAN_POSITIONS]`.
    pub scores: *mut f32,
    /// Weighted sums, `[rows][head_dim rounded up to 16]`, not divided yet.
    pub out: *mut f32,
    /// Maximum and sum of the softmax so far, per row.
    pub state: &'a mut [(f32, f32)],
}

impl QueryRows<'_> {
    /// Positions that any of the `n` rows from `row` on sees.
    #[inline(always)]
    pub(super) fn visible_to(&self, row: usize, n: usize) -> VisibleRange {
        VisibleRange::of_all(self.visible[row..row + n].iter().copied())
    }

    /// Whether none of the rows sees any of the span that begins at a position.
    pub(super) fn passes_over(&self, at: usize) -> bool {
        let none = |chosen: &&[f32]| in_span(chosen, at).is_empty();
        !self.chosen.is_empty() && self.chosen.iter().all(none)
    }

    /// The scores, then weights, of a row.
    ///
    /// # Safety
    /// There is the row, and no other thread has its scores.
    #[inline(always)]
    pub(super) unsafe fn scores(&self, row: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.scores.add(row * SPAN_POSITIONS) }
    }
}
