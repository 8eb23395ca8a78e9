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

    /// Reads a number.
    fn read(self, v: &[u8]) -> f32 {
        match self {
            Plain::F32 => f32::from_le_bytes([v[0], v[1], v[2], v[3]]),
            Plain::F16 => f16::from_le_bytes([v[0], v[1]]).to_f32(),
            Plain::Bf16 => bf16::from_le_bytes([v[0], v[1]]).to_f32(),
        }
    }

    /// Returns a product as torch rounds it: to the type if it is F16, else to F32.
    fn product(self, value: f32, factor: f32) -> f32 {
        match self {
            Plain::F16 => f16::from_f32(value * factor).to_f32(),
            Plain::F32 | Plain::Bf16 => value * factor,
        }
    }

    /// Writes a number, rounded to the nearest of the type.
    fn write(self, value: f32, out: &mut [u8]) {
        match self {
            Plain::F32 => out.copy_from_slice(&value.to_le_bytes()),
            Plain::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Plain::Bf16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
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

/// Places of matrices of one shape, of all experts or heads, in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrices {
    /// Rows from the beginning of one to the beginning of the next.
    pub(super) of: usize,
    /// Rows before the first.
    pub(super) start: usize,
    /// Rows of each.
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// Matrices of all experts or heads, transposed: their rows are the file's columns.
pub(super) struct Transposed {
    pub(super) part: FileRange,
    /// Bytes per number.
    pub(super) bytes: usize,
    pub(super) matrices: Matrices,
    /// Permutation of the columns that become rows.
    pub(super) order: Order,
}

impl RowSource for Transposed {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = self.part.bytes();
        let Matrices {
            of,
            start,
            rows,
            cols,
        } = self.matrices;
        for (row, out) in (first as usize..).zip(out.chunks_exact_mut(rows * self.bytes)) {
            let source = self.order.source(row);
            let first = (source / cols * of + start) * cols + source % cols;
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

/// Vectors, and other tensors that have one type in every GGUF file.
pub(super) struct Retyped {
    pub(super) part: FileRange,
    pub(super) plain: Plain,
    pub(super) to: Plain,
    pub(super) order: Order,
    /// Number of values that are permuted together: a row, or 1.
    pub(super) unit: usize,
    /// Values per row.
    pub(super) row_len: usize,
    pub(super) change: Change,
}

impl RowSource for Retyped {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let from = self.part.bytes();
        let n = self.plain.bytes();
        let values = first as usize * self.row_len..;
        for (i, out) in values.zip(out.chunks_exact_mut(self.to.bytes())) {
            let source = self.order.source(i / self.unit) * self.unit + i % self.unit;
            let at = source * n;
            let v = &from[at..at + n];
            self.to.write(self.change.of(self.plain.read(v)), out);
        }
    }
}

/// Factors of some rows, which are multiplied by the first of them, then by the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factors {
    /// Number of rows.
    pub(super) rows: usize,
    pub(super) by: [f32; 2],
}

/// Rows of a matrix with factors.
pub(super) struct Scaled {
    pub(super) part: FileRange,
    pub(super) plain: Plain,
    pub(super) row_len: usize,
    /// Factors of the rows, one group after the other; the last group has all that are left.
    pub(super) factors: Vec<Factors>,
}

/// Returns the factors of a row.
fn factors_of(all: &[Factors], mut row: usize) -> [f32; 2] {
    let mut found = [1.0; 2];
    for factors in all {
        found = factors.by;
        match row.checked_sub(factors.rows) {
            Some(left) => row = left,
            None => break,
        }
    }
    found
}

impl RowSource for Scaled {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let bytes = self.plain.bytes();
        let row_bytes = self.row_len * bytes;
        let from = &self.part.bytes()[first as usize * row_bytes..];
        let rows = from.chunks_exact(row_bytes);
        for (row, (from, out)) in rows.zip(out.chunks_exact_mut(row_bytes)).enumerate() {
            let [once, twice] = factors_of(&self.factors, first as usize + row);
            for (from, out) in from.chunks_exact(bytes).zip(out.chunks_exact_mut(bytes)) {
                let value = self.plain.product(self.plain.read(from), once);
                self.plain.write(self.plain.product(value, twice), out);
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

/// Computed numbers.
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
    fn factors_are_those_of_a_rows_group() {
        let group = |rows, by| Factors { rows, by };
        let all = [
            group(2, [3.0, 0.1]),
            group(1, [0.3, 7.0]),
            group(9, [2.0; 2]),
        ];
        let of_rows: Vec<[f32; 2]> = (0..5).map(|row| factors_of(&all, row)).collect();
        let expected = [[3.0, 0.1], [3.0, 0.1], [0.3, 7.0], [2.0; 2], [2.0; 2]];
        assert_eq!(of_rows, expected);
    }

    #[test]
    fn products_of_halves_are_halves() {
        // 0.1 is 0.09998 in F16, 0.3 of it 1965.6 * 2^-16, and F16 has multiples of 2^-16 there
        let half = f16::from_f32(0.1).to_f32();
        assert_eq!(Plain::F16.product(half, 0.3), 1966.0 / 65536.0);
        assert_eq!(Plain::Bf16.product(half, 0.3), half * 0.3);
    }
}
