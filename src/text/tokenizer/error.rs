//! Errors of a tokenizer in a file, or of a text.

/// An error of the tokenizer. Every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A required key is missing.
    #[error("{file}: metadata key {key} is missing")]
    MissingKey {
        /// Name of the file.
        file: String,
        /// Missing key.
        key: &'static str,
    },
    /// A tokenizer model that is not implemented.
    #[error(
        "{file}: tokenizer model '{model}' is not supported, expected 'gpt2' (BPE), 'llama' \
         (SPM), 'bert' (WPM), 't5' (Unigram) or 'rwkv'"
    )]
    UnsupportedModel {
        /// Name of the file.
        file: String,
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// An unknown pre-tokenizer.
    #[error("{file}: unknown pre-tokenizer '{pre}' in tokenizer.ggml.pre")]
    UnknownPre {
        /// Name of the file.
        file: String,
        /// Value of `tokenizer.ggml.pre`.
        pre: String,
    },
    /// An array of the wrong element type.
    #[error("{file}: metadata key {key}: expected an array of {expected}, got {got}")]
    ArrayType {
        /// Name of the file.
        file: String,
        /// Key of the array.
        key: &'static str,
        /// Accepted element types.
        expected: &'static str,
        /// Element type found.
        got: String,
    },
    /// An array without one element per token.
    #[error(
        "{file}: metadata key {key}: expected {expected} elements (one for each token), got {got}"
    )]
    ArrayLength {
        /// Name of the file.
        file: String,
        /// Key of the array.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Number of elements.
        got: usize,
    },
    /// More tokens than ids can address.
    #[error("{file}: {got} tokens, expected 1 to {limit}")]
    TokenCount {
        /// Name of the file.
        file: String,
        /// Number of tokens.
        got: usize,
        /// Largest number accepted.
        limit: usize,
    },
    /// A byte token whose text is not that of a byte.
    #[error(
        "{file}: tokenizer.ggml.tokens: byte token {id}: expected a text of the form <0x0A>, \
         got '{text}'"
    )]
    ByteToken {
        /// Name of the file.
        file: String,
        /// Token id.
        id: u32,
        /// Token text, made printable.
        text: String,
    },
    /// A token of RWKV's with an escape that has no end.
    #[error(
        "{file}: tokenizer.ggml.tokens: token {id}: expected two hexadecimal digits after each \\x \
         and a character after each \\, got '{text}'"
    )]
    Escape {
        /// Name of the file.
        file: String,
        /// Token id.
        id: u32,
        /// Token text, made printable.
        text: String,
    },
    /// A score that is NaN.
    #[error("{file}: metadata key tokenizer.ggml.scores: the score of token {id} is not a number")]
    NanScore {
        /// Name of the file.
        file: String,
        /// Token id.
        id: u32,
    },
    /// A map of characters that points outside of itself.
    #[error(
        "{file}: metadata key tokenizer.ggml.precompiled_charsmap: expected an array of 32-bit \
         words and the texts that it points to, got a damaged one"
    )]
    Charsmap {
        /// Name of the file.
        file: String,
    },
    /// A special token id outside the vocabulary.
    #[error("{file}: metadata key {key}: expected a token id below {n_vocab}, got {got}")]
    SpecialId {
        /// Name of the file.
        file: String,
        /// Key of the special token.
        key: &'static str,
        /// Number of tokens.
        n_vocab: usize,
        /// Id found.
        got: u32,
    },
    /// The text is longer than the tokenizer accepts.
    #[error("the text has {got} bytes, expected at most {limit}")]
    TextTooLong {
        /// Bytes in the text.
        got: usize,
        /// Largest number of bytes accepted.
        limit: usize,
    },
    /// A byte for which the vocabulary has no token.
    #[error("{file}: the vocabulary has no token for byte 0x{byte:02X} and no unknown token")]
    NoByteToken {
        /// Name of the file.
        file: String,
        /// Byte without a token.
        byte: u8,
    },
}

/// Formats a token's text for a message: lossy, escaped, truncated.
pub(super) fn printable(text: &[u8]) -> String {
    const LONGEST: usize = 64;
    let head = text.get(..LONGEST).unwrap_or(text);
    let dots = if text.len() > LONGEST { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(head).escape_debug())
}
