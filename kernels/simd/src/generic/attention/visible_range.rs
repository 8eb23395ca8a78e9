//! Ranges of positions that query rows attend to.

use crate::simd::Simd;

/// Positions that a row sees: from the first one up to `end`, which is beyond the last.
#[derive(Clone, Copy)]
pub struct VisibleRange {
    pub first: usize,
    pub end: usize,
}

impl VisibleRange {
    /// The range that covers all positions that any of some rows sees.
    pub fn of_all(rows: impl Iterator<Item = VisibleRange> + Clone) -> VisibleRange {
        VisibleRange {
            first: rows.clone().map(|visible| visible.first).min().unwrap_or(0),
            end: rows.map(|visible| visible.end).max().unwrap_or(0),
        }
    }

    /// The visible ones among `len` positions from `at` on, counted from there; empty ranges may
    /// begin past their end.
    #[inline(always)]
    pub fn in_span(self, at: usize, len: usize) -> VisibleRange {
        VisibleRange {
            first: self.first.saturating_sub(at).min(len),
            end: self.end.saturating_sub(at).min(len),
        }
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// A vector of `v` where positions from `i` on are seen (everywhere if it is `WHOLE`), and of
    /// `other` elsewhere.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`.
    #[inline(always)]
    pub unsafe fn choose<S: Simd, const WHOLE: bool>(self, i: usize, v: S::F, other: S::F) -> S::F {
        // almost all vectors are entirely visible
        if WHOLE || self.first <= i && i + S::R <= self.end {
            return v;
        }
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            let v = S::first(self.end.saturating_sub(i), v, other);
            S::first(self.first.saturating_sub(i), other, v)
        }
    }
}
