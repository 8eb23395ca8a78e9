//! Errors of quantizing a model.

use octavo_quant::TensorType;

/// One line each: file or tensor, expected, found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading the model or writing the new one failed.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// The importance matrix cannot be read.
    #[error(transparent)]
    Importance(#[from] crate::imatrix::Error),
    /// A folder that cannot be loaded.
    #[error(transparent)]
    Folder(#[from] octavo_hf::Error),
    /// The model lacks a key that the rules need.
    #[error("{file}: key {key}: expected it to be there")]
    MissingKey {
        /// Path of the model.
        file: String,
        /// Name of the key.
        key: String,
    },
    /// Layers that cannot be left out.
    #[error("{file}: {reason}")]
    Prune {
        /// Path of the model.
        file: String,
        /// Expected and found.
        reason: String,
    },
    /// A tensor name without a layer.
    #[error(transparent)]
    NoLayer(#[from] super::mix::NoLayer),
    /// A type that cannot be written.
    #[error(
        "tensor {tensor}: writing {ty} is not supported (written are {})",
        writable()
    )]
    CannotWrite {
        /// Name of the tensor.
        tensor: String,
        /// Type it would get.
        ty: TensorType,
    },
    /// A tensor of integers, or of a type that cannot be read.
    #[error(
        "tensor {tensor}: {ty} cannot be converted to {to}: expected a float or quantized type"
    )]
    CannotRead {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source.
        ty: TensorType,
        /// Target type.
        to: TensorType,
    },
    /// Rows that are not whole blocks, of a type without a fallback.
    #[error(
        "tensor {tensor}: rows of {row} values do not fit {ty}: expected a multiple of {}",
        .ty.block_len()
    )]
    Row {
        /// Name of the tensor.
        tensor: String,
        /// Length of a row.
        row: u64,
        /// Type it would get.
        ty: TensorType,
    },
    /// A tensor that is quantized already.
    #[error(
        "tensor {tensor} is {ty} already: expected F32, F16 or BF16, unless it may be quantized \
         again"
    )]
    Requantize {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source.
        ty: TensorType,
    },
    /// A type with too few bits to be usable without importance weights.
    #[error("tensor {tensor}: {ty} needs an importance matrix")]
    NeedsImportance {
        /// Name of the tensor.
        tensor: String,
        /// Type it would get.
        ty: TensorType,
    },
    /// A pattern that matches no tensor.
    #[error(
        "{file}: {pattern:?} finds no tensor that can be quantized: expected a part of a name \
         such as {example:?}"
    )]
    NoMatch {
        /// Path of the model.
        file: String,
        /// The pattern.
        pattern: String,
        /// An existing name.
        example: String,
    },
    /// The importance matrix was made for another model: it has an entry that the model lacks.
    #[error(
        "{file}: entry {entry}: expected names of tensors of {model}, which has none of this name"
    )]
    ImportanceName {
        /// Path of the importance matrix.
        file: String,
        /// Name of the entry.
        entry: String,
        /// Path of the model.
        model: String,
    },
    /// The importance matrix was made for another model: it has no entry for a layer.
    #[error(
        "{file}: expected entries for each layer of {model}, got none for layer {layer} (such as \
         {tensor})"
    )]
    ImportanceLayer {
        /// Path of the importance matrix.
        file: String,
        /// Path of the model.
        model: String,
        /// Layer number.
        layer: i64,
        /// A matrix of the layer.
        tensor: String,
    },
    /// The importance matrix was made for another model: its rows have another length.
    #[error("{file}: entry {tensor}: expected {expected} weights for this model, got {got}")]
    ImportanceSize {
        /// Path of the importance matrix.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Values in a row, times matrices.
        expected: u64,
        /// Values in the importance matrix.
        got: usize,
    },
    /// A NaN or an infinity in the source.
    #[error("tensor {tensor}: expected finite {ty} values, block {block} has NaN or infinity")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Type in the source.
        ty: TensorType,
        /// Block index, from 0.
        block: u64,
    },
    /// A block scale overflowed.
    #[error(
        "tensor {tensor}: {ty} cannot hold its values: the scale of block {block} is NaN or \
         infinite"
    )]
    Overflow {
        /// Name of the tensor.
        tensor: String,
        /// Type it would get.
        ty: TensorType,
        /// Block index, from 0.
        block: u64,
    },
    /// Lengths that the quantizers refuse.
    #[error("tensor {tensor}: {source}")]
    Quant {
        /// Name of the tensor.
        tensor: String,
        /// The quantizer's error.
        source: octavo_quant::Error,
    },
}

fn writable() -> String {
    let names: Vec<&str> = TensorType::all()
        .filter(|&t| octavo_quant::can_quantize(t))
        .map(|t| t.name())
        .collect();
    names.join(" ")
}
