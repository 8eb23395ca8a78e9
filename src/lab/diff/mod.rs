//! Where two computations of the same text part ways.
//!
//! An [`Execution`] computes a model's forward pass and shows every named tensor: a backend, or the
//! f64 oracle. [`compare`] runs two of them side by side and holds each tensor against a bound that
//! is derived, op by op, from the errors measured in that op's inputs ([`bounds`]): so the first
//! tensor outside its bound is where something is wrong, and not where an error from far above has
//! grown. [`LogitComparison`] says how far two sets of logits are apart.

pub mod bounds;
mod execution;
mod llama_cpp;
mod lockstep;
mod logits;
mod near_tie;
mod probabilities;
mod recorded_routing;
mod reference;
mod routing;
mod subject;
pub mod suite;
mod tensors;
mod tolerance;

pub use execution::{
    After, Backend, Execution, Fault, Images, OracleExecution, PIXELS, Rounding, TapOut,
    TapOutSink, TowerBackend,
};
pub use llama_cpp::{LlamaCpp, stop_llama_cpp};
pub use lockstep::{Absent, Comparison, Options, TapReport, Verdict, compare, compare_with};
pub use logits::{LogitComparison, PositionTop, TopPair};
pub use near_tie::Tie;
pub use probabilities::TokenComparison;
pub use reference::{Against, Measured, Reference, mean_kl};
pub use routing::{Cause, Choice, LayerRouting, Routing};
pub use subject::{Input, Seen, Subject, Text};
pub use tensors::{TensorComparison, Tensors};
pub use tolerance::Tolerance;

/// Why two computations could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the two failed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// A tower failed, or the picture is none for it.
    #[error(transparent)]
    Vision(#[from] octavo_vision::Error),
    /// A picture for what reads text, or the other way round.
    #[error("{file}: expected {expected}")]
    Input {
        /// The model's file.
        file: String,
        /// What it takes.
        expected: &'static str,
    },
    /// The oracle failed.
    #[error(transparent)]
    Oracle(#[from] octavo_reference::Error),
    /// A weight that cannot be read for its bound.
    #[error("tensor {name}: {source}")]
    Weight {
        /// Its name in the file.
        name: String,
        /// What is wrong.
        source: octavo_quant::Error,
    },
    /// The two do not compute the same thing.
    #[error("{what}: {a} in the first, {b} in the second: expected the same")]
    Differ {
        /// What differs.
        what: &'static str,
        /// In the first.
        a: String,
        /// In the second.
        b: String,
    },
    /// A program of llama.cpp that is absent or fails.
    #[error("{program}: {what}")]
    Program {
        /// Its path.
        program: String,
        /// What happened.
        what: String,
    },
    /// Scoring a text against a base.
    #[error(transparent)]
    Eval(#[from] crate::eval::Error),
    /// An importance matrix, or the collection of ours.
    #[error(transparent)]
    Imatrix(#[from] crate::imatrix::Error),
    /// A reference without its text.
    #[error("the file of {kind} has no text: expected the one that it was made from")]
    NoText {
        /// The program that wrote it.
        kind: &'static str,
    },
    /// A reference of a text, for a tower.
    #[error(
        "a file of {kind}: expected what llama-mtmd-cli prints of a tower's tensors \
         (MTMD_DEBUG_GRAPH=1)"
    )]
    NoPicture {
        /// The program that wrote it.
        kind: &'static str,
    },
    /// A row of logits of another length.
    #[error("a row of logits: expected {expected} values, got {got}")]
    Row {
        /// The vocabulary.
        expected: usize,
        /// Found.
        got: usize,
    },
}
