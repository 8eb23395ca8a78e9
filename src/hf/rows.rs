//! Rows of plain numbers that are stored differently in the file than in GGUF.

use gguf_rs_lite::{Error, RowSource, TensorType};
use half::{bf16, f16};
use safetensors::Dtype;

use super::awq::FileRange;
use super::files::{Source, bad, show};
use super::order::Order;

/// Element type of a plain tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    F32,
    F16,
    Bf16,
}

impl Plain {
    /// Returns the element type of a tensor.
    pub(super) fn of(name: &str, source: &Source) -> Result<Plain, super::Error> {
        match source.dtype {
            Dtype::F32 => Ok(Plain::F32),
            Dtype::F16 => Ok(Plain::F16),
            Dtype::BF16 => Ok(Plain::Bf16),
            _ => Err(bad(name, source, "F16, BF16 or F32", show(source))),
        }
    }

    pub(super) fn ty(self) -> TensorType {
        match self {
            Plain::F32 => TensorType::F32,
            Plain::F16 => TensorType::F16,
            Plain::Bf16 => TensorType::BF16,
        }
    }

    pub(super) fn bytes(self) -> usize {
        if self == Plain::F32 { 4 } else { 2 }
    }
}

/// Permuted rows of the same numbers, from several concatenated tensors of one shape.
pub(super) struct Reordered {
    pub(super) parts: Vec<FileRange>,
    /// Rows of each part.
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
        self.parts.iter().for_each(FileRange::release);
    }

    fn check(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| part.file.check())
    }
}

/// Matrices of all experts, transposed: their rows are the file's columns.
pub(super) struct Transposed {
    pub(super) part: FileRange,
    /// Bytes per number.
    pub(super) bytes: usize,
    /// Rows and columns of a matrix in the file.
    pub(super) shape: [usize; 2],
    /// Permutation of the columns that become rows.
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

/// MXFP4 blocks, with codes and scales in separate tensors in the file. There neighbours share a
/// byte, in GGUF values 16 apart do.
pub(super) struct Mxfp4 {
    pub(super) blocks: FileRange,
    pub(super) scales: FileRange,
    /// Blocks per row.
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

/// Rows with permuted columns.
pub(super) struct Shuffled {
    pub(super) part: FileRange,
    /// Bytes per number.
    pub(super) bytes: usize,
    /// Numbers per row.
    pub(super) row_len: usize,
    /// Permutation of the columns.
    pub(super) order: Order,
}

impl RowSource for Shuffled {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let row_bytes = self.row_len * self.bytes;
        let from = &self.part.bytes()[first as usize * row_bytes..];
        for (from, out) in from
            .chunks_exact(row_bytes)
            .zip(out.chunks_exact_mut(row_bytes))
        {
            for (k, out) in out.chunks_exact_mut(self.bytes).enumerate() {
                let at = self.order.source(k) * self.bytes;
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

/// Change of a number's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Nothing,
    /// Adds a constant.
    Plus(f32),
    /// Turns a logarithm into the negative of its exponential.
    MinusExp,
}

impl Change {
    fn of(self, value: f32) -> f32 {
        match self {
            Change::Nothing => value,
            Change::Plus(more) => value + more,
            Change::MinusExp => -(f64::from(value).exp() as f32),
        }
    }
}

/// Vectors, and other tensors that GGUF keeps in F32.
pub(super) struct Widened {
    pub(super) part: FileRange,
    pub(super) plain: Plain,
    pub(super) order: Order,
    /// Number of values that are permuted together: a row, or 1.
    pub(super) unit: usize,
    /// Values per row.
    pub(super) row_len: usize,
    pub(super) change: Change,
}

impl RowSource for Widened {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = self.part.bytes();
        let n = self.plain.bytes();
        let values = first as usize * self.row_len..;
        for (i, out) in values.zip(out.chunks_exact_mut(4)) {
            let source = self.order.source(i / self.unit) * self.unit + i % self.unit;
            let at = source * n;
            let v = &from[at..at + n];
            let wide = match self.plain {
                Plain::F32 => f32::from_le_bytes([v[0], v[1], v[2], v[3]]),
                Plain::F16 => f16::from_le_bytes([v[0], v[1]]).to_f32(),
                Plain::Bf16 => bf16::from_le_bytes([v[0], v[1]]).to_f32(),
            };
            out.copy_from_slice(&self.change.of(wide).to_le_bytes());
        }
    }
}

/// Computed numbers.
pub(super) struct Computed(pub(super) Vec<f32>);

impl RowSource for Computed {
    fn fill(&self, _: u64, out: &mut [u8]) {
        for (out, v) in out.chunks_exact_mut(4).zip(&self.0) {
            out.copy_from_slice(&v.to_le_bytes());
        }
    }
}
