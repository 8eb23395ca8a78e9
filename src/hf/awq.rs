//! AWQ weights as rows of 4-bit blocks.
//!
//! A checkpoint has, input features first, `qweight` (in, out / 8) and `qzeros` (in / group, out / 8) with eight output
//! features in a word, and `scales` (in / group, out). Kernels read rows of one output feature.

use std::ops::Range;

use gguf_rs_lite::{RowSource, SharedFile, TensorType};
use octavo_quant::awq;

use super::rows::HeadOrder;

/// Rows that are made together, so that words which they share are read once.
const TOGETHER: usize = 32;

/// A part of a file.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) file: SharedFile,
    pub(super) range: Range<usize>,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    fn word(&self, at: usize) -> u32 {
        let b = &self.bytes()[4 * at..4 * at + 4];
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }
}

/// One weight.
pub(super) struct Awq {
    pub(super) qweight: Part,
    /// Without it every zero point is 8.
    pub(super) qzeros: Option<Part>,
    pub(super) scales: Part,
    /// Input features; a multiple of `group`, which is one of the block.
    pub(super) cols: usize,
    /// Output features; a multiple of 8.
    pub(super) rows: usize,
    /// Weights of a row that share a scale.
    pub(super) group: usize,
    pub(super) ty: TensorType,
    pub(super) order: Option<HeadOrder>,
}

/// The type of blocks for groups of so many weights: the largest that divides them.
pub(super) fn block_type(group: usize) -> Option<TensorType> {
    TensorType::AWQ.into_iter().rev().find(|ty| group.is_multiple_of(ty.block_len()))
}

impl Awq {
    /// The codes of some source rows, `[rows.len()][cols]`.
    fn codes(&self, rows: &[usize]) -> Vec<u8> {
        let mut codes = vec![0; rows.len() * self.cols];
        let mut columns: Vec<usize> = rows.iter().map(|row| row / 8).collect();
        columns.sort_unstable();
        columns.dedup();
        for column in columns {
            let of: Vec<(usize, usize)> = rows
                .iter()
                .enumerate()
                .filter(|r| r.1 / 8 == column)
                .map(|(i, row)| (i * self.cols, row % 8))
                .collect();
            for k in 0..self.cols {
                let eight = awq::unpack(self.qweight.word(k * (self.rows / 8) + column));
                for (at, feature) in &of {
                    codes[at + k] = eight[*feature];
                }
            }
        }
        codes
    }

    fn zero(&self, group: usize, row: usize) -> u8 {
        let Some(qzeros) = &self.qzeros else { return 8 };
        awq::unpack(qzeros.word(group * (self.rows / 8) + row / 8))[row % 8]
    }

    fn scale(&self, group: usize, row: usize) -> u16 {
        let at = 2 * (group * self.rows + row);
        let b = &self.scales.bytes()[at..at + 2];
        u16::from_le_bytes([b[0], b[1]])
    }
}

impl RowSource for Awq {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let (len, bytes) = (self.ty.block_len(), self.ty.block_bytes());
        let row_bytes = self.cols / len * bytes;
        let n = out.len() / row_bytes;
        let all: Vec<usize> =
            (first as usize..first as usize + n).map(|row| self.order.map_or(row, |o| o.source(row))).collect();
        for (rows, out) in all.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER * row_bytes)) {
            let codes = self.codes(rows);
            let by_row = rows.iter().zip(codes.chunks_exact(self.cols)).zip(out.chunks_exact_mut(row_bytes));
            for ((&row, codes), out) in by_row {
                for (i, (codes, block)) in codes.chunks_exact(len).zip(out.chunks_exact_mut(bytes)).enumerate() {
                    let group = i * len / self.group;
                    awq::block(self.scale(group, row), self.zero(group, row), codes, block);
                }
            }
        }
    }

    fn release(&self) {
        for part in [&self.qweight, &self.scales].into_iter().chain(&self.qzeros) {
            part.file.release(part.range.clone());
        }
    }
}
