//! Limits of an executor: its largest step, and its KV cache.

/// Sizes of the largest step and of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens per step.
    pub rows: usize,
    /// Tokens with outputs per step.
    pub outputs: usize,
    /// Sequences per step.
    pub sequences: usize,
    /// Positions per sequence.
    pub positions: usize,
    /// Pages in the KV cache.
    pub n_pages: usize,
    /// Recurrent state slots; programs without states need none.
    pub states: usize,
}

impl Limits {
    /// Returns the pages of the longest sequence.
    pub(super) fn max_pages(&self) -> usize {
        self.positions.div_ceil(crate::PAGE_POSITIONS)
    }

    /// Returns the number of positions in RoPE and other tables: a multiple of the page size.
    pub(super) fn table_positions(&self) -> usize {
        self.max_pages() * crate::PAGE_POSITIONS
    }
}
