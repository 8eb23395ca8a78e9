//! Sizes of a step, or of a part of it.

use crate::program::Phase;

/// Sizes that a step's buffers need.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) phase: Phase,
    pub(super) rows: usize,
    /// Rows with outputs.
    pub(super) outputs: usize,
    /// Pieces that attention of generated tokens is cut into, at most.
    pub(super) pieces: usize,
    /// The whole step that these rows are part of.
    pub(super) step: WholeExtent,
}

/// A step, of which an [`Extent`] is all or some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeExtent {
    pub(super) rows: usize,
    /// Rows with outputs.
    pub(super) outputs: usize,
    /// Number of rows before those of the extent.
    pub(super) before: usize,
    /// Number of rows with outputs before those of the extent.
    pub(super) outputs_before: usize,
}

impl Extent {
    /// Whether the step has other rows than these.
    pub(super) fn is_part(&self) -> bool {
        self.rows < self.step.rows
    }

    pub(super) fn most_rows(&self) -> usize {
        self.rows.max(self.outputs)
    }
}
