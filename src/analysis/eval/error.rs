//! Errors of scoring a text.

use super::base;

/// Any failure of scoring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The base file cannot be read or written.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// The text cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::tokenizer::Error),
    /// Chunks too short to score any token.
    #[error("chunks of {0} tokens: expected at least 3, of which the first half is context")]
    Chunk(usize),
    /// Zero chunks were asked for.
    #[error("0 chunks: expected at least 1")]
    NoChunks,
    /// The text is too short.
    #[error(
        "text too short: expected at least {expected} tokens (two chunks of {n_ctx}), got {got}"
    )]
    TooShort {
        /// Tokens needed.
        expected: usize,
        /// Tokens per chunk.
        n_ctx: usize,
        /// Tokens in the text.
        got: usize,
    },
    /// A chunk does not fit in the session's context.
    #[error("chunks of {n_ctx} tokens: expected at most the context, {limit}")]
    Context {
        /// Tokens per chunk.
        n_ctx: usize,
        /// Context length of a session.
        limit: usize,
    },
    /// The base was made with another vocabulary.
    #[error(
        "{file}: made with another vocabulary: expected {expected} tokens as the model has, got \
         {got}"
    )]
    Vocabulary {
        /// Base file.
        file: String,
        /// Vocabulary size of the model.
        expected: usize,
        /// Vocabulary size of the base.
        got: usize,
    },
    /// The base was made from another text, or by another tokenizer.
    #[error(
        "{file}: made from another text: token {index}: expected {expected} as in the text given, \
         got {got}"
    )]
    OtherText {
        /// Base file.
        file: String,
        /// Index of the first token that differs.
        index: usize,
        /// Token of the text.
        expected: u32,
        /// Token of the base.
        got: u32,
    },
    /// The base was made from a longer text.
    #[error("{file}: made from another text: it has {got} tokens, the text given only {expected}")]
    LongerText {
        /// Base file.
        file: String,
        /// Number of tokens in the text.
        expected: usize,
        /// Number of tokens in the base.
        got: usize,
    },
    /// A small base cannot be read or written.
    #[error(transparent)]
    SmallBase(#[from] super::SmallError),
    /// A task that cannot be read or scored.
    #[error(transparent)]
    Task(#[from] super::TaskError),
    /// A continuation without a context.
    #[error("a continuation without a context: expected at least one token before it")]
    NoContext,
    /// A row of logits without log-probabilities.
    #[error(transparent)]
    Sample(octavo_engine::GenerationError),
    /// The observer asked to stop.
    #[error("cancelled")]
    Cancelled,
}
