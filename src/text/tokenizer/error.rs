//! What can be wrong with a tokenizer in a file, or with a text.

/// An error of the tokenizer. Every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A key without which there is no tokenizer.
    #[error("{file}: metadata key {key} is missing")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
    },
    /// A tokenizer model that is not implemented.
    #[error(
        "{file}: tokenizer model '{model}' is not supported, expected 'gpt2' (BPE), 'llama' \
         (SPM) or 'bert' (WPM)"
    )]
    UnsupportedModel {
        /// The file.
        file: String,
        /// Its `tokenizer.ggml.model`.
        model: String,
    },
    /// A pre-tokenizer nobody knows.
    #[error("{file}: unknown pre-tokenizer '{pre}' in tokenizer.ggml.pre")]
    UnknownPre {
        /// The file.
        file: String,
        /// Its `tokenizer.ggml.pre`.
        pre: String,
    },
    /// An array of another element type.
    #[error("{file}: metadata key {key}: expected an array of {expected}, got {got}")]
    ArrayType {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// Element types that would do.
        expected: &'static str,
        /// The element type found.
        got: String,
    },
    /// An array that must run parallel to the tokens and does not.
    #[error(
        "{file}: metadata key {key}: expected {expected} elements (one for each token), got {got}"
    )]
    ArrayLength {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of elements.
        got: usize,
    },
    /// A token count that no id can address.
    #[error("{file}: {got} tokens, expected 1 to {limit}")]
    TokenCount {
        /// The file.
        file: String,
        /// Number of tokens.
        got: usize,
        /// The most there may be.
        limit: usize,
    },
    /// A byte token whose text names no byte.
    #[error(
        "{file}: tokenizer.ggml.tokens: byte token {id}: expected a text of the form <0x0A>, \
         got '{text}'"
    )]
    ByteToken {
        /// The file.
        file: String,
        /// The token.
        id: u32,
        /// Its text, made printable.
        text: String,
    },
    /// A score that cannot be ordered.
    #[error("{file}: metadata key tokenizer.ggml.scores: the score of token {id} is not a number")]
    NanScore {
        /// The file.
        file: String,
        /// The token.
        id: u32,
    },
    /// A special token id outside the vocabulary.
    #[error("{file}: metadata key {key}: expected a token id below {n_vocab}, got {got}")]
    SpecialId {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// Number of tokens.
        n_vocab: usize,
        /// The id found.
        got: u32,
    },
    /// A text longer than this tokenizer accepts.
    #[error("the text has {got} bytes, expected at most {limit}")]
    TextTooLong {
        /// Bytes in the text.
        got: usize,
        /// The most there may be.
        limit: usize,
    },
    /// A byte for which an SPM vocabulary has no token at all.
    #[error("{file}: the vocabulary has no token for byte 0x{byte:02X} and no unknown token")]
    NoByteToken {
        /// The file.
        file: String,
        /// The byte.
        byte: u8,
    },
}

/// A token's text for a message: lossy, escaped, cut short.
pub(super) fn printable(text: &[u8]) -> String {
    const LONGEST: usize = 64;
    let head = text.get(..LONGEST).unwrap_or(text);
    let dots = if text.len() > LONGEST { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(head).escape_debug())
}
