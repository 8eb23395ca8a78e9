//! Why a base file was refused: one line each, with the file, what was expected and what was found.

use std::io;

/// Why a base file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It could not be read or written.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// It could not be replaced.
    #[error(transparent)]
    Replace(#[from] gguf_rs_lite::Error),
    /// It is something else.
    #[error(
        "{file}: expected a file of log-probabilities (it begins with _logits_), got something else"
    )]
    Magic {
        /// The file.
        file: String,
    },
    /// A number in the header makes no sense.
    #[error("{file}: {field}: expected {expected}, got {got}")]
    Header {
        /// The file.
        file: String,
        /// Which number.
        field: &'static str,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        got: i64,
    },
    /// The file is shorter or longer than its header says.
    #[error(
        "{file}: expected {expected} bytes for {n_chunks} chunks of {n_ctx} tokens, got {got}: \
         {} ({complete} chunks are complete)",
        if got < expected { "cut off" } else { "too long" }
    )]
    Size {
        /// The file.
        file: String,
        /// Bytes that the header implies.
        expected: u64,
        /// Bytes there are.
        got: u64,
        /// Chunks in the header.
        n_chunks: usize,
        /// Tokens of a chunk in the header.
        n_ctx: usize,
        /// Chunks with all their rows.
        complete: u64,
    },
    /// A token outside the vocabulary.
    #[error("{file}: token {index}: expected an id below {n_vocab}, got {got}")]
    Token {
        /// The file.
        file: String,
        /// Which one.
        index: u64,
        /// Size of the vocabulary.
        n_vocab: usize,
        /// The id.
        got: i32,
    },
    /// A row that does not hold log-probabilities.
    #[error(
        "{file}: chunk {chunk}, row {row}: expected log-probabilities, got scale {scale} and \
         lowest value {lowest}"
    )]
    Row {
        /// The file.
        file: String,
        /// Which chunk, from 0.
        chunk: usize,
        /// Which of its rows.
        row: usize,
        /// The row's scale.
        scale: f32,
        /// The row's lowest log-probability.
        lowest: f32,
    },
    /// More or fewer bytes than asked for were written.
    #[error("{file}: expected {expected} bytes of {what}, got {got}")]
    Length {
        /// The file.
        file: String,
        /// Of what.
        what: &'static str,
        /// Bytes that the header implies.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
}
