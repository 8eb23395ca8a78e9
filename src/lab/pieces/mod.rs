//! Parts of a long measurement, computed by processes that know nothing of each other.
//!
//! What is measured consists of units in an order: the chunks of a text, the comparisons of a
//! suite. A [`Part`] is some neighbouring ones of them, and what they gave is kept as a [`Piece`]:
//! of each unit by itself wherever sums would depend on how they were cut. [`merge`] puts all
//! pieces of a measurement together, or says why they are none; whoever prints figures then goes on
//! as if one process had measured all units.
//!
//! A piece carries a [`Key`]: everything that numbers depend on. Equal keys mean that the same
//! piece would be computed again.

mod error;
mod file;
mod key;
mod merge;
mod part;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use error::Error;
pub use file::MAGIC;
pub use key::{Key, sha256};
pub use merge::{Merged, merge};
pub use part::Part;

use crate::diff::suite::Cell;
use crate::eval::{ChunkDivergence, ChunkLikelihood};
use crate::imatrix::Sums;
use crate::quant_report::Scores;

/// What one part of a measurement gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// What its numbers depend on, apart from the part.
    pub key: Key,
    /// Which part.
    pub part: Part,
    /// The units of all parts.
    pub units: usize,
    /// Names that are printed with the figures.
    pub about: About,
    /// What was measured.
    pub content: Content,
}

/// What is printed of a computation and has no part in its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The model's name.
    pub model: String,
    /// Where it ran.
    pub backend: String,
    /// The instruction set.
    pub isa: String,
    /// The name of the text or base.
    pub source: String,
    /// Tokens of a chunk.
    pub n_ctx: usize,
}

/// What the units of a part gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// Of each chunk.
    Perplexity(Vec<ChunkLikelihood>),
    /// Of each chunk, and how far down the base's rows go.
    Divergence {
        /// In nats below the most likely token.
        cut: f32,
        /// In the text's order.
        chunks: Vec<ChunkDivergence>,
    },
    /// Of all its chunks.
    Imatrix(Sums),
    /// Of each comparison.
    Suite(Vec<Cell>),
    /// Of each chunk, by each model; nothing where a part has no chunks.
    QuantReport(Option<Box<Scores>>),
}

impl Content {
    /// The units in it; `None` if it is not what any measurement gives.
    fn units(&self, n_ctx: usize) -> Option<usize> {
        let sound = match self {
            Content::Perplexity(chunks) => chunks.iter().all(|chunk| chunk.is_sound(n_ctx)),
            Content::Divergence { chunks, .. } => chunks.iter().all(|chunk| chunk.is_sound(n_ctx)),
            Content::Imatrix(sums) => sums.is_sound(),
            Content::Suite(_) => true,
            Content::QuantReport(None) => true,
            Content::QuantReport(Some(scores)) => scores.chunks(n_ctx).is_some(),
        };
        let units = match self {
            Content::Perplexity(chunks) => chunks.len(),
            Content::Divergence { chunks, .. } => chunks.len(),
            Content::Imatrix(sums) => sums.chunks(),
            Content::Suite(cells) => cells.len(),
            Content::QuantReport(None) => 0,
            Content::QuantReport(Some(scores)) => scores.chunks(n_ctx)?,
        };
        sound.then_some(units)
    }
}

impl Piece {
    /// Its own units.
    pub fn range(&self) -> Range<usize> {
        self.part.range(self.units)
    }

    /// Whether it holds what its part asks for.
    fn is_sound(&self) -> bool {
        self.part.is_sound() && self.content.units(self.about.n_ctx) == Some(self.range().len())
    }
}

/// A piece and the name of its file.
pub type Named = (String, Piece);
