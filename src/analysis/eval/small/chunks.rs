//! Chunks of a small base in memory, as shards have them, and the file of all of them.

use std::path::Path;

use octavo_engine::Engine;
use serde::{Deserialize, Serialize};

use super::{ChunkRows, RowSize, SmallReader, encoded, head, write};
use crate::eval::base::Shape;
use crate::eval::perplexity::score_with;
use crate::eval::{ChunkLikelihood, Error, Observer, Options, Perplexity, Text};

/// Consecutive chunks of a small base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmallChunks {
    bits: u32,
    n_vocab: usize,
    likelihoods: Vec<ChunkLikelihood>,
    tokens: Vec<u32>,
    /// Encoded rows of all chunks.
    rows: Vec<u8>,
}

/// Scores a text and returns the chunks of a small base of it. Every row depends on its logits
/// alone, so that a text may be divided.
///
/// # Errors
/// As [`perplexity`](crate::eval::perplexity()).
pub fn small_base_chunks(
    engine: &Engine,
    text: &Text,
    size: RowSize,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
) -> Result<SmallChunks, Error> {
    let n_vocab = text.shape().n_vocab;
    let mut rows = Vec::new();
    let mut sink = |part: &ChunkRows<'_>| {
        for row in encoded(part, n_vocab, size, options.threads) {
            rows.extend(row);
        }
        Ok(())
    };
    let perplexity = score_with(engine, text, options, observer, &mut sink)?;
    Ok(SmallChunks {
        bits: size.bits,
        n_vocab,
        likelihoods: perplexity.by_chunk().to_vec(),
        tokens: text.tokens().to_vec(),
        rows,
    })
}

impl SmallChunks {
    /// Returns the likelihood of each chunk.
    pub fn likelihoods(&self) -> &[ChunkLikelihood] {
        &self.likelihoods
    }

    /// Returns the sizes of the base.
    pub fn shape(&self) -> Shape {
        let n_chunks = self.likelihoods.len();
        Shape {
            n_ctx: self.tokens.len() / n_chunks.max(1),
            n_vocab: self.n_vocab,
            n_chunks,
        }
    }

    /// Appends the chunks that follow; `None` if they are of another base.
    pub(crate) fn append(&mut self, next: SmallChunks) -> Option<()> {
        if (self.bits, self.n_vocab) != (next.bits, next.n_vocab) {
            return None;
        }
        self.likelihoods.extend(next.likelihoods);
        self.tokens.extend(next.tokens);
        self.rows.extend(next.rows);
        Some(())
    }

    /// Returns the number of chunks; `None` if no text can have this: data from a file is
    /// untrusted.
    pub(crate) fn chunks(&self, n_ctx: usize) -> Option<usize> {
        let n = self.likelihoods.len();
        let fits = self.tokens.len() == n.checked_mul(n_ctx)?;
        let sound = fits && self.likelihoods.iter().all(|chunk| chunk.is_sound(n_ctx));
        if n == 0 {
            return (sound && self.rows.is_empty()).then_some(0);
        }
        let head = head(self.shape(), self.bits, &self.tokens);
        let whole = [head.as_slice(), &self.rows].concat();
        let mut from = whole.as_slice();
        let mut reader = SmallReader::new(&mut from, "").ok()?;
        reader.skip_to(n).ok()?;
        (sound && from.is_empty()).then_some(n)
    }

    /// Writes the base, under a temporary name until it is complete: the bytes that
    /// [`perplexity_with_small_base`](crate::eval::perplexity_with_small_base) writes for all
    /// chunks at once.
    ///
    /// # Errors
    /// A failed write.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let head = head(self.shape(), self.bits, &self.tokens);
        write(path, &head, |out| out(&self.rows))
    }
}
