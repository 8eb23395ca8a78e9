//! AWQ weights as rows of 4-bit blocks.
//!
//! A checkpoint has, input features first, `qweight` (in, out / 8) and `qzeros` (in / group, out /
//! 8) with eight output features in a word, and `scales` (in / group, out). Kernels read rows of
//! one output feature.

use std::ops::Range;

use gguf_rs_lite::{Error, RowSource, SharedFile, TensorType};
use octavo_quant::awq;

use super::order::HeadOrder;

/// Rows that are made together, so that words which they share are read once.
const TOGETHER: usize = 32;

/// A part of a file.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) file: SharedFile,
    pub(super) range: Range<usize>,
}

impl Part {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Its pages are not needed for now.
    pub(super) fn release(&self) {
        self.file.release(self.range.clone());
    }

    /// Its little-endian words.
    fn words(&self) -> &[[u8; 4]] {
        self.bytes().as_chunks().0
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
    TensorType::AWQ
        .into_iter()
        .rev()
        .find(|ty| group.is_multiple_of(ty.block_len()))
}

impl Awq {
    /// The codes of some source rows, `[rows.len()][cols]`.
    fn codes(&self, rows: &[usize]) -> Vec<u8> {
        let mut codes = vec![0; rows.len() * self.cols];
        let mut columns: Vec<usize> = rows.iter().map(|row| row / 8).collect();
        columns.sort_unstable();
        columns.dedup();
        let words = self.qweight.words();
        for column in columns {
            let of: Vec<(usize, usize)> = rows
                .iter()
                .enumerate()
                .filter(|r| r.1 / 8 == column)
                .map(|(i, row)| (i * self.cols, row % 8))
                .collect();
            for k in 0..self.cols {
                let eight = awq::unpack(u32::from_le_bytes(words[k * (self.rows / 8) + column]));
                for (at, feature) in &of {
                    codes[at + k] = eight[*feature];
                }
            }
        }
        codes
    }

    fn zero(&self, group: usize, row: usize) -> u8 {
        let Some(qzeros) = &self.qzeros else { return 8 };
        awq::unpack(u32::from_le_bytes(
            qzeros.words()[group * (self.rows / 8) + row / 8],
        ))[row % 8]
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
        let all: Vec<usize> = (first as usize..first as usize + n)
            .map(|row| self.order.map_or(row, |o| o.source(row)))
            .collect();
        for (rows, out) in all
            .chunks(TOGETHER)
            .zip(out.chunks_mut(TOGETHER * row_bytes))
        {
            let codes = self.codes(rows);
            let by_row = rows
                .iter()
                .zip(codes.chunks_exact(self.cols))
                .zip(out.chunks_exact_mut(row_bytes));
            for ((&row, codes), out) in by_row {
                for (i, (codes, block)) in codes
                    .chunks_exact(len)
                    .zip(out.chunks_exact_mut(bytes))
                    .enumerate()
                {
                    let group = i * len / self.group;
                    awq::block(self.scale(group, row), self.zero(group, row), codes, block);
                }
            }
        }
    }

    fn release(&self) {
        for part in [&self.qweight, &self.scales]
            .into_iter()
            .chain(&self.qzeros)
        {
            part.release();
        }
    }

    fn check(&self) -> Result<(), Error> {
        [&self.qweight, &self.scales]
            .into_iter()
            .chain(&self.qzeros)
            .try_for_each(|part| part.file.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_rs_lite::OpenOptions;

    /// A file with these parts one behind the other.
    fn parts(dir: &tempfile::TempDir, all: [&[u8]; 3]) -> [Part; 3] {
        let path = dir.path().join("weights");
        std::fs::write(&path, all.concat()).expect("written");
        let file = SharedFile::open(&path, &OpenOptions::default()).expect("there");
        let mut at = 0;
        all.map(|bytes| {
            at += bytes.len();
            Part {
                file: file.clone(),
                range: at - bytes.len()..at,
            }
        })
    }

    #[test]
    fn every_weight_is_its_code_less_the_zero_point_times_the_scale() {
        let dir = tempfile::tempdir().expect("a folder");
        let (cols, rows) = (192, 48);
        let code = |k: usize, row: usize| ((k * 5 + row * 3) % 16) as u8;
        let zero = |group: usize, row: usize| ((group * 7 + row) % 16) as u8;
        // 1, 2, 4, ... : exact whatever they multiply
        let scale =
            |group: usize, row: usize| half::f16::from_f32(f32::from(1u16 << ((group + row) % 8)));
        let words = |lines: usize, of: &dyn Fn(usize, usize) -> u8| -> Vec<u8> {
            let eight = |line: usize, word: usize| {
                awq::pack(std::array::from_fn(|i| of(line, 8 * word + i)))
            };
            (0..lines)
                .flat_map(|l| (0..rows / 8).map(move |w| (l, w)))
                .flat_map(|(l, w)| eight(l, w).to_le_bytes())
                .collect()
        };
        for (group, zero_point, order) in [
            (192, true, None), // a whole row, as -1 says
            (64, true, None),
            (96, false, None),
            (32, true, Some(HeadOrder { head_dim: 24 })),
        ] {
            let groups = cols / group;
            let scales: Vec<u8> = (0..groups)
                .flat_map(|g| (0..rows).map(move |row| (g, row)))
                .flat_map(|(g, row)| scale(g, row).to_le_bytes())
                .collect();
            let [qweight, qzeros, scales] =
                parts(&dir, [&words(cols, &code), &words(groups, &zero), &scales]);
            let qzeros = zero_point.then_some(qzeros);
            let ty = block_type(group).expect("a multiple of 32");
            let source = Awq {
                qweight,
                qzeros,
                scales,
                cols,
                rows,
                group,
                ty,
                order,
            };
            let row_bytes = cols / ty.block_len() * ty.block_bytes();
            // from the fourth row on, more than are made together
            let mut bytes = vec![0; (rows - 3) * row_bytes];
            source.fill(3, &mut bytes);
            let mut values = vec![0.0; (rows - 3) * cols];
            octavo_quant::dequantize(ty, &bytes, &mut values).expect("whole blocks");
            for (i, value) in values.into_iter().enumerate() {
                let (row, k) = (3 + i / cols, i % cols);
                let row = order.map_or(row, |o| o.source(row));
                let zero = if zero_point { zero(k / group, row) } else { 8 };
                let expected =
                    (f32::from(code(k, row)) - f32::from(zero)) * scale(k / group, row).to_f32();
                assert_eq!(value, expected, "row {row}, column {k}, groups of {group}");
            }
        }
        assert_eq!(
            [96, 64, 100, 0].map(block_type),
            [
                Some(TensorType::AWQ_G32),
                Some(TensorType::AWQ_G64),
                None,
                Some(TensorType::AWQ_G128)
            ]
        );
    }
}
