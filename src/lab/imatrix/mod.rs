//! Importance matrices: what makes them, and the files that keep them.
//!
//! For each matrix and each of its inputs: the sum, over the tokens of a text, of the input
//! squared. Each expert of a mixture has sums of its own, over the tokens that it was given.
//! Quantizers weigh the error of a weight with it. The files are llama.cpp's.

mod collect;
mod file;
mod readers;
mod sums;

use gguf_rs_lite::TensorType;

pub use collect::{Collector, Options};
pub use file::Importance;
pub(crate) use readers::readers;
pub use sums::Sums;

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
/// After a matrix' name: the sums of squares.
const SUMS: &str = ".in_sum2";
/// After a matrix' name: how many tokens were summed, for each expert where it has some.
const COUNTS: &str = ".counts";

/// Why an importance matrix cannot be read or made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// The container.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// Running the model.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The file cannot be read.
    #[error("{file}: cannot read it: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    /// A number that no importance matrix has.
    #[error("{file}: not an importance matrix: {what} is {got}")]
    NotAnImatrix {
        file: String,
        what: &'static str,
        got: i32,
    },
    /// The file ends too early.
    #[error("{file}: truncated: {what} needs {needed} bytes, the file has {left} left")]
    Truncated {
        file: String,
        what: &'static str,
        needed: usize,
        left: usize,
    },
    /// A GGUF file of another kind.
    #[error("{file}: key {key}: expected it to be there (is this an importance matrix?)")]
    MissingKey { file: String, key: &'static str },
    /// No entries.
    #[error("{file}: expected entries NAME.in_sum2 and NAME.counts, it has none")]
    Empty { file: String },
    /// One half of an entry.
    #[error("{file}: {name}: expected both {name}{SUMS} and {name}{COUNTS}")]
    Unpaired { file: String, name: String },
    /// Sums or counts that are not F32.
    #[error("{file}: {name}: expected F32, got {got}")]
    Type {
        file: String,
        name: String,
        got: TensorType,
    },
    /// Numbers of sums and counts that do not fit.
    #[error(
        "{file}: {name}: expected a whole number of sums for each count, got {sums} sums and \
         {counts} counts"
    )]
    Counts {
        file: String,
        name: String,
        sums: usize,
        counts: usize,
    },
    /// A weight that is NaN or infinite.
    #[error("{file}: {name}: expected finite weights, weight {index} is {got}")]
    NotFinite {
        file: String,
        name: String,
        index: usize,
        got: f32,
    },
    /// Sums that cannot be added.
    #[error("{name}: expected sums of the same shape as those of the chunks before")]
    Shapes { name: String },
    /// A text too short for one chunk.
    #[error("the text has {got} tokens: expected at least {expected} (two chunks of {chunk})")]
    TooShort {
        got: usize,
        expected: usize,
        chunk: usize,
    },
    /// A chunk that does not fit the context.
    #[error("-c {chunk}: expected from 2 to the context of {n_ctx} tokens")]
    Chunk { chunk: usize, n_ctx: usize },
}
