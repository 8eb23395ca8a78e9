//! Rows of plain numbers that do not lie in the file as GGUF has them.

use std::ops::Range;

use gguf_rs_lite::{Error, RowSource, SharedFile};
use half::{bf16, f16};

/// The order in which GGUF keeps the rows of LLaMA's queries and keys: in Hugging Face's, the two
/// halves of a head turn together, in GGUF's, neighbours do.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadOrder {
    /// Rows of a head; even.
    pub(super) head_dim: usize,
}

impl HeadOrder {
    /// The row of the file that is row `row` of the tensor.
    pub(super) fn source(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        head * self.head_dim + at % 2 * (self.head_dim / 2) + at / 2
    }

    /// The row of the tensor that is row `row` of the file.
    pub(super) fn target(self, row: usize) -> usize {
        let (head, at) = (row / self.head_dim, row % self.head_dim);
        let half = self.head_dim / 2;
        head * self.head_dim + 2 * (at % half) + at / half
    }
}

/// What a plain tensor's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    F32,
    F16,
    Bf16,
}

impl Plain {
    pub(super) fn bytes(self) -> usize {
        if self == Plain::F32 { 4 } else { 2 }
    }
}

/// Rows in another order, of the same numbers.
pub(super) struct Reordered {
    pub(super) file: SharedFile,
    pub(super) range: Range<usize>,
    pub(super) row_bytes: usize,
    pub(super) order: HeadOrder,
}

impl RowSource for Reordered {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = &self.file.bytes()[self.range.clone()];
        for (row, out) in (first as usize..).zip(out.chunks_exact_mut(self.row_bytes)) {
            let at = self.order.source(row) * self.row_bytes;
            out.copy_from_slice(&from[at..at + self.row_bytes]);
        }
    }

    fn release(&self) {
        self.file.release(self.range.clone());
    }

    fn check(&self) -> Result<(), Error> {
        self.file.check()
    }
}

/// A vector as F32: norms and biases, which GGUF keeps so.
pub(super) struct Widened {
    pub(super) file: SharedFile,
    pub(super) range: Range<usize>,
    pub(super) plain: Plain,
    pub(super) order: Option<HeadOrder>,
}

impl RowSource for Widened {
    fn fill(&self, _: u64, out: &mut [u8]) {
        let from = &self.file.bytes()[self.range.clone()];
        let n = self.plain.bytes();
        for (i, out) in out.chunks_exact_mut(4).enumerate() {
            let at = self.order.map_or(i, |order| order.source(i)) * n;
            let v = &from[at..at + n];
            let wide = match self.plain {
                Plain::F32 => f32::from_le_bytes([v[0], v[1], v[2], v[3]]),
                Plain::F16 => f16::from_le_bytes([v[0], v[1]]).to_f32(),
                Plain::Bf16 => bf16::from_le_bytes([v[0], v[1]]).to_f32(),
            };
            out.copy_from_slice(&wide.to_le_bytes());
        }
    }
}

/// Numbers made here.
pub(super) struct Computed(pub(super) Vec<f32>);

impl RowSource for Computed {
    fn fill(&self, _: u64, out: &mut [u8]) {
        for (out, v) in out.chunks_exact_mut(4).zip(&self.0) {
            out.copy_from_slice(&v.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_ordered_as_llama_cpp_converts_them() {
        // reshape(n_head, 2, head_dim / 2).swapaxes(1, 2): of two heads of 6 rows
        let order = HeadOrder { head_dim: 6 };
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert!((0..12).all(|row| order.target(order.source(row)) == row));
    }
}
