//! One error type for the crate; every variant carries what is needed to find the fault.

use std::path::PathBuf;

/// What can go wrong while reading a model, a golden or a results file.
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
    /// `general.architecture` names a model that the oracle does not define.
    #[error("{file}: general.architecture: expected one of {expected}; got {got:?}")]
    Architecture {
        /// Model file.
        file: String,
        /// The architectures that it defines.
        expected: String,
        /// The architecture found.
        got: String,
    },
    /// A file that is no reference.
    #[error(
        "{file}: not a reference but {got}: expected the file of llama-results, llama-debug \
         --save-logits, llama-perplexity --kl-divergence-base, llama-completion --prompt-cache, \
         llama-imatrix, the text of llama-eval-callback, a completion of llama-server \
         with probabilities, or a golden"
    )]
    NoReference {
        /// The file.
        file: String,
        /// What it seems to be.
        got: String,
    },
    /// A field of another program's file.
    #[error("{file}: {field}: expected {expected}, got {got}")]
    Field {
        /// The file.
        file: String,
        /// What is wrong.
        field: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A key that the forward pass needs is absent.
    #[error("{file}: key {key:?}: expected {expected}, got nothing")]
    MissingKey {
        /// Model file.
        file: String,
        /// Metadata key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A key has a value that the forward pass cannot use.
    #[error("{file}: key {key:?}: expected {expected}, got {got}")]
    BadKey {
        /// Model file.
        file: String,
        /// Metadata key.
        key: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        got: String,
    },
    /// A required tensor is absent.
    #[error("{file}: tensor {tensor:?}: expected dims {expected}, got no such tensor")]
    MissingTensor {
        /// Where it was looked for.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The dims it should have, as [`Error::Dims`] has them.
        expected: String,
    },
    /// A tensor has other dims than the hyperparameters imply.
    #[error("{file}: tensor {tensor:?}: expected dims {expected}, got {got:?}")]
    Dims {
        /// Where the tensor is.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The dims implied, innermost first for GGUF, outermost first for safetensors; a name
        /// where any size will do.
        expected: String,
        /// The dims found, in the same order.
        got: Vec<u64>,
    },
    /// A tensor that the forward pass would ignore: the result would not be this model's.
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
    /// A text longer than the positions that have embeddings.
    #[error("expected at most {expected} tokens, as many as positions have embeddings; got {got}")]
    Positions {
        /// Positions.
        expected: usize,
        /// Tokens.
        got: usize,
    },
    /// An image that a model cannot take.
    #[error("image: expected {expected}, got {got}")]
    Image {
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// What was written into the tap `ffn_moe_topk` names no expert.
    #[error("ffn_moe_topk-{layer}: expected experts below {count}, got {got}")]
    Expert {
        /// The layer.
        layer: usize,
        /// The experts of a layer.
        count: usize,
        /// What stands there.
        got: f64,
    },
    /// A token id outside the vocabulary.
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
        /// The system's error.
        source: std::io::Error,
    },
    /// A golden is not a safetensors file.
    #[error("{file}: expected a safetensors file: {source}")]
    Safetensors {
        /// The golden.
        file: String,
        /// The reader's error.
        source: safetensors::SafeTensorError,
    },
    /// A golden's summary is not the JSON it should be.
    #[error("{file}: expected a summary of a golden: {source}")]
    Summary {
        /// The file.
        file: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A tensor of a golden or a results file has another element type.
    #[error("{file}: tensor {tensor:?}: expected type {expected}, got {got}")]
    ElementType {
        /// The file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The type it should have.
        expected: &'static str,
        /// The type it has.
        got: String,
    },
    /// A tensor of a golden or a results file holds a value that makes no sense.
    #[error("{file}: tensor {tensor:?}, element {index}: expected {expected}, got {got}")]
    Element {
        /// The file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Which element.
        index: usize,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Two arrays that should be compared element by element have other lengths than they should.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Which array.
        what: &'static str,
        /// Length implied by the other arguments.
        expected: usize,
        /// Length found.
        got: usize,
    },
}
