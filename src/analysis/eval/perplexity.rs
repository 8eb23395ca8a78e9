//! Perplexity: e to the mean negative log-likelihood of a text.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::base::{self, Norm, Writer};
use super::blocks::Interval;
use super::pass::{ChunkRows, Pass, for_each};
use super::stats::{Estimate, Moments};
use super::{Error, MAX_CHUNK, Observer, Options, Text};
use octavo_engine::Engine;

/// Sums over the scored tokens of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkLikelihood {
    nll: Moments,
    scored: usize,
}

impl ChunkLikelihood {
    /// Returns whether a chunk of `n_ctx` tokens can produce this: data from a file is untrusted.
    pub(crate) fn is_sound(&self, n_ctx: usize) -> bool {
        self.scored <= n_ctx && n_ctx <= MAX_CHUNK
    }

    /// Adds a token's negative log-likelihood.
    pub(super) fn add(&mut self, nll: f64) {
        self.nll.add(nll);
        self.scored += 1;
    }
}

/// Perplexity of a text, or of the chunks so far.
///
/// Each chunk is summed by itself and the chunks' sums are added in text order, so that every digit
/// is the same however chunks are distributed over processes.
#[derive(Clone, Debug, Default)]
pub struct Perplexity {
    nll: Moments,
    scored: usize,
    by_chunk: Vec<ChunkLikelihood>,
}

impl Perplexity {
    /// Adds the next chunk of the text.
    pub fn push(&mut self, chunk: ChunkLikelihood) {
        self.nll.fold(&chunk.nll);
        self.scored += chunk.scored;
        self.by_chunk.push(chunk);
    }

    /// Returns the results of each chunk.
    pub fn by_chunk(&self) -> &[ChunkLikelihood] {
        &self.by_chunk
    }

    /// Returns the number of chunks scored.
    pub fn chunks(&self) -> usize {
        self.by_chunk.len()
    }

    /// Returns the number of tokens scored.
    pub fn scored(&self) -> usize {
        self.scored
    }

    /// Returns the mean negative log-likelihood of a scored token, in nats.
    pub fn mean_nll(&self) -> Estimate {
        let value = if self.scored == 0 {
            0.0
        } else {
            self.nll.sum / self.scored as f64
        };
        Estimate {
            value,
            uncertainty: self.nll.variance(self.scored).sqrt(),
        }
    }

    /// Returns the interval of [`Self::ppl`] by chunks.
    pub fn ppl_interval(&self) -> Option<Interval> {
        let of_chunk = |chunk: &ChunkLikelihood| chunk.nll.sum / chunk.scored.max(1) as f64;
        let interval = Interval::of_blocks(self.by_chunk.iter().map(of_chunk))?;
        Some(interval.map(f64::exp))
    }

    /// Returns e to the power of [`Self::mean_nll`], with first-order uncertainty.
    pub fn ppl(&self) -> Estimate {
        let nll = self.mean_nll();
        let value = nll.value.exp();
        Estimate {
            value,
            uncertainty: nll.uncertainty * value,
        }
    }
}

/// Scores a text.
///
/// # Errors
/// [`enum@Error`]: the text does not fit the model, the engine fails, or the observer cancels.
pub fn perplexity(
    engine: &Engine,
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
) -> Result<Perplexity, Error> {
    score(engine, text, options, observer, Sink::None)
}

/// Scores a text and writes the base that other models can be compared with. The writer must have
/// been created with the text's shape and tokens.
///
/// # Errors
/// As [`perplexity`], and the writer's.
pub fn perplexity_with_base<W: Write>(
    engine: &Engine,
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
    writer: &mut Writer<W>,
) -> Result<Perplexity, Error> {
    score(
        engine,
        text,
        options,
        observer,
        Sink::Encoded(&mut |rows| writer.rows(rows)),
    )
}

/// Scores a text and passes on the logits of every scored token.
///
/// # Errors
/// As [`perplexity`], and those of `sink`.
pub(super) fn score_with(
    engine: &Engine,
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
    sink: &mut dyn FnMut(&ChunkRows<'_>) -> Result<(), Error>,
) -> Result<Perplexity, Error> {
    score(engine, text, options, observer, Sink::Logits(sink))
}

/// Receives rows of logits.
enum Sink<'a> {
    None,
    /// Encoded as llama-perplexity's bases have them.
    Encoded(&'a mut dyn FnMut(&[u8]) -> Result<(), base::Error>),
    Logits(&'a mut dyn FnMut(&ChunkRows<'_>) -> Result<(), Error>),
}

fn score(
    engine: &Engine,
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Perplexity>,
    mut sink: Sink<'_>,
) -> Result<Perplexity, Error> {
    let shape = text.shape();
    let mut pass = Pass::new(engine, shape, "text", options)?;
    let mut so_far = Perplexity::default();
    let mut rows = Vec::new();
    for tokens in text.tokens().chunks_exact(shape.n_ctx) {
        let cancelled = &|| observer.cancelled();
        let mut chunk = ChunkLikelihood::default();
        pass.chunk(tokens, cancelled, &mut |part| {
            let row_bytes = match sink {
                Sink::Encoded(_) => shape.row_bytes(),
                Sink::None | Sink::Logits(_) => 0,
            };
            rows.resize(part.targets.len() * row_bytes, 0);
            for nll in likelihoods(part, shape.n_vocab, &mut rows, options.threads) {
                chunk.add(nll);
            }
            match &mut sink {
                Sink::None => Ok(()),
                Sink::Encoded(write) => Ok(write(&rows)?),
                Sink::Logits(pass_on) => pass_on(part),
            }
        })?;
        so_far.push(chunk);
        observer.chunk(&so_far, shape.n_chunks);
    }
    Ok(so_far)
}

/// Returns the negative log-likelihoods of a part's targets; encodes its rows into `rows` unless
/// that is empty.
pub(super) fn likelihoods(
    part: &ChunkRows<'_>,
    n_vocab: usize,
    rows: &mut [u8],
    threads: usize,
) -> Vec<f64> {
    struct TargetRow<'a> {
        nll: f64,
        encoded: Option<&'a mut [u8]>,
    }
    let n = part.targets.len();
    let mut places = rows.chunks_exact_mut((rows.len() / n.max(1)).max(1));
    let mut work: Vec<TargetRow<'_>> = (0..n)
        .map(|_| TargetRow {
            nll: 0.0,
            encoded: places.next(),
        })
        .collect();
    for_each(threads, &mut work, |i, row| {
        let logits = &part.logits[i * n_vocab..(i + 1) * n_vocab];
        let norm = Norm::of(logits);
        row.nll = -norm.ln_p(logits[part.targets[i] as usize]);
        if let Some(out) = &mut row.encoded {
            base::encode(logits, &norm, out);
        }
    });
    work.iter().map(|row| row.nll).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_by_hand_on_any_number_of_threads() {
        let ln = f32::ln;
        // probabilities (1/2, 1/4, 1/4) and (1/8, 1/8, 3/4)
        let logits = [ln(2.0), 0.0, 0.0, 5.0, 5.0, 5.0 + ln(6.0)];
        let part = ChunkRows {
            first: 0,
            logits: &logits,
            targets: &[1, 2],
        };
        for threads in [1, 2, 5] {
            let mut rows = vec![0; 2 * 16];
            let nll = likelihoods(&part, 3, &mut rows, threads);
            for (got, p) in nll.iter().zip([0.25f64, 0.75]) {
                assert!((got + p.ln()).abs() < 1e-6, "{got}");
            }
            assert_eq!(likelihoods(&part, 3, &mut [], threads), nll);
            let row = base::Row::new(&rows[16..], 3);
            assert!((row.ln_p(2) - 0.75f32.ln()).abs() < 1e-4);
        }
    }

    #[test]
    fn perplexity_by_hand() {
        let mut chunk = ChunkLikelihood::default();
        for p in [0.5f64, 0.125] {
            chunk.add(-p.ln());
        }
        let mut ppl = Perplexity::default();
        ppl.push(chunk);
        // the mean of 1 and 3 bits is 2 bits; the variance of the mean is 1 square bit
        let bit = 2f64.ln();
        assert!((ppl.ppl().value - 4.0).abs() < 1e-12);
        assert!((ppl.mean_nll().uncertainty - bit).abs() < 1e-12);
        assert!((ppl.ppl().uncertainty - 4.0 * bit).abs() < 1e-12);
        assert_eq!(
            Perplexity::default().ppl(),
            Estimate {
                value: 1.0,
                uncertainty: 0.0
            }
        );
    }
}
