//! Shards of a long measurement, computed by independent processes.
//!
//! A measurement consists of ordered units: the chunks of a text, the comparisons of a suite. A
//! [`ShardIndex`] is a contiguous range of them, and its results are stored as a [`Shard`]: unit by
//! unit wherever sums would depend on the split. [`merge`] joins all shards of a measurement, or
//! reports why it cannot; figures are then printed as if one process had measured all units.
//!
//! A shard carries a [`Key`]: everything that its numbers depend on. Shards with equal keys are
//! reproducible: computing one again gives the same shard.

mod error;
mod file;
mod index;
mod key;
mod merge;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use error::Error;
pub use file::MAGIC;
pub use index::ShardIndex;
pub use key::{Key, sha256};
pub use merge::{Merged, merge};

use crate::diff::suite::Cell;
use crate::eval::{ChunkDivergence, ChunkLikelihood, Slack, SmallChunks};
use crate::imatrix::Sums;
use crate::quant_report::Scores;

/// Result of one shard of a measurement, as a file holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Everything its numbers depend on, apart from the index.
    pub key: Key,
    /// Which of the shards it is.
    #[serde(rename = "part")]
    pub index: ShardIndex,
    /// Number of units in all shards.
    pub units: usize,
    /// Names printed with the figures.
    pub about: About,
    /// Measured results.
    pub content: Content,
}

/// Details that are printed but do not affect the numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Name of the model.
    pub model: String,
    /// Backend that computed it.
    pub backend: String,
    /// Instruction set that computed it.
    pub isa: String,
    /// Name of the text or base.
    pub source: String,
    /// Tokens per chunk.
    pub n_ctx: usize,
}

/// Results of a shard's units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// Likelihood of each chunk.
    Perplexity(Vec<ChunkLikelihood>),
    /// Divergence of each chunk, and the cut of the base's rows.
    Divergence {
        /// Lowest log-probability stored, in nats below the most likely token.
        cut: f32,
        /// Chunks in text order.
        chunks: Vec<ChunkDivergence>,
    },
    /// Rows of a small base, and the likelihood of each chunk.
    SmallBase(SmallChunks),
    /// Divergence of each chunk from a small base, and how far its sum can be off.
    FromSmallBase {
        /// Chunks in text order.
        chunks: Vec<ChunkDivergence>,
        /// One for each chunk.
        slacks: Vec<Slack>,
    },
    /// Sums over all its chunks.
    Imatrix(Sums),
    /// Each comparison.
    Suite(Vec<Cell>),
    /// Scores of each chunk by each model; `None` for a shard without chunks.
    QuantReport(Option<Box<Scores>>),
}

impl Content {
    /// Returns the number of units; `None` if no measurement can produce this content.
    fn units(&self, n_ctx: usize) -> Option<usize> {
        let sound = match self {
            Content::Perplexity(chunks) => chunks.iter().all(|chunk| chunk.is_sound(n_ctx)),
            Content::Divergence { chunks, .. } => chunks.iter().all(|chunk| chunk.is_sound(n_ctx)),
            Content::SmallBase(_) => true,
            Content::FromSmallBase { chunks, slacks } => {
                chunks.len() == slacks.len()
                    && chunks.iter().all(|chunk| chunk.is_sound(n_ctx))
                    && slacks.iter().all(Slack::is_sound)
            }
            Content::Imatrix(sums) => sums.is_sound(),
            Content::Suite(_) => true,
            Content::QuantReport(None) => true,
            Content::QuantReport(Some(scores)) => scores.chunks(n_ctx).is_some(),
        };
        let units = match self {
            Content::Perplexity(chunks) => chunks.len(),
            Content::Divergence { chunks, .. } | Content::FromSmallBase { chunks, .. } => {
                chunks.len()
            }
            Content::SmallBase(chunks) => chunks.chunks(n_ctx)?,
            Content::Imatrix(sums) => sums.chunks(),
            Content::Suite(cells) => cells.len(),
            Content::QuantReport(None) => 0,
            Content::QuantReport(Some(scores)) => scores.chunks(n_ctx)?,
        };
        sound.then_some(units)
    }
}

impl Shard {
    /// Returns the range of its own units.
    pub fn range(&self) -> Range<usize> {
        self.index.range(self.units)
    }

    /// Returns whether it has exactly the units of its index.
    fn is_sound(&self) -> bool {
        self.index.is_sound() && self.content.units(self.about.n_ctx) == Some(self.range().len())
    }
}

/// A shard and the name of its file.
pub type Named = (String, Shard);
