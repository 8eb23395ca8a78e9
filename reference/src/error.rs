//! One error type for the crate; every variant carries what is needed to find the fault.

use std::path::PathBuf;

/// Error while reading a model, a golden or a results file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GGUF reader or writer refused.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// The scalar dequantizer refused a tensor's bytes.
    #[error("{file}: tensor {tensor:?}: {source}")]
    Dequantize {
        /// Model file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The dequantizer's own error.
        source: octavo_quant::Error,
    },
    /// `general.architecture` names a model that the oracle does not implement.
    #[error("{file}: general.architecture: expected one of {expected}; got {got:?}")]
    Architecture {
        /// Model file.
        file: String,
        /// Supported architectures.
        expected: String,
        /// Architecture found.
        got: String,
    },
    /// The file is not a reference.
    #[error(
        "{file}: not a reference but {got}: expected the file of llama-results, llama-debug \
         --save-logits, llama-perplexity --kl-divergence-base, llama-completion --prompt-cache, \
         llama-imatrix, the text of llama-eval-callback, a completion of llama-server \
         with probabilities, or a golden"
    )]
    NoReference {
        /// The file.
        file: String,
        /// Description of its apparent content.
        got: String,
    },
    /// A field of another program's file is invalid.
    #[error("{file}: {field}: expected {expected}, got {got}")]
    Field {
        /// The file.
        file: String,
        /// Field.
        field: String,
        /// Expected value.
        expected: String,
        /// Value found.
        got: String,
    },
    /// A key that the forward pass needs is absent.
    #[error("{file}: key {key:?}: expected {expected}, got nothing")]
    MissingKey {
        /// Model file.
        file: String,
        /// Metadata key.
        key: String,
        /// Expected value.
        expected: &'static str,
    },
    /// A key has a value that the forward pass cannot use.
    #[error("{file}: key {key:?}: expected {expected}, got {got}")]
    BadKey {
        /// Model file.
        file: String,
        /// Metadata key.
        key: String,
        /// Expected value.
        expected: String,
        /// Value found.
        got: String,
    },
    /// A required tensor is absent.
    #[error("{file}: tensor {tensor:?}: expected dims {expected}, got no such tensor")]
    MissingTensor {
        /// File that was searched.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Expected dims, in the order of [`Error::Dims`].
        expected: String,
    },
    /// A tensor's dims differ from those the hyperparameters imply.
    #[error("{file}: tensor {tensor:?}: expected dims {expected}, got {got:?}")]
    Dims {
        /// File with the tensor.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Expected dims, innermost first for GGUF, outermost first for safetensors; a name where
        /// any size is allowed.
        expected: String,
        /// Dims found, in the same order.
        got: Vec<u64>,
    },
    /// The file has a tensor that the forward pass would ignore: the result would not be this
    /// model's.
    #[error(
        "{file}: tensor {tensor:?}: expected only tensors that the {architecture} oracle applies, \
         got this one"
    )]
    UnusedTensor {
        /// Model file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The model's architecture.
        architecture: &'static str,
    },
    /// A text is longer than the table of position embeddings.
    #[error("expected at most {expected} tokens, as many as positions have embeddings; got {got}")]
    Positions {
        /// Number of positions.
        expected: usize,
        /// Number of tokens.
        got: usize,
    },
    /// A model cannot take an image.
    #[error("image: expected {expected}, got {got}")]
    Image {
        /// Expected property.
        expected: String,
        /// Property found.
        got: String,
    },
    /// A value written to the tap `ffn_moe_topk` is not an expert's index.
    #[error("ffn_moe_topk-{layer}: expected experts below {count}, got {got}")]
    Expert {
        /// Layer.
        layer: usize,
        /// Number of experts in a layer.
        count: usize,
        /// Value found.
        got: f64,
    },
    /// A token id is outside the vocabulary.
    #[error("token {index}: expected an id below {n_vocab}, got {id}")]
    Token {
        /// Position in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// A golden is not a safetensors file.
    #[error("{file}: expected a safetensors file: {source}")]
    Safetensors {
        /// The golden.
        file: String,
        /// Reader's error.
        source: safetensors::SafeTensorError,
    },
    /// A golden's summary is not the expected JSON.
    #[error("{file}: expected a summary of a golden: {source}")]
    Summary {
        /// The file.
        file: String,
        /// Parser's error.
        source: serde_json::Error,
    },
    /// A tensor of a golden or a results file has the wrong element type.
    #[error("{file}: tensor {tensor:?}: expected type {expected}, got {got}")]
    ElementType {
        /// The file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Expected type.
        expected: &'static str,
        /// Type found.
        got: String,
    },
    /// A tensor of a golden or a results file has an invalid value.
    #[error("{file}: tensor {tensor:?}, element {index}: expected {expected}, got {got}")]
    Element {
        /// The file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Index of the element.
        index: usize,
        /// Expected value.
        expected: String,
        /// Value found.
        got: String,
    },
    /// Arrays to compare element by element have different lengths.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Name of the array.
        what: &'static str,
        /// Length the other arguments imply.
        expected: usize,
        /// Length found.
        got: usize,
    },
}
