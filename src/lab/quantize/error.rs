//! Why a model could not be quantized.

use octavo_quant::TensorType;

/// One line each: file or tensor, what was expected, what was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading the model, or writing the new one.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// The importance matrix.
    #[error(transparent)]
    Importance(#[from] crate::imatrix::Error),
    /// A folder that would not load.
    #[error(transparent)]
    Folder(#[from] octavo_engine::hf::Error),
    /// A key that the rules need.
    #[error("{file}: key {key}: expected it to be there")]
    MissingKey {
        /// The model.
        file: String,
        /// The key.
        key: String,
    },
    /// Layers that cannot be left out.
    #[error("{file}: {reason}")]
    Prune {
        /// The model.
        file: String,
        /// What was expected, and what was found.
        reason: String,
    },
    /// A name without a layer.
    #[error(transparent)]
    NoLayer(#[from] super::mix::NoLayer),
    /// A type that we cannot write.
    #[error(
        "tensor {tensor}: writing {ty} is not supported (written are {})",
        writable()
    )]
    CannotWrite {
        /// The tensor.
        tensor: String,
        /// The type it would get.
        ty: TensorType,
    },
    /// Integers, or a type that cannot be read.
    #[error(
        "tensor {tensor}: {ty} cannot be converted to {to}: expected a float or quantized type"
    )]
    CannotRead {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
        /// What it would become.
        to: TensorType,
    },
    /// Rows that are no whole number of blocks, of a type without a stand-in.
    #[error(
        "tensor {tensor}: rows of {row} values do not fit {ty}: expected a multiple of {}",
        .ty.block_len()
    )]
    Row {
        /// The tensor.
        tensor: String,
        /// Length of a row.
        row: u64,
        /// The type it would get.
        ty: TensorType,
    },
    /// A tensor that is quantized already.
    #[error(
        "tensor {tensor} is {ty} already: expected F32, F16 or BF16, unless it may be quantized \
         again"
    )]
    Requantize {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
    },
    /// So few bits are useless without weights.
    #[error("tensor {tensor}: {ty} needs an importance matrix")]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// The type it would get.
        ty: TensorType,
    },
    /// An expression that nothing answers to.
    #[error(
        "{file}: {pattern:?} finds no tensor that can be quantized: expected a part of a name \
         such as {example:?}"
    )]
    NoMatch {
        /// The model.
        file: String,
        /// The expression.
        pattern: String,
        /// A name that there is.
        example: String,
    },
    /// The importance matrix was made for another model: its entry has a name that the model lacks.
    #[error(
        "{file}: entry {entry}: expected names of tensors of {model}, which has none of this name"
    )]
    ImportanceName {
        /// The importance matrix.
        file: String,
        /// The entry.
        entry: String,
        /// The model.
        model: String,
    },
    /// The importance matrix was made for another model: it knows nothing of a layer.
    #[error(
        "{file}: expected entries for each layer of {model}, got none for layer {layer} (such as \
         {tensor})"
    )]
    ImportanceLayer {
        /// The importance matrix.
        file: String,
        /// The model.
        model: String,
        /// The layer.
        layer: i64,
        /// A matrix of it.
        tensor: String,
    },
    /// The importance matrix was made for another model: rows have another length.
    #[error("{file}: entry {tensor}: expected {expected} weights for this model, got {got}")]
    ImportanceSize {
        /// The importance matrix.
        file: String,
        /// The tensor.
        tensor: String,
        /// Values in a row, times matrices.
        expected: u64,
        /// In the file.
        got: usize,
    },
    /// A NaN or an infinity in the source.
    #[error("tensor {tensor}: expected finite {ty} values, block {block} has NaN or infinity")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
        /// The block, from 0.
        block: u64,
    },
    /// A scale that overflowed.
    #[error(
        "tensor {tensor}: {ty} cannot hold its values: the scale of block {block} is NaN or \
         infinite"
    )]
    Overflow {
        /// The tensor.
        tensor: String,
        /// The type it would get.
        ty: TensorType,
        /// The block, from 0.
        block: u64,
    },
    /// Lengths that the quantizers refuse.
    #[error("tensor {tensor}: {source}")]
    Quant {
        /// The tensor.
        tensor: String,
        /// What they refuse.
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
