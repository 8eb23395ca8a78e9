//! Finds where two computations of the same text diverge.
//!
//! An [`Execution`] computes a model's forward pass and reports every named tensor: a backend, or
//! the f64 oracle. [`compare`] runs two of them side by side and holds each tensor against a bound
//! that is derived, op by op, from the errors measured in that op's inputs ([`bounds`]): so the
//! first tensor outside its bound is where something is wrong, and not where an error from far
//! above has grown. [`LogitComparison`] measures the distance between two sets of logits.

pub mod bounds;
mod execution;
mod llama_cpp;
mod loaded;
mod lockstep;
mod logits;
mod measured;
mod near_tie;
mod oracle_images;
mod probabilities;
mod recorded_routing;
mod reference;
mod routing;
pub mod suite;
mod target;
mod tensor_comparison;
mod tensors;
mod tolerance;

pub use execution::{
    BackendExecution, Execution, Fault, IMAGE_EMBEDDINGS, OracleExecution, PIXELS, Rounding,
    TapAction, TapOut, TapOutSink, TowerBackend,
};
pub use llama_cpp::{LlamaCpp, stop_llama_cpp};
pub use loaded::{EngineExecution, RecordedExecution, RecordedTensor};
pub use lockstep::{Absent, Comparison, Options, TapReport, Verdict, compare, compare_with};
pub use logits::{LogitComparison, PositionTop, TopPair};
pub use measured::{Measured, mean_kl};
pub use near_tie::Tie;
pub use oracle_images::Images;
pub use probabilities::TokenComparison;
pub use reference::{Reference, ReferenceValues};
pub use routing::{Cause, Choice, LayerRouting, Routing};
pub use target::{ImageInput, Input, Target, Text};
pub use tensor_comparison::TensorComparison;
pub use tensors::Tensors;
pub use tolerance::Tolerance;

/// Reasons two computations could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed in one of the two executions.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The vision tower failed, or cannot take the image.
    #[error(transparent)]
    Vision(#[from] octavo_vision::Error),
    /// An image for a text model, or a text for a tower.
    #[error("{file}: expected {expected}")]
    Input {
        /// The model's file.
        file: String,
        /// Kind of input that the model takes.
        expected: &'static str,
    },
    /// The oracle failed.
    #[error(transparent)]
    Oracle(#[from] octavo_reference::Error),
    /// A weight that cannot be dequantized for its bound.
    #[error("tensor {name}: {source}")]
    Weight {
        /// Tensor name in the file.
        name: String,
        /// Dequantization error.
        source: octavo_quant::Error,
    },
    /// The two files do not compute the same thing.
    #[error("{what}: {a} in the first, {b} in the second: expected the same")]
    Differ {
        /// Property that differs.
        what: &'static str,
        /// Value in the first.
        a: String,
        /// Value in the second.
        b: String,
    },
    /// A llama.cpp program that is missing or fails.
    #[error("{program}: {what}")]
    Program {
        /// Path of the program.
        program: String,
        /// Description of the failure.
        what: String,
    },
    /// Scoring a text against base logits failed.
    #[error(transparent)]
    Eval(#[from] crate::eval::Error),
    /// An importance matrix cannot be read, or ours not collected.
    #[error(transparent)]
    Imatrix(#[from] crate::imatrix::Error),
    /// A reference that contains no text.
    #[error("the file of {kind} has no text: expected the one that it was made from")]
    NoText {
        /// Program that wrote the reference.
        kind: &'static str,
    },
    /// A reference of a text, given for a vision tower.
    #[error(
        "a file of {kind}: expected what llama-mtmd-cli prints of a tower's tensors \
         (MTMD_DEBUG_GRAPH=1)"
    )]
    NoImage {
        /// Program that wrote the reference.
        kind: &'static str,
    },
    /// An array whose name no tensor of the model has.
    #[error("{file}: {name}: expected the name of a tensor of the model, such as l_out-0")]
    NoTap {
        /// Origin of the arrays.
        file: String,
        /// Name of the array.
        name: String,
    },
    /// A recording without arrays.
    #[error("{file}: no arrays: expected at least one tensor of the model")]
    NoTensors {
        /// Origin of the arrays.
        file: String,
    },
    /// A row of logits of the wrong length.
    #[error("a row of logits: expected {expected} values, got {got}")]
    Row {
        /// Vocabulary size.
        expected: usize,
        /// Length found.
        got: usize,
    },
}
