//! Distance of a model's predictions from a base's: Kullback-Leibler divergence and related
//! figures.

use std::io::{Read, Seek};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::base::{Norm, Reader, Row};
use super::blocks::Interval;
use super::pass::{ChunkRows, Pass, for_each};
use super::stats::{Estimate, Moments, Sorted, covariance};
use super::{Error, MAX_CHUNK, Observer, Options};
use octavo_engine::Engine;

/// Sums over scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) nll: Moments,
    pub(super) nll_base: Moments,
    /// Sum of the products of both negative log-likelihoods.
    pub(super) nll_products: f64,
    pub(super) kld: Moments,
    dp: Moments,
    dp2: Moments,
    pub(super) same_top: usize,
    pub(super) scored: usize,
}

impl Sums {
    fn fold(&mut self, others: &Sums) {
        self.nll.fold(&others.nll);
        self.nll_base.fold(&others.nll_base);
        self.nll_products += others.nll_products;
        self.kld.fold(&others.kld);
        self.dp.fold(&others.dp);
        self.dp2.fold(&others.dp2);
        self.same_top += others.same_top;
        self.scored += others.scored;
    }
}

/// Sums over the scored tokens of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkDivergence {
    sums: Sums,
    /// KL divergence of each scored token.
    klds: Vec<f32>,
    dps: Vec<f32>,
}

impl ChunkDivergence {
    /// Returns the sums without the per-token values, for callers that need no percentiles.
    pub(crate) fn sums_only(&self) -> ChunkDivergence {
        ChunkDivergence {
            sums: self.sums,
            ..ChunkDivergence::default()
        }
    }

    /// Returns the sums over its tokens.
    #[cfg(test)]
    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Returns whether a chunk of `n_ctx` tokens can produce this: data from a file is untrusted.
    pub(crate) fn is_sound(&self, n_ctx: usize) -> bool {
        let Sums {
            scored, same_top, ..
        } = self.sums;
        let lists = [self.klds.len(), self.dps.len()];
        let fits = lists == [scored; 2] || lists == [0; 2];
        scored <= n_ctx && n_ctx <= MAX_CHUNK && same_top <= scored && fits
    }

    /// Returns the mean over the chunk's tokens.
    fn mean(&self, sum: &Moments) -> f64 {
        sum.sum / self.sums.scored.max(1) as f64
    }

    pub(super) fn add(&mut self, token: &Token) {
        let sums = &mut self.sums;
        sums.nll.add(token.nll);
        sums.nll_base.add(token.nll_base);
        sums.nll_products += token.nll * token.nll_base;
        sums.kld.add(token.kld);
        let dp = (-token.nll).exp() - (-token.nll_base).exp();
        sums.dp.add(dp);
        sums.dp2.add(dp * dp);
        sums.same_top += usize::from(token.same_top);
        sums.scored += 1;
        self.klds.push(token.kld as f32);
        self.dps.push(dp as f32);
    }
}

/// Divergence of a model from a base, over the tokens scored so far. "Q" in llama-perplexity's
/// names is the model.
///
/// Each chunk is summed by itself and the chunks' sums are added in text order, so that every digit
/// is the same however chunks are distributed over processes.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    sums: Sums,
    by_chunk: Vec<ChunkDivergence>,
}

impl Divergence {
    /// Adds the next chunk of the text.
    pub fn push(&mut self, chunk: ChunkDivergence) {
        self.sums.fold(&chunk.sums);
        self.by_chunk.push(chunk);
    }

    /// Returns the results of each chunk.
    pub fn by_chunk(&self) -> &[ChunkDivergence] {
        &self.by_chunk
    }

    /// Returns the number of chunks scored.
    pub fn chunks(&self) -> usize {
        self.by_chunk.len()
    }

    /// Returns the number of tokens scored.
    pub fn scored(&self) -> usize {
        self.sums.scored
    }

    /// Returns the model's perplexity.
    pub fn ppl(&self) -> Estimate {
        exp(self.sums.nll.mean(self.scored()))
    }

    /// Returns the base's perplexity.
    pub fn ppl_base(&self) -> Estimate {
        exp(self.sums.nll_base.mean(self.scored()))
    }

    /// Returns the correlation of the two log-perplexities; 0 if one of them does not vary.
    pub fn correlation(&self) -> f64 {
        let n = self.scored();
        let spread = self.sums.nll.mean(n).uncertainty * self.sums.nll_base.mean(n).uncertainty;
        if spread > 0.0 {
            self.covariance() / spread
        } else {
            0.0
        }
    }

    /// Returns ln(PPL(Q) / PPL(base)).
    pub fn ln_ratio(&self) -> Estimate {
        let n = self.scored();
        let (ours, base) = (self.sums.nll.mean(n), self.sums.nll_base.mean(n));
        Estimate {
            value: ours.value - base.value,
            uncertainty: self.difference_of(ours.uncertainty, base.uncertainty, 1.0),
        }
    }

    /// Returns PPL(Q) / PPL(base).
    pub fn ratio(&self) -> Estimate {
        exp(self.ln_ratio())
    }

    /// Returns PPL(Q) - PPL(base).
    pub fn difference(&self) -> Estimate {
        let (ours, base) = (self.ppl(), self.ppl_base());
        Estimate {
            value: ours.value - base.value,
            uncertainty: self.difference_of(
                ours.uncertainty,
                base.uncertainty,
                ours.value * base.value,
            ),
        }
    }

    /// Returns the mean KL(base ‖ Q) of a token, in nats. As in llama-perplexity it leaves out
    /// tokens to which the base gives less than e^-16 (or the base's own cut), so it can be
    /// slightly below 0.
    pub fn kld(&self) -> Estimate {
        self.sums.kld.mean(self.scored())
    }

    /// Returns the mean Δp = p(Q) - p(base) of the text's token, as a fraction.
    pub fn dp(&self) -> Estimate {
        self.sums.dp.mean(self.scored())
    }

    /// Returns the root mean square of Δp.
    pub fn rms_dp(&self) -> Estimate {
        let square = self.sums.dp2.mean(self.scored());
        let value = square.value.sqrt();
        let uncertainty = if value > 0.0 {
            0.5 / value * square.uncertainty
        } else {
            0.0
        };
        Estimate { value, uncertainty }
    }

    /// Returns the fraction of tokens with the same most likely token.
    pub fn same_top(&self) -> Estimate {
        let n = self.scored();
        if n == 0 {
            return Estimate::default();
        }
        let value = self.sums.same_top as f64 / n as f64;
        let uncertainty = if n > 1 {
            (value * (1.0 - value) / (n - 1) as f64).sqrt()
        } else {
            0.0
        };
        Estimate { value, uncertainty }
    }

    /// Returns the mean KL divergence of each chunk.
    pub fn chunk_klds(&self) -> impl Iterator<Item = f64> {
        self.by_chunk
            .iter()
            .map(|chunk| chunk.mean(&chunk.sums.kld))
    }

    /// Returns the interval of [`Self::kld`] by chunks.
    pub fn kld_interval(&self) -> Option<Interval> {
        Interval::of_blocks(self.chunk_klds())
    }

    /// Returns the interval of [`Self::ln_ratio`] by chunks.
    pub fn ln_ratio_interval(&self) -> Option<Interval> {
        let of_chunk = |chunk: &ChunkDivergence| {
            chunk.mean(&chunk.sums.nll) - chunk.mean(&chunk.sums.nll_base)
        };
        Interval::of_blocks(self.by_chunk.iter().map(of_chunk))
    }

    /// Returns the interval of [`Self::same_top`] by chunks.
    pub fn same_top_interval(&self) -> Option<Interval> {
        let of_chunk =
            |chunk: &ChunkDivergence| chunk.sums.same_top as f64 / chunk.sums.scored.max(1) as f64;
        Interval::of_blocks(self.by_chunk.iter().map(of_chunk))
    }

    /// Returns the KL divergence of each scored token.
    pub fn klds(&self) -> Sorted {
        Sorted::of(self.of_tokens(|chunk| &chunk.klds))
    }

    /// Returns the Δp of each scored token, as fractions.
    pub fn dps(&self) -> Sorted {
        Sorted::of(self.of_tokens(|chunk| &chunk.dps))
    }

    fn of_tokens(&self, values: impl Fn(&ChunkDivergence) -> &Vec<f32>) -> Vec<f32> {
        self.by_chunk.iter().flat_map(values).copied().collect()
    }

    fn covariance(&self) -> f64 {
        let Sums {
            nll,
            nll_base,
            nll_products,
            scored,
            ..
        } = &self.sums;
        covariance(nll, nll_base, *nll_products, *scored)
    }

    /// Returns the uncertainty of the difference of two correlated estimates.
    fn difference_of(&self, a: f64, b: f64, scale: f64) -> f64 {
        (a * a + b * b - 2.0 * scale * self.covariance())
            .max(0.0)
            .sqrt()
    }
}

/// Returns e to the power of an estimate, with first-order uncertainty.
fn exp(ln: Estimate) -> Estimate {
    let value = ln.value.exp();
    Estimate {
        value,
        uncertainty: value * ln.uncertainty,
    }
}

/// Contribution of one scored token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Token {
    nll: f64,
    nll_base: f64,
    kld: f64,
    same_top: bool,
}

impl Token {
    pub(super) fn new(nll: f64, nll_base: f64, kld: f64, same_top: bool) -> Token {
        Token {
            nll,
            nll_base,
            kld,
            same_top,
        }
    }

    /// Returns the KL divergence, in nats.
    #[cfg(test)]
    pub(super) fn kld(&self) -> f64 {
        self.kld
    }

    /// Compares the predictions of a model with those of another, both as logits.
    pub(super) fn between(logits: &[f32], base: &[f32], target: usize) -> Token {
        let (norm, of_base) = (Norm::of(logits), Norm::of(base));
        // Σ p (b - q), where p sums to e^ln_sum
        let products = base
            .iter()
            .zip(logits)
            .map(|(&b, &q)| f64::from((b - of_base.max).exp()) * (f64::from(b) - f64::from(q)));
        let mean = products.sum::<f64>() / of_base.ln_sum.exp();
        let ln_total = |norm: &Norm| f64::from(norm.max) + norm.ln_sum;
        Token::new(
            -norm.ln_p(logits[target]),
            -of_base.ln_p(base[target]),
            mean + ln_total(&norm) - ln_total(&of_base),
            of_base.argmax == norm.argmax,
        )
    }

    fn score(logits: &[f32], base: &Row<'_>, target: usize, cut: f32) -> Token {
        let norm = Norm::of(logits);
        let (mut kld, mut top, mut ln_top) = (0.0, 0, f32::NEG_INFINITY);
        for (id, (ln_base, &logit)) in base.iter().zip(logits).enumerate() {
            if ln_base > ln_top {
                (top, ln_top) = (id, ln_base);
            }
            if ln_base > -cut {
                kld += f64::from(ln_base.exp()) * (f64::from(ln_base) - norm.ln_p(logit));
            }
        }
        Token {
            nll: -norm.ln_p(logits[target]),
            nll_base: -f64::from(base.ln_p(target)),
            kld,
            same_top: top == norm.argmax,
        }
    }
}

/// Scores the text of a base, and the model's predictions against the base's; at most `chunks`
/// chunks. The base's rows can be in a file or in memory (a [`std::io::Cursor`] over the output of
/// a [`Writer`](super::base::Writer)).
///
/// # Errors
/// [`enum@Error`]: the base has another vocabulary, does not fit the model's context or cannot be
/// read, the engine fails, or the observer cancels.
pub fn divergence<R: Read + Seek>(
    engine: &Engine,
    base: &mut Reader<R>,
    chunks: Option<usize>,
    options: &Options,
    observer: &mut dyn Observer<Divergence>,
) -> Result<Divergence, Error> {
    let n_chunks = base.shape().n_chunks;
    let n_chunks = chunks.map_or(n_chunks, |n| n.min(n_chunks));
    if n_chunks == 0 {
        return Err(Error::NoChunks);
    }
    divergence_of(engine, base, 0..n_chunks, options, observer)
}

/// As [`divergence`], for a range of the base's chunks.
///
/// # Errors
/// As [`divergence`].
///
/// # Panics
/// If the base has fewer chunks.
pub fn divergence_of<R: Read + Seek>(
    engine: &Engine,
    base: &mut Reader<R>,
    chunks: Range<usize>,
    options: &Options,
    observer: &mut dyn Observer<Divergence>,
) -> Result<Divergence, Error> {
    let (shape, n_chunks) = (base.shape(), chunks.len());
    let mut pass = Pass::new(engine, shape, base.file(), options)?;
    let mut so_far = Divergence::default();
    let mut rows = Vec::new();
    for number in chunks {
        let tokens = base.tokens(number)?;
        let cut = base.cut_of(number)?;
        let mut chunk = ChunkDivergence::default();
        let cancelled = &|| observer.cancelled();
        pass.chunk(&tokens, cancelled, &mut |part| {
            base.rows(
                number,
                part.first..part.first + part.targets.len(),
                &mut rows,
            )?;
            for token in &score(part, &rows, shape.n_vocab, cut, options.threads) {
                chunk.add(token);
            }
            Ok(())
        })?;
        so_far.push(chunk);
        observer.chunk(&so_far, n_chunks);
    }
    Ok(so_far)
}

/// Compares the logits of a part with rows of a base, of which `cut` is the depth.
pub(super) fn score(
    part: &ChunkRows<'_>,
    rows: &[u8],
    n_vocab: usize,
    cut: f32,
    threads: usize,
) -> Vec<Token> {
    let mut tokens = vec![Token::default(); part.targets.len()];
    let row_bytes = rows.len() / tokens.len().max(1);
    for_each(threads, &mut tokens, |i, token| {
        let logits = &part.logits[i * n_vocab..(i + 1) * n_vocab];
        let base = Row::new(&rows[i * row_bytes..(i + 1) * row_bytes], n_vocab);
        *token = Token::score(logits, &base, part.targets[i] as usize, cut);
    });
    tokens
}
