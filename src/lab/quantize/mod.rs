//! Quantizes a model file: llama-quantize's mixes, metadata and bytes.
//!
//! [`Plan::new`] decides what becomes of every tensor and reads no weights; [`Plan::write`] does
//! it, a part of a tensor at a time. Tensor data is that of llama-quantize bit for bit, whatever
//! the number of threads: rows are independent, and the quantizers are `octavo-quant`'s.

mod convert;
mod error;
mod groups;
pub mod mix;
mod plan;
mod prune;
mod target;

use gguf_rs_lite::TensorInfo;
use octavo_quant::TensorType;

pub use convert::convert;
pub use error::Error;
use mix::Choices;
pub use plan::Plan;
pub use prune::Prune;
pub use target::{Target, UnknownTarget};

/// How to quantize.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of file.
    pub target: Target,
    /// What the user chose for single tensors.
    pub choices: Choices,
    /// Convert tensors that are quantized already.
    pub allow_requantize: bool,
    /// Threads that convert.
    pub threads: usize,
}

impl Options {
    /// The target's own mix, on all CPUs.
    pub fn new(target: Target) -> Options {
        let threads = octavo_engine::default_threads();
        Options {
            target,
            choices: Choices::default(),
            allow_requantize: false,
            threads,
        }
    }
}

/// What becomes of one tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// The tensor as it is.
    pub tensor: TensorInfo,
    /// The type it gets.
    pub to: TensorType,
    /// Bytes with that type.
    pub bytes: u64,
    /// The type that its rows were too short for.
    pub instead_of: Option<TensorType>,
    /// It must not be converted without an importance matrix.
    pub requires_importance: bool,
}

impl Change {
    /// Whether the data changes.
    pub fn converts(&self) -> bool {
        self.tensor.ty != self.to
    }
}

/// Sizes before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// Bytes of tensors before.
    pub before: u64,
    /// Bytes of tensors after.
    pub after: u64,
    /// Values.
    pub elements: u64,
    /// Tensors whose rows were too short for their type.
    pub fallbacks: usize,
}

impl Totals {
    /// Bits per weight before and after.
    pub fn bits_per_weight(&self) -> (f64, f64) {
        let per = |bytes: u64| bytes as f64 * 8.0 / (self.elements as f64).max(1.0);
        (per(self.before), per(self.after))
    }
}

/// How far the work is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A tensor's turn has come.
    Tensor {
        /// Its place, from 0.
        index: usize,
        /// What becomes of it.
        change: &'a Change,
        /// Why it is converted without importance weights although there is an importance matrix.
        unweighted: bool,
    },
    /// Bytes of source data dealt with.
    Bytes(u64),
    /// A tensor is complete.
    Done {
        /// What became of it.
        change: &'a Change,
        /// For AWQ groups that became Q4_1 blocks, the largest difference that rounding
        /// `-zero * scale` to f16 made, in steps of the group's scale. Scales and codes are the
        /// same.
        rounding: Option<f32>,
    },
}
