//! Errors of reading and writing folders.

/// Why a folder cannot be used: one line that starts with the file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the message above them says
pub enum Error {
    #[error("{file}: {source}")]
    Io {
        file: String,
        source: std::io::Error,
    },
    #[error("{file}: missing: expected {expected}")]
    Missing {
        file: String,
        expected: &'static str,
    },
    #[error("{file}: {got} bytes, expected at most {most}")]
    TooLarge { file: String, most: u64, got: u64 },
    #[error("{file}: not JSON: {source}")]
    Json {
        file: String,
        source: serde_json::Error,
    },
    #[error("{file}: not a SentencePiece model: {error}")]
    SentencePiece { file: String, error: String },
    #[error("{file}: {key}: expected {expected}, got {got}")]
    Value {
        file: String,
        key: String,
        expected: String,
        got: String,
    },
    #[error("{file}: not a sound safetensors file: {source}")]
    Safetensors {
        file: String,
        source: safetensors::SafeTensorError,
    },
    #[error("{file}: tensor {tensor}: expected {expected}, got {got}")]
    Tensor {
        file: String,
        tensor: String,
        expected: String,
        got: String,
    },
    #[error("{file}: is there already")]
    Exists { file: String },
    #[error("{error}")]
    Model { error: String },
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
}
