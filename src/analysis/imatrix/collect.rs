//! Collects an importance matrix: runs a text through the engine and sums the squared inputs of its
//! matrices.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::Error;
use super::readers::{Routed, readers, routed};
use super::sums::{Entry, Sums};
use octavo_engine::Engine;
use octavo_engine::backend::TapView;
use octavo_model::Tap;
use octavo_text::tokenizer::EncodeOptions;

/// Collection options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens per chunk; each chunk is a text of its own.
    pub chunk: usize,
    /// Largest number of chunks.
    pub max_chunks: Option<usize>,
    /// Also collect for `output.weight`.
    pub output: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            chunk: 512,
            max_chunks: None,
            output: false,
        }
    }
}

/// A value of the running step: `[rows][width]`.
struct Held {
    rows: usize,
    data: Vec<f32>,
}

/// Collects sums, chunk by chunk.
pub struct Collector<'e> {
    engine: &'e Engine,
    options: Options,
    /// Matrices that multiply each value.
    readers: HashMap<Tap, Vec<String>>,
    /// Expert matrices, keyed by the last computed of the values they need.
    routed: HashMap<Tap, Vec<Routed>>,
    sums: Sums,
}

impl<'e> Collector<'e> {
    /// Starts with empty sums.
    ///
    /// # Errors
    /// [`Error::Chunk`].
    pub fn new(engine: &'e Engine, options: Options) -> Result<Collector<'e>, Error> {
        let (chunk, n_ctx) = (options.chunk, engine.n_ctx());
        if !(2..=n_ctx).contains(&chunk) {
            return Err(Error::Chunk { chunk, n_ctx });
        }
        Ok(Collector {
            engine,
            options,
            readers: readers(engine, options.output),
            routed: routed(engine),
            sums: Sums::new(chunk),
        })
    }

    /// Tokenizes the text and cuts it as llama-imatrix does: special tokens are added but not
    /// parsed, and a rest shorter than a chunk is dropped. A final newline counts; llama.cpp's `-f`
    /// drops it.
    ///
    /// # Errors
    /// A text that cannot be encoded, or is shorter than two chunks.
    pub fn tokens(&self, text: &[u8]) -> Result<Vec<u32>, Error> {
        let options = EncodeOptions::default();
        let mut tokens = self
            .engine
            .tokenizer()
            .encode(text, options)
            .map_err(octavo_engine::Error::from)?;
        let chunk = self.options.chunk;
        if tokens.len() < 2 * chunk {
            return Err(Error::TooShort {
                got: tokens.len(),
                expected: 2 * chunk,
                chunk,
            });
        }
        let n = (tokens.len() / chunk).min(self.options.max_chunks.unwrap_or(usize::MAX));
        tokens.truncate(n * chunk);
        Ok(tokens)
    }

    /// Runs one chunk. If the vocabulary asks for BOS, it replaces the chunk's first token.
    ///
    /// # Errors
    /// As [`Engine::run_with_taps`].
    pub fn add(&mut self, chunk: &[u32]) -> Result<(), Error> {
        let tokenizer = self.engine.tokenizer();
        let mut tokens = chunk.to_vec();
        if let (true, Some(bos), Some(first)) =
            (tokenizer.add_bos(), tokenizer.bos(), tokens.first_mut())
        {
            *first = bos;
        }
        let (readers, routed) = (&self.readers, &self.routed);
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        let wait: HashSet<Tap> = routed
            .values()
            .flatten()
            .flat_map(|r| [r.x, r.ids])
            .collect();
        let mut held: HashMap<Tap, Held> = HashMap::new();
        let mut look = |view: &TapView<'_>| {
            if let Some(names) = readers.get(&view.tap) {
                let squares = squares(view);
                for name in names {
                    let entry = entries.entry(name.clone()).or_default();
                    entry.make(1, view.width);
                    let sums = entry.squares.iter_mut().zip(&squares);
                    sums.for_each(|(sum, s)| *sum += s);
                    entry.rows[0] += view.rows as u64;
                }
            }
            if wait.contains(&view.tap) {
                let (rows, data) = (view.rows, view.data.to_vec());
                held.insert(view.tap, Held { rows, data });
            }
            for product in routed.get(&view.tap).into_iter().flatten() {
                let entry = entries.entry(product.name.clone()).or_default();
                entry.make(product.experts, product.width);
                add_routed(entry, product, &held);
            }
            if let Some(products) = routed.get(&view.tap) {
                // inputs are as large as activations; few of them are needed at a time
                products.iter().for_each(|p| drop(held.remove(&p.x)));
            }
        };
        // needs all rows: with fewer outputs the last layer would compute only those
        self.engine.run_with_taps(&tokens, &mut look)?;
        self.sums.push(&entries);
        Ok(())
    }

    /// Returns the sums so far.
    pub fn into_sums(self) -> Sums {
        self.sums
    }

    /// Returns the number of chunks added.
    pub fn chunks(&self) -> usize {
        self.sums.chunks()
    }

    /// Returns the number of matrices seen.
    pub fn matrices(&self) -> usize {
        self.sums.matrices()
    }

    /// Returns the mean squares of the inputs of each matrix seen, by its name.
    pub fn means(&self) -> impl Iterator<Item = (&str, Vec<f64>)> {
        self.sums.means()
    }

    /// Writes llama.cpp's GGUF format. `dataset` names the text.
    ///
    /// # Errors
    /// A failed write.
    pub fn write(&self, path: &Path, dataset: &str) -> Result<u64, Error> {
        self.sums.write(path, dataset)
    }
}

/// Returns the sum of squares of each column, in f64: so order and number of rows do not affect the
/// f32 that is written.
fn squares(view: &TapView<'_>) -> Vec<f64> {
    let mut sums = vec![0.0; view.width];
    for row in view.data.chunks_exact(view.width.max(1)) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    sums
}

/// Adds the inputs of each token's experts. `held` has both values, unless the model is invalid.
fn add_routed(entry: &mut Entry, product: &Routed, held: &HashMap<Tap, Held>) {
    let (Some(x), Some(ids)) = (held.get(&product.x), held.get(&product.ids)) else {
        return;
    };
    let row = |value: &Held| value.data.len() / value.rows.max(1);
    let (x_row, used) = (row(x).max(1), row(ids).max(1));
    for (x, ids) in x.data.chunks_exact(x_row).zip(ids.data.chunks_exact(used)) {
        // one input row shared by all experts is repeated for each
        let parts = x.chunks_exact(product.width).cycle();
        for (part, &id) in parts.zip(ids) {
            // ids are whole numbers in floats
            entry.add(id as usize, part);
        }
    }
}
