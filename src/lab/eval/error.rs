//! Why a text could not be scored.

use super::base;

/// Any failure of a scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The base file.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// The text cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::tokenizer::Error),
    /// Chunks that score nothing.
    #[error("chunks of {0} tokens: expected at least 3, of which the first half is context")]
    Chunk(usize),
    /// No chunk at all was asked for.
    #[error("0 chunks: expected at least 1")]
    NoChunks,
    /// Too little text.
    #[error(
        "text too short: expected at least {expected} tokens (two chunks of {n_ctx}), got {got}"
    )]
    TooShort {
        /// Tokens needed.
        expected: usize,
        /// Tokens of a chunk.
        n_ctx: usize,
        /// Tokens of the text.
        got: usize,
    },
    /// Chunks do not fit the session.
    #[error("chunks of {n_ctx} tokens: expected at most the context, {limit}")]
    Context {
        /// Tokens of a chunk.
        n_ctx: usize,
        /// Positions of a session.
        limit: usize,
    },
    /// The base was made with another vocabulary.
    #[error(
        "{file}: made with another vocabulary: expected {expected} tokens as the model has, got \
         {got}"
    )]
    Vocabulary {
        /// The base.
        file: String,
        /// The model's.
        expected: usize,
        /// The base's.
        got: usize,
    },
    /// The base was made from another text, or by another tokenizer.
    #[error(
        "{file}: made from another text: token {index}: expected {expected} as in the text given, \
         got {got}"
    )]
    OtherText {
        /// The base.
        file: String,
        /// The first token that differs.
        index: usize,
        /// The text's.
        expected: u32,
        /// The base's.
        got: u32,
    },
    /// The base was made from a longer text.
    #[error("{file}: made from another text: it has {got} tokens, the text given only {expected}")]
    LongerText {
        /// The base.
        file: String,
        /// The text's tokens.
        expected: usize,
        /// The base's.
        got: usize,
    },
    /// The observer asked to stop.
    #[error("cancelled")]
    Cancelled,
}
