//! Errors of base files: one line each, with the file, the expected and the found value.

use std::io;

/// Reason why a base file was refused.
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
    /// It has another format.
    #[error(
        "{file}: expected a file of log-probabilities (it begins with _logits_), got something else"
    )]
    Magic {
        /// The file.
        file: String,
    },
    /// A number in the header is invalid.
    #[error("{file}: {field}: expected {expected}, got {got}")]
    Header {
        /// The file.
        file: String,
        /// Name of the field.
        field: &'static str,
        /// Allowed values.
        expected: &'static str,
        /// Value found.
        got: i64,
    },
    /// The file's length contradicts its header.
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
        /// Bytes of the file.
        got: u64,
        /// Chunks in the header.
        n_chunks: usize,
        /// Tokens per chunk in the header.
        n_ctx: usize,
        /// Number of chunks with all their rows.
        complete: u64,
    },
    /// A token is outside the vocabulary.
    #[error("{file}: token {index}: expected an id below {n_vocab}, got {got}")]
    Token {
        /// The file.
        file: String,
        /// Index of the token.
        index: u64,
        /// Size of the vocabulary.
        n_vocab: usize,
        /// The id.
        got: i32,
    },
    /// A row does not hold log-probabilities.
    #[error(
        "{file}: chunk {chunk}, row {row}: expected log-probabilities, got scale {scale} and \
         lowest value {lowest}"
    )]
    Row {
        /// The file.
        file: String,
        /// Index of the chunk.
        chunk: usize,
        /// Index of the row in the chunk.
        row: usize,
        /// Scale of the row.
        scale: f32,
        /// Lowest log-probability of the row.
        lowest: f32,
    },
    /// The number of bytes written differs from the header's.
    #[error("{file}: expected {expected} bytes of {what}, got {got}")]
    Length {
        /// The file.
        file: String,
        /// Part of the file.
        what: &'static str,
        /// Bytes that the header implies.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
}
