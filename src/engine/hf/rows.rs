//! Rows of plain numbers that do not lie in the file as GGUF has them.

use gguf_rs_lite::{Error, RowSource};
use half::{bf16, f16};

use super::awq::Part;
use super::types::Cut;

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

/// Which row of the folder's tensors becomes which row of GGUF's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// The same.
    Same,
    /// Heads whose halves turn together become heads whose neighbours do.
    Heads(HeadOrder),
    /// Of every so many rows, those from one on in steps.
    Cut {
        /// Rows before.
        of: usize,
        /// Rows that are left.
        take: usize,
        start: usize,
        step: usize,
    },
    /// Falcon's queries, keys and values: for each key head its queries, itself and its value
    /// become all queries, all keys and all values.
    Groups {
        /// Query heads of a key head.
        queries: usize,
        /// Key heads.
        groups: usize,
        head_dim: usize,
    },
}

impl Order {
    /// The order of the rows that a cut leaves, of so many before it.
    pub(super) fn cut(cut: Cut, of: usize) -> Order {
        let take = of / 2;
        let (start, step) = match cut {
            Cut::FirstHalf => (0, 1),
            Cut::SecondHalf => (take, 1),
            Cut::Even => (0, 2),
            Cut::Odd => (1, 2),
        };
        Order::Cut {
            of,
            take,
            start,
            step,
        }
    }

    /// The row of the file that is row `row` of the tensor.
    pub(super) fn source(self, row: usize) -> usize {
        match self {
            Order::Same => row,
            Order::Heads(heads) => heads.source(row),
            Order::Cut {
                of,
                take,
                start,
                step,
            } => row / take * of + start + row % take * step,
            Order::Groups {
                queries,
                groups,
                head_dim,
            } => {
                let (head, at) = (row / head_dim, row % head_dim);
                let source = match head.checked_sub(queries * groups) {
                    None => head / queries * (queries + 2) + head % queries,
                    Some(other) => {
                        let (value, group) = (other / groups, other % groups);
                        group * (queries + 2) + queries + value
                    }
                };
                source * head_dim + at
            }
        }
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

/// Rows in another order, of the same numbers, from tensors of one shape that stand one behind the
/// other.
pub(super) struct Reordered {
    pub(super) parts: Vec<Part>,
    /// Rows of each.
    pub(super) part_rows: usize,
    pub(super) row_bytes: usize,
    pub(super) order: Order,
}

impl RowSource for Reordered {
    fn fill(&self, first: u64, out: &mut [u8]) {
        for (row, out) in (first as usize..).zip(out.chunks_exact_mut(self.row_bytes)) {
            let source = self.order.source(row);
            let from = self.parts[source / self.part_rows].bytes();
            let at = source % self.part_rows * self.row_bytes;
            out.copy_from_slice(&from[at..at + self.row_bytes]);
        }
    }

    fn release(&self) {
        self.parts.iter().for_each(Part::release);
    }

    fn check(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.file.check())
    }
}

/// Matrices of all experts whose rows are the columns of the file's.
pub(super) struct Transposed {
    pub(super) part: Part,
    /// Bytes of a number.
    pub(super) bytes: usize,
    /// Rows of a matrix in the file, and its columns.
    pub(super) shape: [usize; 2],
    /// Which columns become rows.
    pub(super) order: Order,
}

impl RowSource for Transposed {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = self.part.bytes();
        let [rows, cols] = self.shape;
        for (row, out) in (first as usize..).zip(out.chunks_exact_mut(rows * self.bytes)) {
            let source = self.order.source(row);
            let first = source / cols * rows * cols + source % cols;
            for (k, out) in out.chunks_exact_mut(self.bytes).enumerate() {
                let at = (first + k * cols) * self.bytes;
                out.copy_from_slice(&from[at..at + self.bytes]);
            }
        }
    }

    fn release(&self) {
        self.part.release();
    }

    fn check(&self) -> Result<(), Error> {
        self.part.file.check()
    }
}

/// MXFP4 blocks, whose codes and scales are tensors of their own in the file. There neighbours
/// share a byte, in GGUF values at a distance of 16.
pub(super) struct Mxfp4 {
    pub(super) blocks: Part,
    pub(super) scales: Part,
    /// Blocks of a row.
    pub(super) row_blocks: usize,
    pub(super) order: Order,
}

impl RowSource for Mxfp4 {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let (codes, scales) = (self.blocks.bytes().as_chunks::<16>().0, self.scales.bytes());
        for (row, out) in (first as usize..).zip(out.chunks_exact_mut(17 * self.row_blocks)) {
            let at = self.order.source(row) * self.row_blocks;
            for (i, out) in (at..).zip(out.as_chunks_mut::<17>().0) {
                let value = |k: usize| codes[i][k / 2] >> (k % 2 * 4) & 15;
                out[0] = scales[i];
                for (j, out) in out[1..].iter_mut().enumerate() {
                    *out = value(j) | value(j + 16) << 4;
                }
            }
        }
    }

    fn release(&self) {
        self.blocks.release();
        self.scales.release();
    }

    fn check(&self) -> Result<(), Error> {
        self.blocks.file.check()?;
        self.scales.file.check()
    }
}

/// A vector as F32: norms and biases, which GGUF keeps so.
pub(super) struct Widened {
    pub(super) part: Part,
    pub(super) plain: Plain,
    pub(super) order: Order,
    /// Values of a row.
    pub(super) row_len: usize,
    /// What is added to each.
    pub(super) plus: f32,
}

impl RowSource for Widened {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = self.part.bytes();
        let n = self.plain.bytes();
        for (i, out) in (first as usize * self.row_len..).zip(out.chunks_exact_mut(4)) {
            let at = self.order.source(i) * n;
            let v = &from[at..at + n];
            let wide = match self.plain {
                Plain::F32 => f32::from_le_bytes([v[0], v[1], v[2], v[3]]),
                Plain::F16 => f16::from_le_bytes([v[0], v[1]]).to_f32(),
                Plain::Bf16 => bf16::from_le_bytes([v[0], v[1]]).to_f32(),
            };
            // adding 0 would take the sign off -0
            let value = if self.plus == 0.0 {
                wide
            } else {
                wide + self.plus
            };
            out.copy_from_slice(&value.to_le_bytes());
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
