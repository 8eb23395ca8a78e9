//! Errors of exchanging tensors with other files.

use octavo_quant::TensorType;

/// One line each: file or tensor, expected, found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A GGUF file cannot be read or written.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A tensor cannot be converted to its new type.
    #[error(transparent)]
    Convert(#[from] crate::quantize::Error),
    /// A safetensors file cannot be read.
    #[error("{file}: {source}")]
    Safetensors {
        /// Path of the file.
        file: String,
        /// Error of the safetensors reader.
        source: safetensors::SafeTensorError,
    },
    /// Not a NumPy file, or one of a kind that is not supported.
    #[error("{file}: expected {expected}, got {got}")]
    Npy {
        /// Path of the file.
        file: String,
        /// Expected content.
        expected: &'static str,
        /// Content found.
        got: String,
    },
    /// A type that arrays cannot have, nor be converted to.
    #[error("{file}: tensor {tensor}: expected {expected}, got {got}")]
    Tensor {
        /// Path of the file with the tensor.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Expected type or shape.
        expected: String,
        /// Type or shape found.
        got: String,
    },
    /// No tensor to write.
    #[error("{file}: expected {expected}, got {got} tensors")]
    Count {
        /// Path of the file with the tensors.
        file: String,
        /// Expected number.
        expected: &'static str,
        /// Number found.
        got: usize,
    },
    /// A type that is not written without an importance matrix.
    #[error("tensor {tensor}: {ty} needs an importance matrix: expected another type")]
    NeedsImportance {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor in the model.
        ty: TensorType,
    },
    /// Reading or writing failed.
    #[error("{file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// Error of the system.
        source: std::io::Error,
    },
}
