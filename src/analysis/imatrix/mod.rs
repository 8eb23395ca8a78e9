//! Importance matrices: collecting them, and their files.
//!
//! An importance matrix has, for each matrix and each of its input channels, the sum of the squared
//! input over the tokens of a text. Each expert of an MoE layer has its own sums, over the tokens
//! routed to it. Quantizers weigh the error of a weight with it. The file format is llama.cpp's.

mod collect;
mod file;
mod readers;
mod sums;

use gguf_rs_lite::TensorType;

pub use collect::{Collector, Options};
pub use file::Importance;
pub(crate) use readers::readers;
pub use sums::{ENOUGH_TOKENS, ExpertTokens, Sums};

const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
/// Suffix of a matrix' name for its sums of squares.
const SUMS: &str = ".in_sum2";
/// Suffix of a matrix' name for its number of summed tokens, per expert if it has experts.
const COUNTS: &str = ".counts";

/// Reasons an importance matrix cannot be read or collected.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// The GGUF container is invalid.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// Running the model failed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The file cannot be read.
    #[error("{file}: cannot read it: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    /// A number that is invalid in an importance matrix.
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
    /// The file has no entries.
    #[error("{file}: expected entries NAME.in_sum2 and NAME.counts, it has none")]
    Empty { file: String },
    /// Sums without counts, or counts without sums.
    #[error("{file}: {name}: expected both {name}{SUMS} and {name}{COUNTS}")]
    Unpaired { file: String, name: String },
    /// Sums or counts that are not F32.
    #[error("{file}: {name}: expected F32, got {got}")]
    Type {
        file: String,
        name: String,
        got: TensorType,
    },
    /// The number of sums is no multiple of the number of counts.
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
    /// Sums of different shape cannot be added.
    #[error("{name}: expected sums of the same shape as those of the chunks before")]
    Shapes { name: String },
    /// The text is too short.
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
