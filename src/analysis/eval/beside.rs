//! Divergence of models from another that is computed beside them, in the same process: chunk by
//! chunk, with no base in between. [`divergence_beside`] rounds nothing and cuts nothing off;
//! [`rounded_divergence_beside`] has the digits of a base.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::base::CUT;
use super::divergence::{self, ChunkDivergence, Divergence, Token};
use super::pass::{ChunkRows, Pass, for_each};
use super::perplexity::{ChunkLikelihood, Perplexity, likelihoods};
use super::{Error, Observer, Options, Text};
use octavo_engine::Engine;

/// Scores a text by a reference model, and the predictions of other models against the reference's.
/// The reference is computed once, whatever the number of the others. Returns the divergence of
/// each of them, in their order.
///
/// # Errors
/// [`enum@Error`]: a model has another vocabulary or too short a context, an engine fails, or the
/// observer cancels.
pub fn divergence_beside(
    reference: &Engine,
    models: &[Engine],
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Vec<Divergence>>,
) -> Result<Vec<Divergence>, Error> {
    let shape = text.shape();
    let mut first = Pass::new(reference, shape, "text", options)?;
    let others = models
        .iter()
        .map(|model| Pass::new(model, shape, "text", options));
    let mut others: Vec<Pass> = others.collect::<Result<_, _>>()?;
    let mut so_far = vec![Divergence::default(); models.len()];
    for tokens in text.tokens().chunks_exact(shape.n_ctx) {
        let cancelled = &|| observer.cancelled();
        let mut chunks = vec![ChunkDivergence::default(); models.len()];
        first.begin(tokens, cancelled)?;
        for other in &mut others {
            other.begin(tokens, cancelled)?;
        }
        for rows in first.parts() {
            let targets = first.targets(tokens, &rows);
            let base = first.rows(tokens, rows.clone(), cancelled)?;
            for (other, chunk) in others.iter_mut().zip(&mut chunks) {
                let part = ChunkRows {
                    first: rows.start,
                    logits: other.rows(tokens, rows.clone(), cancelled)?,
                    targets,
                };
                for token in &score(&part, base, shape.n_vocab, options.threads) {
                    chunk.add(token);
                }
            }
        }
        for (so_far, chunk) in so_far.iter_mut().zip(chunks) {
            so_far.push(chunk);
        }
        observer.chunk(&so_far, shape.n_chunks);
    }
    Ok(so_far)
}

fn score(part: &ChunkRows<'_>, base: &[f32], n_vocab: usize, threads: usize) -> Vec<Token> {
    let mut tokens = vec![Token::default(); part.targets.len()];
    for_each(threads, &mut tokens, |i, token| {
        let row = i * n_vocab..(i + 1) * n_vocab;
        let target = part.targets[i] as usize;
        *token = Token::between(&part.logits[row.clone()], &base[row], target);
    });
    tokens
}

/// A model that was compared with a reference beside others.
#[derive(Debug)]
pub struct Compared {
    /// Divergence from the reference, or the error that ended the comparison of this model.
    pub divergence: Result<Divergence, Error>,
    /// Time that the model took.
    pub time: Duration,
}

/// Scores a text by a reference model, and the predictions of other models against the reference's,
/// which are rounded as a base has them: the digits are those of
/// [`divergence`](super::divergence()) from a base of the reference. The reference is computed
/// once, whatever the number of the others. Returns its perplexity, and the others in their order;
/// an error of one of them does not stop the rest.
///
/// # Errors
/// [`enum@Error`]: the reference has another vocabulary or too short a context, its engine fails,
/// or the observer cancels.
pub fn rounded_divergence_beside(
    reference: &Engine,
    models: &[Engine],
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
) -> Result<(Perplexity, Vec<Compared>), Error> {
    let shape = text.shape();
    let mut first = Pass::new(reference, shape, "text", options)?;
    let others = models.iter();
    let mut others: Vec<Other> = others
        .map(|model| Other::new(model, text, options))
        .collect();
    let mut perplexity = Perplexity::default();
    let mut encoded = Vec::new();
    for tokens in text.tokens().chunks_exact(shape.n_ctx) {
        let cancelled = &|| observer.cancelled();
        let mut likelihood = ChunkLikelihood::default();
        first.begin(tokens, cancelled)?;
        for other in &mut others {
            other.run(|other| other.pass.begin(tokens, cancelled))?;
        }
        for rows in first.parts() {
            let part = ChunkRows {
                first: rows.start,
                targets: first.targets(tokens, &rows),
                logits: first.rows(tokens, rows.clone(), cancelled)?,
            };
            encoded.resize(rows.len() * shape.row_bytes(), 0);
            for nll in likelihoods(&part, shape.n_vocab, &mut encoded, options.threads) {
                likelihood.add(nll);
            }
            for other in &mut others {
                other.run(|other| {
                    other.score(tokens, &rows, (&encoded, options.threads), cancelled)
                })?;
            }
        }
        perplexity.push(likelihood);
        others.iter_mut().for_each(Other::end_chunk);
        observer.chunk(&perplexity, shape.n_chunks);
    }
    Ok((perplexity, others.into_iter().map(Other::end).collect()))
}

/// A model that is compared, with its figures so far.
struct Running {
    pass: Pass,
    n_vocab: usize,
    chunk: ChunkDivergence,
    so_far: Divergence,
}

/// A model beside the reference, until it fails.
struct Other {
    state: Result<Running, Error>,
    time: Duration,
}

impl Other {
    fn new(model: &Engine, text: &Text, options: &Options) -> Other {
        let shape = text.shape();
        let running = |pass| Running {
            pass,
            n_vocab: shape.n_vocab,
            chunk: ChunkDivergence::default(),
            so_far: Divergence::default(),
        };
        Other {
            state: Pass::new(model, shape, "text", options).map(running),
            time: Duration::ZERO,
        }
    }

    /// Does a part of the work, and stops this model if it fails.
    ///
    /// # Errors
    /// [`Error::Cancelled`], which stops all.
    fn run(&mut self, work: impl FnOnce(&mut Running) -> Result<(), Error>) -> Result<(), Error> {
        let Ok(running) = &mut self.state else {
            return Ok(());
        };
        let start = Instant::now();
        let done = work(running);
        self.time += start.elapsed();
        match done {
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) => self.state = Err(error),
            Ok(()) => {}
        }
        Ok(())
    }

    fn end_chunk(&mut self) {
        if let Ok(running) = &mut self.state {
            running.so_far.push(std::mem::take(&mut running.chunk));
        }
    }

    fn end(self) -> Compared {
        Compared {
            divergence: self.state.map(|running| running.so_far),
            time: self.time,
        }
    }
}

impl Running {
    /// Computes some rows of a chunk and compares them with encoded ones.
    fn score(
        &mut self,
        tokens: &[u32],
        rows: &Range<usize>,
        (encoded, threads): (&[u8], usize),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let part = ChunkRows {
            first: rows.start,
            targets: self.pass.targets(tokens, rows),
            logits: self.pass.rows(tokens, rows.clone(), cancelled)?,
        };
        for token in &divergence::score(&part, encoded, self.n_vocab, CUT, threads) {
            self.chunk.add(token);
        }
        Ok(())
    }
}
