//! Quantizes a model file: llama-quantize's mixes, metadata and bytes.
//!
//! [`Plan::new`] decides the type of every tensor and reads no weights; [`Plan::write`] converts, a
//! chunk of a tensor at a time. Tensor data equals that of llama-quantize bit for bit, whatever the
//! number of threads: rows are independent, and the quantizers are `octavo-quant`'s.

mod convert;
mod error;
mod folder;
mod groups;
pub mod mix;
mod plan;
mod prune;
mod target;
mod write;

use gguf_rs_lite::TensorInfo;
use octavo_quant::TensorType;

pub(crate) use convert::Job;
pub use convert::convert;
pub use error::Error;
use mix::Choices;
pub use plan::Plan;
pub(crate) use plan::change_to;
pub use prune::Prune;
pub use target::{Target, UnknownTarget};

/// Quantization options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Target file type.
    pub target: Target,
    /// User's choices for single tensors.
    pub choices: Choices,
    /// Whether to convert tensors that are already quantized.
    pub allow_requantize: bool,
    /// Number of converting threads.
    pub threads: usize,
    /// Whether to write as many files as the source has, with the same tensors in each.
    pub keep_split: bool,
}

impl Options {
    /// Returns the default options: the target's own mix, on all CPUs.
    pub fn new(target: Target) -> Options {
        let threads = octavo_engine::default_threads();
        Options {
            target,
            choices: Choices::default(),
            allow_requantize: false,
            threads,
            keep_split: false,
        }
    }
}

/// Planned conversion of one tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// Tensor in the source.
    pub tensor: TensorInfo,
    /// Type it gets.
    pub to: TensorType,
    /// Bytes in the new type.
    pub bytes: u64,
    /// Preferred type, if its blocks did not fit the rows.
    pub instead_of: Option<TensorType>,
    /// Whether conversion requires an importance matrix.
    pub requires_importance: bool,
}

impl Change {
    /// Returns whether the data changes.
    pub fn converts(&self) -> bool {
        self.tensor.ty != self.to
    }
}

/// Total sizes before and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// Bytes of tensors before.
    pub before: u64,
    /// Bytes of tensors after.
    pub after: u64,
    /// Number of values.
    pub elements: u64,
    /// Tensors that got a fallback type because of their row length.
    pub fallbacks: usize,
}

impl Totals {
    /// Returns bits per weight before and after.
    pub fn bits_per_weight(&self) -> (f64, f64) {
        let per = |bytes: u64| bytes as f64 * 8.0 / (self.elements as f64).max(1.0);
        (per(self.before), per(self.after))
    }
}

/// Progress of the conversion.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A tensor is started.
    Tensor {
        /// Index of the tensor, from 0.
        index: usize,
        /// Conversion of the tensor.
        change: &'a Change,
        /// Whether it is converted without importance weights although there is an importance
        /// matrix.
        unweighted: bool,
    },
    /// Bytes of source data processed.
    Bytes(u64),
    /// A tensor is complete.
    Done {
        /// Conversion of the tensor.
        change: &'a Change,
        /// For AWQ groups converted to Q4_1 blocks, the largest difference from rounding
        /// `-zero * scale` to f16, in steps of the group's scale. Scales and codes are exact.
        rounding: Option<f32>,
    },
}
