//! Sums over chunks of text, the contents of an importance matrix.
//!
//! A chunk's sums are f64. They are added in double-double precision and rounded once, to the f32
//! of the file: so the file does not depend on the order in which chunks are added.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::{TensorType, Writer};
use serde::{Deserialize, Serialize};

use super::{CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, Error, SUMS};

/// Sums of one chunk, for the inputs of one tensor.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// Sum of squares for each input of each of its matrices.
    pub(super) squares: Vec<f64>,
    /// Input rows of each of its matrices: one number, or one per expert.
    pub(super) rows: Vec<u64>,
}

impl Entry {
    /// Makes room for `matrices` matrices with rows of `width` values.
    pub(super) fn make(&mut self, matrices: usize, width: usize) {
        self.squares.resize(matrices * width, 0.0);
        self.rows.resize(matrices, 0);
    }

    /// Adds one input row of a matrix.
    pub(super) fn add(&mut self, matrix: usize, row: &[f32]) {
        let sums = self.squares.chunks_exact_mut(row.len().max(1)).nth(matrix);
        let Some((sums, rows)) = sums.zip(self.rows.get_mut(matrix)) else {
            return;
        };
        *rows += 1;
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
}

/// Sums over chunks, for the inputs of one tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Total {
    /// High parts of the sums, laid out as in [`Entry`].
    squares: Vec<f64>,
    /// Low parts of the sums: the rounding errors of the high parts.
    rests: Vec<f64>,
    rows: Vec<u64>,
}

impl Total {
    /// Adds sums with their low parts.
    fn add(&mut self, squares: &[f64], rests: &[f64], rows: &[u64]) {
        self.squares.resize(squares.len(), 0.0);
        self.rests.resize(squares.len(), 0.0);
        self.rows.resize(rows.len(), 0);
        let rests = rests.iter().copied().chain(std::iter::repeat(0.0));
        let sums = self.squares.iter_mut().zip(&mut self.rests);
        for ((sum, rest), (x, x_rest)) in sums.zip(squares.iter().zip(rests)) {
            (*sum, *rest) = added((*sum, *rest), (*x, x_rest));
        }
        for (sum, n) in self.rows.iter_mut().zip(rows) {
            *sum = sum.saturating_add(*n);
        }
    }

    /// Returns whether its lists have matching lengths.
    fn is_sound(&self) -> bool {
        let (n, matrices) = (self.squares.len(), self.rows.len());
        n > 0 && self.rests.len() == n && matrices > 0 && n.is_multiple_of(matrices)
    }

    fn has_shape_of(&self, other: &Total) -> bool {
        (self.squares.len(), self.rows.len()) == (other.squares.len(), other.rows.len())
    }

    /// Returns mean squares; 1 for a matrix without input rows, as readers of the file assume.
    fn means(&self) -> Vec<f64> {
        let width = self.squares.len() / self.rows.len().max(1);
        let matrices = self.squares.chunks_exact(width.max(1)).zip(&self.rows);
        let mean = |sum: f64, rows: u64| if rows == 0 { 1.0 } else { sum / rows as f64 };
        matrices
            .flat_map(|(sums, &rows)| sums.iter().map(move |&sum| mean(sum, rows)))
            .collect()
    }
}

/// Adds two double-double numbers (high and low part): Knuth's exact sum of the high parts, plus
/// all low parts.
fn added((a, a_rest): (f64, f64), (b, b_rest): (f64, f64)) -> (f64, f64) {
    let sum = a + b;
    if !sum.is_finite() {
        // an infinite or NaN sum has no low part
        return (sum, 0.0);
    }
    let of_b = sum - a;
    let lost = (a - (sum - of_b)) + (b - of_b);
    let rest = lost + (a_rest + b_rest);
    let whole = sum + rest;
    (whole, rest - (whole - sum))
}

/// Number of tokens from which on the mean square of a normally distributed input is off by less
/// than a tenth: its relative standard error is `sqrt(2 / n)`.
pub const ENOUGH_TOKENS: u64 = 200;

/// An expert, and the number of tokens that were routed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertTokens {
    /// Beginning of the names of its layer's tensors, such as `blk.3`.
    pub layer: String,
    /// Number of the expert.
    pub expert: usize,
    /// Number of tokens.
    pub tokens: u64,
}

/// Sums over chunks of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// Tokens per chunk.
    chunk: usize,
    chunks: usize,
    totals: BTreeMap<String, Total>,
}

impl Sums {
    /// Starts empty sums, for chunks of `chunk` tokens.
    pub fn new(chunk: usize) -> Sums {
        Sums {
            chunk,
            ..Sums::default()
        }
    }

    /// Adds one chunk.
    pub(super) fn push(&mut self, entries: &BTreeMap<String, Entry>) {
        self.chunks += 1;
        for (name, entry) in entries {
            let total = self.totals.entry(name.clone()).or_default();
            total.add(&entry.squares, &[], &entry.rows);
        }
    }

    /// Adds the sums of other chunks.
    ///
    /// # Errors
    /// [`Error::Shapes`]: they are from another model, or from chunks of another length.
    pub fn merge(&mut self, others: &Sums) -> Result<(), Error> {
        let shapes = |name: &str| Error::Shapes {
            name: name.to_owned(),
        };
        if self.chunk != others.chunk {
            return Err(shapes("tokens of a chunk"));
        }
        for (name, total) in &others.totals {
            let own = self.totals.entry(name.clone()).or_default();
            if own.is_sound() && !own.has_shape_of(total) {
                return Err(shapes(name));
            }
            own.add(&total.squares, &total.rests, &total.rows);
        }
        self.chunks = self.chunks.saturating_add(others.chunks);
        Ok(())
    }

    /// Returns whether chunks can produce this: data from a file is untrusted.
    pub(crate) fn is_sound(&self) -> bool {
        self.totals.values().all(Total::is_sound)
    }

    /// Returns the tokens per chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Returns the number of chunks added.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Returns the number of matrices seen.
    pub fn matrices(&self) -> usize {
        self.totals.len()
    }

    /// Returns how many tokens each expert saw, the fewest first.
    pub fn experts(&self) -> Vec<ExpertTokens> {
        let mut seen = BTreeMap::new();
        let of_experts = self
            .totals
            .iter()
            .filter(|(name, _)| name.contains("_exps."));
        for (name, total) in of_experts {
            let layer = name.split(".ffn_").next().unwrap_or(name);
            for (expert, rows) in total.rows.iter().enumerate() {
                // matrices of an expert see the same tokens
                let tokens = seen.entry((layer, expert)).or_insert(*rows);
                *tokens = (*tokens).min(*rows);
            }
        }
        let expert = |((layer, expert), tokens): ((&str, usize), u64)| ExpertTokens {
            layer: layer.to_owned(),
            expert,
            tokens,
        };
        let mut all: Vec<ExpertTokens> = seen.into_iter().map(expert).collect();
        all.sort_by_key(|expert| expert.tokens);
        all
    }

    /// Returns the mean squares of the inputs of each matrix seen, by its name.
    pub fn means(&self) -> impl Iterator<Item = (&str, Vec<f64>)> {
        self.totals
            .iter()
            .map(|(name, total)| (name.as_str(), total.means()))
    }

    /// Writes llama.cpp's GGUF format. `dataset` names the text.
    ///
    /// # Errors
    /// A failed write.
    pub fn write(&self, path: &Path, dataset: &str) -> Result<u64, Error> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut writer = Writer::new();
        writer
            .set("general.type", "imatrix")
            .set(DATASETS, vec![dataset.to_owned()]);
        writer
            .set(CHUNK_COUNT, number(self.chunks))
            .set(CHUNK_SIZE, number(self.chunk));
        for (name, total) in &self.totals {
            let bytes = |x: f32| x.to_le_bytes();
            let sums = total.squares.iter().flat_map(|&sum| bytes(sum as f32));
            let counts = total.rows.iter().flat_map(|&rows| bytes(rows as f32));
            let (sums, counts): (Vec<u8>, Vec<u8>) = (sums.collect(), counts.collect());
            // a single matrix has no second dimension in ggml
            let matrices = total.rows.len() as u64;
            let width = total.squares.len() as u64 / matrices.max(1);
            let dims = |n: u64| {
                if matrices > 1 {
                    vec![n, matrices]
                } else {
                    vec![n]
                }
            };
            let ty = TensorType::F32;
            writer.tensor(&format!("{name}{SUMS}"), &dims(width), ty, sums);
            writer.tensor(&format!("{name}{COUNTS}"), &dims(1), ty, counts);
        }
        Ok(writer.write_file(path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns chunks whose sums have very different magnitudes.
    fn chunks() -> Vec<BTreeMap<String, Entry>> {
        let squares = |chunk: i32, i: i32| {
            let size = [1.0, 1e-9, 3e7, 1e16][(chunk * 7 + i) as usize % 4];
            size * (1.0 + 1.0 / f64::from(3 + chunk * 31 + i * 17))
        };
        let entry = |chunk| Entry {
            squares: (0..12).map(|i| squares(chunk, i)).collect(),
            rows: vec![chunk as u64, 1, 7],
        };
        let one = |chunk| BTreeMap::from([("w".to_owned(), entry(chunk))]);
        (0..40).map(one).collect()
    }

    #[test]
    fn every_cut_gives_the_same_floats() {
        let chunks = chunks();
        let of = |range: std::ops::Range<usize>| {
            let mut sums = Sums::new(64);
            chunks[range].iter().for_each(|chunk| sums.push(chunk));
            sums
        };
        let floats = |sums: &Sums| -> Vec<u32> {
            let total = &sums.totals["w"];
            let floats = total.squares.iter().map(|x| (*x as f32).to_bits());
            floats.chain(total.rows.iter().map(|n| *n as u32)).collect()
        };
        let whole = of(0..40);
        for parts in [1, 2, 3, 8, 40] {
            let mut merged = Sums::new(64);
            for i in 0..parts {
                merged
                    .merge(&of(40 * i / parts..40 * (i + 1) / parts))
                    .unwrap();
            }
            assert_eq!(floats(&merged), floats(&whole), "{parts}");
            assert_eq!(merged.chunks(), 40);
        }
    }

    #[test]
    fn nothing_is_lost_behind_a_large_sum() {
        // plain f64 would lose every 1 after 2^60
        let mut sum = (0.0, 0.0);
        for x in [2f64.powi(60), 1.0, 1.0, 1.0, -(2f64.powi(60))] {
            sum = added(sum, (x, 0.0));
        }
        assert_eq!(sum, (3.0, 0.0));
        let infinite = added((f64::MAX, 0.0), (f64::MAX, 0.0));
        assert_eq!(added(infinite, (1.0, 0.0)), (f64::INFINITY, 0.0));
    }

    #[test]
    fn experts_that_saw_few_tokens_come_first() {
        let mut sums = Sums::new(64);
        let entry = |rows: &[u64]| Entry {
            squares: vec![1.0; 2 * rows.len()],
            rows: rows.to_vec(),
        };
        let names = ["blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"];
        let mut entries = BTreeMap::from(names.map(|name| (name.to_owned(), entry(&[5, 0, 300]))));
        entries.insert("blk.1.ffn_up_exps.weight".to_owned(), entry(&[4, 400]));
        // heads of latent attention are matrices of one tensor too, and all see every token
        entries.insert("blk.1.attn_k_b.weight".to_owned(), entry(&[1, 1]));
        sums.push(&entries);
        let experts = sums.experts();
        let tokens: Vec<u64> = experts.iter().map(|expert| expert.tokens).collect();
        assert_eq!(tokens, [0, 4, 5, 300, 400]);
        assert_eq!((&*experts[1].layer, experts[1].expert), ("blk.1", 0));
    }

    #[test]
    fn sums_of_other_shapes_are_refused() {
        let mut sums = Sums::new(64);
        sums.push(&chunks()[0]);
        assert!(sums.merge(&Sums::new(32)).is_err());
        let mut other = Sums::new(64);
        let entry = Entry {
            squares: vec![1.0; 6],
            rows: vec![1, 1, 1],
        };
        other.push(&BTreeMap::from([("w".to_owned(), entry)]));
        let error = sums.merge(&other).unwrap_err().to_string();
        assert!(error.starts_with("w: "), "{error}");
    }
}
