//! Text scores of a model, and the distance of its predictions from another's: llama-perplexity's
//! two measures (perplexity and KL divergence).
//!
//! A text is cut into chunks of `n_ctx` tokens. Each is prefilled from an empty cache, its first
//! token replaced by BOS if the vocabulary asks for one, and the predictions of its second half are
//! scored: the first half is context only. [`perplexity`] scores them against the text,
//! [`divergence`] also against the rows of a base, which [`perplexity_with_base`] writes: to a file
//! that llama-perplexity can read, or to memory. [`divergence_beside`] and
//! [`rounded_divergence_beside`] need no base: they compute the other model beside.
//!
//! Memory does not grow with the text: chunks are computed one after the other, with a few rows of
//! logits at a time. Only the text's tokens stay in memory (a base's stay in its file) and, for the
//! percentiles of a divergence, two f32 per scored token. Sums are f64: per chunk, then over chunks
//! in text order, so that no figure depends on the number of threads, or on how chunks were split
//! over processes ([`Text::only`], [`divergence_of`]).

mod beside;
mod blocks;
mod continuations;
#[cfg(test)]
mod coverage;
mod divergence;
mod error;
mod pass;
mod perplexity;
mod small;
mod stats;
mod tasks;
mod text;

pub use beside::{Compared, divergence_beside, rounded_divergence_beside};
pub use blocks::Interval;
pub use continuations::{Continuation, Likelihood, continuations};
pub use divergence::{ChunkDivergence, Divergence, divergence, divergence_of};
pub use error::Error;
pub use octavo_reference::kld_base as base;
pub(crate) use pass::for_each;
pub use perplexity::{ChunkLikelihood, Perplexity, perplexity, perplexity_with_base};
pub use small::{
    RowSize, SMALL_MAGIC, Slack, SmallChunks, SmallError, SmallReader, divergence_from_small,
    is_small, perplexity_with_small_base, small_base_chunks,
};
pub use stats::{Estimate, Sorted};
pub use tasks::{Answer, Question, Task, TaskError, TaskKind, answer, read_tasks};
pub use text::{Text, check_text, encode};

use octavo_engine::default_threads;

/// Largest number of tokens per chunk, as bases store it.
const MAX_CHUNK: usize = i32::MAX as usize;

/// Computation options; no figure depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that score rows while the engine is idle.
    pub threads: usize,
    /// Tokens per engine step, between two checks of [`Observer::cancelled`].
    pub batch: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: default_threads(),
            batch: 512,
        }
    }
}

/// Observes a running evaluation. `S` is the measured result: [`Perplexity`] or [`Divergence`].
pub trait Observer<S> {
    /// Called after each of `total` chunks with the figures so far.
    fn chunk(&mut self, so_far: &S, total: usize) {
        let _ = (so_far, total);
    }

    /// Returns whether to stop, with [`Error::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl<S> Observer<S> for () {}
