//! Runs a model over chunks, and functions over rows of logits.

use super::base::Shape;
use super::{Error, Options};
use std::ops::Range;

use octavo_engine::backend::Phase;
use octavo_engine::{Engine, LogitsFor, Session};

/// Largest number of bytes of logits in memory at once.
const MAX_LOGIT_BYTES: usize = 64 << 20;

/// A model that computes chunk after chunk.
pub(super) struct Pass {
    session: Session,
    shape: Shape,
    bos: Option<u32>,
    batch: usize,
    /// Rows of logits in memory at once.
    rows: usize,
    logits: Vec<f32>,
}

/// Some logit rows of a chunk.
pub(super) struct ChunkRows<'a> {
    /// Index of the first row in the chunk.
    pub(super) first: usize,
    /// `[rows][n_vocab]`
    pub(super) logits: &'a [f32],
    /// Token of the text that follows each row.
    pub(super) targets: &'a [u32],
}

impl Pass {
    /// Prepares for chunks of this shape; `source` names their origin in messages.
    ///
    /// # Errors
    /// The model has another vocabulary, or its context is too short for a chunk.
    pub(super) fn new(
        engine: &Engine,
        shape: Shape,
        source: &str,
        options: &Options,
    ) -> Result<Pass, Error> {
        let (expected, got) = (engine.hparams().n_vocab(), shape.n_vocab);
        if expected != got {
            return Err(Error::Vocabulary {
                file: source.to_owned(),
                expected,
                got,
            });
        }
        if shape.n_ctx > engine.n_ctx() {
            return Err(Error::Context {
                n_ctx: shape.n_ctx,
                limit: engine.n_ctx(),
            });
        }
        let tokenizer = engine.tokenizer();
        let batch = options.batch.max(1);
        Ok(Pass {
            session: engine.session(),
            shape,
            bos: tokenizer.bos().filter(|_| tokenizer.add_bos()),
            batch,
            rows: (MAX_LOGIT_BYTES / size_of::<f32>() / shape.n_vocab).clamp(1, batch),
            logits: Vec::new(),
        })
    }

    /// Computes one chunk from an empty cache and passes on the logits of its second half, in
    /// order. The last token is not computed: nothing after it is predicted.
    pub(super) fn chunk(
        &mut self,
        tokens: &[u32],
        cancelled: &dyn Fn() -> bool,
        score: &mut dyn FnMut(&ChunkRows<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.begin(tokens, cancelled)?;
        for rows in self.parts() {
            let first = rows.start;
            let targets = self.targets(tokens, &rows);
            let logits = self.rows(tokens, rows, cancelled)?;
            score(&ChunkRows {
                first,
                logits,
                targets,
            })?;
        }
        Ok(())
    }

    /// Computes the first half of a chunk from an empty cache.
    pub(super) fn begin(
        &mut self,
        tokens: &[u32],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let mut read = tokens[..self.shape.first()].to_vec();
        if let (Some(first), Some(bos)) = (read.first_mut(), self.bos) {
            *first = bos;
        }
        self.session.truncate(0);
        for part in read.chunks(self.batch) {
            stop(cancelled)?;
            self.session
                .eval_with(part, Phase::Prefill, LogitsFor::None, None, &mut |_, _| ())?;
        }
        Ok(())
    }

    /// Returns the ranges of rows of a chunk that fit into memory at once.
    pub(super) fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (n_rows, step) = (self.shape.rows(), self.rows);
        (0..n_rows)
            .step_by(step)
            .map(move |start| start..n_rows.min(start + step))
    }

    /// Returns the tokens of a chunk that follow these rows.
    pub(super) fn targets<'t>(&self, tokens: &'t [u32], rows: &Range<usize>) -> &'t [u32] {
        // the target of the row at position p is the token at p + 1
        let first = self.shape.first() + 1;
        &tokens[first + rows.start..first + rows.end]
    }

    /// Computes the next rows of a chunk that was begun, and returns their logits.
    pub(super) fn rows(
        &mut self,
        tokens: &[u32],
        rows: Range<usize>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<&[f32], Error> {
        stop(cancelled)?;
        let first = self.shape.first();
        self.logits.clear();
        let logits = &mut self.logits;
        self.session.eval_with(
            &tokens[first + rows.start..first + rows.end],
            Phase::Prefill,
            LogitsFor::All,
            None,
            &mut |_, row: &[f32]| logits.extend_from_slice(row),
        )?;
        Ok(&self.logits)
    }
}

fn stop(cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
    if cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}

/// Calls `work` with each item and its index, on several threads.
pub(crate) fn for_each<T: Send>(
    threads: usize,
    items: &mut [T],
    work: impl Fn(usize, &mut T) + Sync,
) {
    let share = items.len().div_ceil(threads.max(1)).max(1);
    let run = |start: usize, items: &mut [T]| {
        for (i, item) in items.iter_mut().enumerate() {
            work(start + i, item);
        }
    };
    std::thread::scope(|scope| {
        let mut shares = items.chunks_mut(share).enumerate();
        let own = shares.next();
        for (number, items) in shares {
            let run = &run;
            scope.spawn(move || run(number * share, items));
        }
        if let Some((_, items)) = own {
            run(0, items);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_visited_once_with_its_number() {
        for n in [0, 1, 2, 3, 7, 64] {
            for threads in [0, 1, 2, 3, 100] {
                let mut items = vec![0; n];
                for_each(threads, &mut items, |i, item| *item += i + 1);
                assert_eq!(
                    items,
                    (1..=n).collect::<Vec<_>>(),
                    "{n} items, {threads} threads"
                );
            }
        }
    }
}
