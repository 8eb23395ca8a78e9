//! How rows of values are divided among ranks.

use std::ops::Range;

/// Division of rows of values among ranks: of each of `pieces` pieces, `width` values wide, a rank
/// has neighbouring values, in whole `grain`s but for the last one of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Number of pieces of a row.
    pub pieces: usize,
    /// Number of values of a piece.
    pub width: usize,
    /// Number of values that stay together.
    pub grain: usize,
}

impl Cut {
    /// Values of a piece that `rank` of `ranks` holds.
    pub fn of(self, rank: usize, ranks: usize) -> Range<usize> {
        let grains = self.grains();
        let at = |rank: usize| (grains * rank / ranks * self.grain).min(self.width);
        at(rank)..at(rank + 1)
    }

    /// Number of values that each rank holds, for `rows` rows.
    pub fn lens(self, rows: usize, ranks: usize) -> Vec<usize> {
        let parts = (0..ranks).map(|rank| self.of(rank, ranks));
        parts.map(|part| rows * self.pieces * part.len()).collect()
    }

    /// Number of grains to divide: with fewer of them than ranks, some ranks would have none.
    pub fn grains(self) -> usize {
        self.width.div_ceil(self.grain)
    }

    /// Whether the ranks' parts of `rows` rows, side by side, are the rows already.
    pub(crate) fn is_in_order(self, rows: usize) -> bool {
        rows * self.pieces == 1
    }
}
