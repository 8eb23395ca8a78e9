//! Errors of adapter and control vector files.

/// Reason why a file is not an adapter or control vector for a model. Every message is one line
/// with the file and the key or tensor.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum AdapterError {
    /// An invalid GGUF file.
    #[error("{0}")]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A key says that the file is something else, or for another model.
    #[error("{file}: {key}: expected {expected}, got {got}")]
    Key {
        file: String,
        key: &'static str,
        expected: String,
        got: String,
    },
    /// The file has no tensors.
    #[error("{file}: no tensors: expected at least one {expected}")]
    Empty {
        file: String,
        expected: &'static str,
    },
    /// A tensor whose name does not belong there.
    #[error("{file}: tensor {tensor}: expected a name that ends with {expected}")]
    Name {
        file: String,
        tensor: String,
        expected: &'static str,
    },
    /// One matrix of a pair is missing.
    #[error("{file}: tensor {tensor}: the other matrix of the pair, {missing}, is missing")]
    Half {
        file: String,
        tensor: String,
        missing: String,
    },
    /// The model lacks the tensor.
    #[error("{file}: tensor {tensor}: {model} has no tensor {name}")]
    NoTensor {
        file: String,
        tensor: String,
        model: String,
        name: String,
    },
    /// The model uses the tensor in another way than in a product.
    #[error("{file}: tensor {tensor}: adapters do not apply to {name}: {reason}")]
    NotAdaptable {
        file: String,
        tensor: String,
        name: String,
        reason: &'static str,
    },
    /// A tensor of another shape.
    #[error("{file}: tensor {tensor}: expected shape {expected}, got {got:?}")]
    Shape {
        file: String,
        tensor: String,
        expected: String,
        got: Vec<u64>,
    },
    /// A tensor of a type that cannot be multiplied.
    #[error("{file}: tensor {tensor}: type {ty}: expected {expected}")]
    Type {
        file: String,
        tensor: String,
        ty: gguf_rs_lite::TensorType,
        expected: &'static str,
    },
    /// A value that is not finite.
    #[error("{file}: tensor {tensor}: value {index} is {value}: expected a finite number")]
    NotFinite {
        file: String,
        tensor: String,
        index: usize,
        value: f32,
    },
    /// A tensor of a control vector that is of no layer.
    #[error("{file}: tensor {tensor}: expected direction.N with N from 1 to {last}")]
    Direction {
        file: String,
        tensor: String,
        last: usize,
    },
    /// The model's layers cannot take a control vector.
    #[error("{file}: {arch} models take no control vectors: expected a model that generates text")]
    NoLayers { file: String, arch: &'static str },
}
