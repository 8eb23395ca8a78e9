//! AWQ weights as rows of 4-bit blocks.
//!
//! A checkpoint packed for AutoAWQ's GEMM has, input features first, `qweight` (in, out / 8) and
//! `qzeros` (in / group, out / 8) with eight output features in a word, and `scales` (in / group,
//! out). One packed for its GEMV has output features first, and eight input features or groups in a
//! word: `qweight` (out, in / 8), `qzeros` (out, words) and `scales` (out, 8 words), with as many
//! words as [`zero_words`] says. Kernels read rows of one output feature.

use std::ops::Range;

use gguf_rs_lite::{Error, RowSource, SharedFile, TensorType};
use octavo_quant::awq;

use super::order::HeadOrder;

/// Number of rows computed together, so that words they share are read once.
const TOGETHER: usize = 32;

/// Order of 4-bit codes in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Eight output features in a word, the odd ones after the even ones.
    Gemm,
    /// Eight input features in a word, in order.
    Gemv,
}

/// Returns the number of words of zero points per row in GEMV packing: those of `groups` groups of
/// `group` weights, in whole lines of the kernel that reads them; `None` for groups that it cannot
/// read.
pub(super) fn zero_words(groups: usize, group: usize) -> Option<usize> {
    let line = match group {
        32 => 4,
        64 => 2,
        128.. => 1,
        _ => return None,
    };
    Some(groups.div_ceil(8).next_multiple_of(line))
}

/// Returns code `i` of a row of words with eight codes each, in order.
fn code_of(words: &[[u8; 4]], i: usize) -> u8 {
    let byte = words[i / 8][i % 8 / 2];
    byte >> (4 * (i % 2)) & 15
}

/// A range of a file.
#[derive(Clone)]
pub(super) struct FileRange {
    pub(super) file: SharedFile,
    pub(super) range: Range<usize>,
}

impl FileRange {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Releases its pages, which are not needed for now.
    pub(super) fn release(&self) {
        self.file.release(self.range.clone());
    }

    /// Returns its little-endian words.
    fn words(&self) -> &[[u8; 4]] {
        self.bytes().as_chunks().0
    }
}

/// One AWQ weight.
pub(super) struct Awq {
    pub(super) packing: Packing,
    pub(super) qweight: FileRange,
    /// Zero points; without them every zero point is 8.
    pub(super) qzeros: Option<FileRange>,
    pub(super) scales: FileRange,
    /// Input features; a multiple of `group`, which is a multiple of the block's length.
    pub(super) cols: usize,
    /// Output features; a multiple of 8.
    pub(super) rows: usize,
    /// Number of weights of a row that share a scale.
    pub(super) group: usize,
    pub(super) ty: TensorType,
    pub(super) order: Option<HeadOrder>,
}

/// Returns the block type for groups of this many weights: the largest that divides them.
pub(super) fn block_type(group: usize) -> Option<TensorType> {
    TensorType::AWQ
        .into_iter()
        .rev()
        .find(|ty| group.is_multiple_of(ty.block_len()))
}

impl Awq {
    /// Returns the codes of some source rows, `[rows.len()][cols]`.
    fn codes(&self, rows: &[usize]) -> Vec<u8> {
        if self.packing == Packing::Gemv {
            let words = self.qweight.words();
            let of_row = |row: &usize| {
                let own = &words[row * (self.cols / 8)..][..self.cols / 8];
                (0..self.cols).map(|k| code_of(own, k))
            };
            return rows.iter().flat_map(of_row).collect();
        }
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
        let words = qzeros.words();
        match self.packing {
            Packing::Gemm => {
                let word = words[group * (self.rows / 8) + row / 8];
                awq::unpack(u32::from_le_bytes(word))[row % 8]
            }
            Packing::Gemv => {
                let of_row = words.len() / self.rows;
                code_of(&words[row * of_row..][..of_row], group)
            }
        }
    }

    fn scale(&self, group: usize, row: usize) -> u16 {
        let bytes = self.scales.bytes();
        let at = match self.packing {
            Packing::Gemm => 2 * (group * self.rows + row),
            Packing::Gemv => bytes.len() / self.rows * row + 2 * group,
        };
        u16::from_le_bytes([bytes[at], bytes[at + 1]])
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

    /// Writes a file with these parts one after the other.
    fn parts(dir: &tempfile::TempDir, all: [&[u8]; 3]) -> [FileRange; 3] {
        let path = dir.path().join("weights");
        std::fs::write(&path, all.concat()).expect("written");
        let file = SharedFile::open(&path, &OpenOptions::default()).expect("there");
        let mut at = 0;
        all.map(|bytes| {
            at += bytes.len();
            FileRange {
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
        // powers of two: products with them are exact
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
                packing: Packing::Gemm,
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
            // from the fourth row on, more than are computed together
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

    /// The same weight in both packings, with one group and with more than fill a word.
    #[test]
    fn rows_packed_for_gemv_are_those_packed_for_gemm() {
        let dir = tempfile::tempdir().expect("a folder");
        let rows = 16;
        let code = |row: usize, k: usize| ((k * 5 + row * 3 + k / 8) % 16) as u8;
        let zero = |row: usize, group: usize| ((group * 7 + row) % 16) as u8;
        let scale = |row: usize, group: usize| half::f16::from_f32((1 + row + 3 * group) as f32);
        for (cols, group) in [(320, 32), (128, 64), (1280, 128), (96, 96)] {
            let groups = cols / group;
            let Some(words) = zero_words(groups, group) else {
                assert_eq!(group, 96);
                continue;
            };
            let gemm = |lines: usize, of: &dyn Fn(usize, usize) -> u8| -> Vec<u8> {
                let word = |line: usize, at: usize| {
                    awq::pack(std::array::from_fn(|i| of(8 * at + i, line)))
                };
                (0..lines)
                    .flat_map(|line| (0..rows / 8).map(move |at| (line, at)))
                    .flat_map(|(line, at)| word(line, at).to_le_bytes())
                    .collect()
            };
            let gemv = |width: usize, n: usize, of: &dyn Fn(usize, usize) -> u8| -> Vec<u8> {
                let at = |row: usize, k: usize| if k < n { of(row, k) } else { 0 };
                let byte = |row: usize, k: usize| at(row, 2 * k) | at(row, 2 * k + 1) << 4;
                let bytes = (0..rows).flat_map(|row| (0..4 * width).map(move |k| (row, k)));
                bytes.map(|(row, k)| byte(row, k)).collect()
            };
            let halves = |all: Vec<half::f16>| -> Vec<u8> {
                all.into_iter().flat_map(half::f16::to_le_bytes).collect()
            };
            let by_group = (0..groups).flat_map(|g| (0..rows).map(move |row| (row, g)));
            let by_row = (0..rows).flat_map(|row| (0..8 * words).map(move |g| (row, g)));
            let padded = |(row, g)| {
                if g < groups {
                    scale(row, g)
                } else {
                    half::f16::ZERO
                }
            };
            let packed = [
                (
                    Packing::Gemm,
                    gemm(cols, &code),
                    gemm(groups, &zero),
                    halves(by_group.map(|(row, g)| scale(row, g)).collect()),
                ),
                (
                    Packing::Gemv,
                    gemv(cols / 8, cols, &code),
                    gemv(words, groups, &zero),
                    halves(by_row.map(padded).collect()),
                ),
            ];
            let [one, other] = packed.map(|(packing, qweight, qzeros, scales)| {
                let [qweight, qzeros, scales] = parts(&dir, [&qweight, &qzeros, &scales]);
                let ty = block_type(group).expect("a multiple of 32");
                let source = Awq {
                    packing,
                    qweight,
                    qzeros: Some(qzeros),
                    scales,
                    cols,
                    rows,
                    group,
                    ty,
                    order: None,
                };
                let mut bytes = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
                source.fill(0, &mut bytes);
                bytes
            });
            assert!(one == other, "{cols} weights in groups of {group}");
        }
        // AutoAWQ's numbers for 4096 inputs
        let words = [(128, 32), (64, 64), (32, 128), (1, 4096)].map(|(n, g)| zero_words(n, g));
        assert_eq!(words, [Some(16), Some(8), Some(4), Some(1)]);
        assert_eq!(zero_words(10, 32), Some(4));
    }
}
