//! Makes an importance matrix: runs a text through the engine and adds up the squared inputs of its
//! matrices.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gguf_rs_lite::{TensorType, Writer};

use super::{CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, Error, SUMS};
use octavo_engine::backend::{Role, TapView};
use octavo_engine::{Engine, Wanted};
use octavo_model::{Op, Tap};
use octavo_text::tokenizer::EncodeOptions;

/// What of a text is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens of a chunk; each chunk is a text of its own.
    pub chunk: usize,
    /// Chunks at most.
    pub max_chunks: Option<usize>,
    /// Also look at `output.weight`.
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

/// Sums for the inputs of one matrix.
#[derive(Clone, Debug, Default)]
struct Entry {
    squares: Vec<f64>,
    tokens: u64,
}

/// Adds up, chunk by chunk.
pub struct Collector<'e> {
    engine: &'e Engine,
    options: Options,
    /// The matrices that multiply a value.
    readers: HashMap<Tap, Vec<String>>,
    entries: BTreeMap<String, Entry>,
    chunks: usize,
}

impl<'e> Collector<'e> {
    /// Nothing added yet.
    ///
    /// # Errors
    /// [`Error::Chunk`].
    pub fn new(engine: &'e Engine, options: Options) -> Result<Collector<'e>, Error> {
        let (chunk, n_ctx) = (options.chunk, engine.n_ctx());
        if !(2..=n_ctx).contains(&chunk) {
            return Err(Error::Chunk { chunk, n_ctx });
        }
        let readers = readers(engine, options.output);
        Ok(Collector {
            engine,
            options,
            readers,
            entries: BTreeMap::new(),
            chunks: 0,
        })
    }

    /// The text's tokens, cut as llama-imatrix cuts them: special tokens are added but not
    /// recognised, a rest shorter than a chunk is left out. A newline at the end counts;
    /// llama.cpp's `-f` drops it.
    ///
    /// # Errors
    /// A text that cannot be encoded, or has less than two chunks.
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

    /// Runs one chunk. Where the vocabulary wants a token at the start of a text, it takes the
    /// place of the first.
    ///
    /// # Errors
    /// As [`octavo_engine::Session::eval_with`].
    pub fn add(&mut self, chunk: &[u32]) -> Result<(), Error> {
        let tokenizer = self.engine.tokenizer();
        let mut tokens = chunk.to_vec();
        if let (true, Some(bos), Some(first)) =
            (tokenizer.add_bos(), tokenizer.bos(), tokens.first_mut())
        {
            *first = bos;
        }
        let (readers, entries) = (&self.readers, &mut self.entries);
        let mut look = |view: &TapView<'_>| {
            let Some(names) = readers.get(&view.tap) else {
                return;
            };
            let squares = squares(view);
            for name in names {
                let entry = entries.entry(name.clone()).or_default();
                entry.squares.resize(view.width, 0.0);
                entry
                    .squares
                    .iter_mut()
                    .zip(&squares)
                    .for_each(|(sum, s)| *sum += s);
                entry.tokens += view.rows as u64;
            }
        };
        // the rows of the last layer are those whose logits are wanted
        let mut session = self.engine.session();
        session.eval_with(
            &tokens,
            Role::Prompt,
            Wanted::All,
            Some(&mut look),
            &mut |_, _| {},
        )?;
        self.chunks += 1;
        Ok(())
    }

    /// Chunks added.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Matrices seen.
    pub fn matrices(&self) -> usize {
        self.entries.len()
    }

    /// Mean squares of the inputs of each matrix seen, by its name.
    pub fn means(&self) -> impl Iterator<Item = (&str, Vec<f64>)> {
        let mean = |entry: &Entry| {
            entry
                .squares
                .iter()
                .map(|s| s / (entry.tokens as f64).max(1.0))
                .collect()
        };
        self.entries
            .iter()
            .map(move |(name, entry)| (name.as_str(), mean(entry)))
    }

    /// Writes llama.cpp's GGUF form. `dataset` names the text.
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
            .set(CHUNK_SIZE, number(self.options.chunk));
        for (name, entry) in &self.entries {
            let sums: Vec<u8> = entry
                .squares
                .iter()
                .flat_map(|&s| (s as f32).to_le_bytes())
                .collect();
            let count = (entry.tokens as f32).to_le_bytes().to_vec();
            writer.tensor(
                &format!("{name}{SUMS}"),
                &[entry.squares.len() as u64],
                TensorType::F32,
                sums,
            );
            writer.tensor(&format!("{name}{COUNTS}"), &[1], TensorType::F32, count);
        }
        Ok(writer.write_file(path)?)
    }
}

/// The sum of squares of each column, in f64: order and number of rows then leave no trace in the
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

/// For every named value the layers' matrices (and the output) that multiply it, each once: the
/// parts of a fused tensor have one name. Without experts: of these each has sums of its own, for
/// the rows that it is given.
pub(crate) fn readers(engine: &Engine, output: bool) -> HashMap<Tap, Vec<String>> {
    let model = engine.model();
    let mut tap_of = HashMap::new();
    let mut readers: HashMap<Tap, Vec<String>> = HashMap::new();
    for node in &model.graph.nodes {
        if let Op::MatMul { x, w } = node.op
            && let Some(tap) = tap_of.get(&x)
            && let Some(weight) = model.weights.matrices.get(w.0 as usize)
            && (weight.name.starts_with("blk.") || (output && weight.name == "output.weight"))
        {
            let names = readers.entry(*tap).or_default();
            if !names.contains(&weight.name) {
                names.push(weight.name.clone());
            }
        }
        if let Some(tap) = node.tap {
            tap_of.insert(node.out, tap);
        }
    }
    readers
}
