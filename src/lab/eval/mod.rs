//! How well a model predicts a text, and how far its predictions are from another's:
//! llama-perplexity's two measures.
//!
//! A text is cut into chunks of `n_ctx` tokens. Each is read from an empty cache, its first token
//! replaced by BOS where the vocabulary asks for one, and the predictions of its second half are
//! scored: the first is context only. [`perplexity`] scores them by the text, [`divergence`] also
//! by the rows of a base, which [`perplexity_with_base`] writes: to a file that llama-perplexity
//! can read, or to memory.
//!
//! Memory does not grow with the text: chunks are read one after the other, and of a chunk a few
//! rows of logits at a time. What is kept is the text's tokens (a base's stay in its file) and, for
//! the percentiles of a divergence, two f32 for each scored token. Sums are f64: of each chunk by
//! itself, then of the chunks in the text's order, so that no figure depends on the number of
//! threads, or on which chunks were read by one process ([`Text::only`], [`divergence_of`]).

mod divergence;
mod error;
mod pass;
mod perplexity;
mod stats;
mod text;

pub use divergence::{ChunkDivergence, Divergence, divergence, divergence_of};
pub use error::Error;
pub use octavo_reference::kld_base as base;
pub use perplexity::{ChunkLikelihood, Perplexity, perplexity, perplexity_with_base};
pub use stats::{Estimate, Sorted};
pub use text::{Text, check_text, encode};

use octavo_engine::default_threads;

/// Tokens of a chunk at most, as a base counts them.
const MAX_CHUNK: usize = i32::MAX as usize;

/// How to compute; no figure depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that score rows while the engine waits.
    pub threads: usize,
    /// Tokens given to the engine at a time, between two looks at [`Observer::cancelled`].
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

/// Sees a scoring under way. `S` is what is measured: [`Perplexity`] or [`Divergence`].
pub trait Observer<S> {
    /// A chunk is done: the figures so far, of `total` chunks.
    fn chunk(&mut self, so_far: &S, total: usize) {
        let _ = (so_far, total);
    }

    /// Whether to stop, with [`Error::Cancelled`].
    fn cancelled(&self) -> bool {
        false
    }
}

/// Watches nothing.
impl<S> Observer<S> for () {}
