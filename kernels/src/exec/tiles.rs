//! Sizes of inputs of products that are arranged in tiles, also by expert.

use crate::matrix::Matrix;
use crate::program::Slot;

/// Tokens of the widest tile, at least.
pub(super) const MAX_TILE: usize = 16;

/// Floats of all tiles, if an input takes `each`. Each expert's rows begin with a tile of their
/// own, and so does each run of them: one more for each expert of a row, at most.
pub(super) fn tile_floats(rows: usize, used: usize, experts: usize, each: usize) -> usize {
    let choices = rows * used;
    (choices + (experts.min(choices) + used) * MAX_TILE) * each
}

/// Inputs of products that are arranged by the experts which `ids` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByExpert {
    pub(super) ids: Slot,
    experts: usize,
    /// Floats of an expert's input in tiles.
    each: usize,
}

impl ByExpert {
    pub(super) fn new(ids: Slot, matrix: &Matrix) -> ByExpert {
        ByExpert {
            ids,
            experts: matrix.experts(),
            each: matrix.tile_floats(),
        }
    }

    /// Floats that they take in tiles, for `rows` rows with `used` experts each.
    pub(super) fn tile_floats(self, used: usize, rows: usize) -> usize {
        tile_floats(rows, used, self.experts, self.each)
    }
}
