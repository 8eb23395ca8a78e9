//! Samples a token from logits: greedy, or a chain of filters and a seeded draw. Computes
//! log-probabilities too.
//!
//! The chain is logit bias, penalties, top-k, top-p, min-p, temperature, in llama.cpp's order
//! unless [`SamplerConfig::order`] says otherwise: cut-offs see the distribution before the
//! temperature.
//!
//! Everything is in f64 and every tie goes to the lowest id, so a draw depends on the logits, the
//! configuration, the seed and the number of draws before it, and on nothing else. The generator is
//! SplitMix64 (Steele, Lea and Flood 2014), written here so that no dependency's version can change
//! what a seed means: the n-th draw takes the upper 53 bits of the n-th output as a fraction in [0,
//! 1).

mod config;
mod constraint;
mod defaults;
mod logits;

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

pub use config::{ConfigError, SamplerConfig, Stage};
pub use constraint::{Among, Constraint, ConstraintError, TokenSet};
pub use defaults::{SamplerDefaults, random_seed};
use logits::check;
pub use logits::{Logprobs, argmax, logprobs, mean_logprob, top_logits};
pub(crate) use logits::{OutputValue, all_logprobs, are_finite};

/// Reasons that no token can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A NaN or an infinity: the model or a kernel is broken, and a choice would hide it.
    #[error("logit of token {id}: expected a finite number, got {value}")]
    NonFinite {
        /// The first token with such a logit.
        id: usize,
        /// The logit.
        value: f32,
    },
    /// A number of logits that differs from the size of the vocabulary.
    #[error("logits: expected one for each of {expected} tokens, got {got}")]
    Length {
        /// Size of the vocabulary.
        expected: usize,
        /// Logits given.
        got: usize,
    },
    /// Logit bias bans every token, or every one that a constraint allows.
    #[error("no token is left to choose from: bias or a constraint bans all")]
    NothingLeft,
    /// A constraint that failed.
    #[error("constraint: {0}")]
    Constraint(#[from] ConstraintError),
}

/// SplitMix64: a counter and a mixing function, so the n-th output depends on the seed and n alone.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws uniformly from [0, 1), with 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f64,
}

/// Orders the most likely first, equal logits by id, so that no result depends on how a sort treats
/// ties.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Chooses tokens for one sequence; keeps its recent tokens and the state of the generator.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    n_vocab: usize,
    rng: SplitMix64,
    recent: VecDeque<u32>,
    counts: BTreeMap<u32, u32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Checks the configuration against a vocabulary of `n_vocab` tokens.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is out of its range.
    pub fn new(config: SamplerConfig, n_vocab: usize) -> Result<Sampler, ConfigError> {
        config.validate(n_vocab)?;
        let rng = SplitMix64(config.seed);
        Ok(Sampler {
            config,
            n_vocab,
            rng,
            recent: VecDeque::new(),
            counts: BTreeMap::new(),
            candidates: Vec::new(),
        })
    }

    /// Records a token that is now part of the sequence, from the prompt or generated.
    pub fn accept(&mut self, id: u32) {
        if self.config.penalty_window == 0 {
            return;
        }
        if self.recent.len() == self.config.penalty_window
            && let Some(old) = self.recent.pop_front()
            && let Some(n) = self.counts.get_mut(&old)
        {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&old);
            }
        }
        self.recent.push_back(id);
        *self.counts.entry(id).or_insert(0) += 1;
    }

    /// Returns whether the choice is always the argmax of the raw logits.
    pub fn takes_the_largest(&self) -> bool {
        self.config.is_greedy() && self.config.logit_bias.is_empty() && !self.config.penalises()
    }

    /// Returns whether bias leaves the argmax as it is: it bans other tokens at most.
    fn stays_the_largest(&self, largest: u32) -> bool {
        let mut bias = self.config.logit_bias.iter();
        bias.all(|&(id, bias)| id != largest && bias == f32::NEG_INFINITY)
    }

    /// Chooses a token from the raw logits, one per token of the vocabulary. Does not
    /// [`accept`](Sampler::accept) it.
    ///
    /// # Errors
    /// [`SampleError`] if a logit is not finite, their number is wrong, or bias bans every token.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.sample_among(logits, Among::default())
    }

    /// As [`Sampler::sample`], but only from the tokens of `among`.
    ///
    /// # Errors
    /// As [`Sampler::sample`]; also if none of the tokens is left.
    pub fn sample_among(&mut self, logits: &[f32], among: Among<'_>) -> Result<u32, SampleError> {
        check(logits, self.n_vocab)?;
        if self.config.is_greedy() && !self.config.penalises() && among.is_all() {
            let largest = argmax(logits).ok_or(SampleError::NothingLeft)?;
            if self.stays_the_largest(largest) {
                return Ok(largest);
            }
        }
        self.gather(logits, among, self.config.is_greedy());
        if self.candidates.is_empty() {
            return Err(SampleError::NothingLeft);
        }
        if !self.config.is_greedy() {
            for i in 0..self.config.order.len() {
                self.apply(self.config.order[i]);
            }
            return self.draw().ok_or(SampleError::NothingLeft);
        }
        self.candidates
            .iter()
            .min_by(|a, b| likelier(a, b))
            .map(|c| c.id)
            .ok_or(SampleError::NothingLeft)
    }

    /// Returns the log-probability of a token among those that the last choice was drawn from, and
    /// the `n_top` most likely of these. A greedy choice is certain.
    pub(crate) fn drawn(&self, id: u32, n_top: usize) -> Logprobs {
        if self.config.is_greedy() {
            let top = std::iter::once((id, 0.0)).take(n_top).collect();
            return Logprobs {
                id,
                logprob: 0.0,
                top,
            };
        }
        let max = max_logit(&self.candidates);
        let sum: f64 = self.candidates.iter().map(|c| (c.logit - max).exp()).sum();
        let logprob = |c: &Candidate| c.logit - max - sum.ln();
        let mut top = self.candidates.clone();
        top.retain(|c| (c.logit - max).exp() > 0.0);
        top.sort_unstable_by(likelier);
        top.truncate(n_top);
        let own = self.candidates.iter().find(|c| c.id == id);
        Logprobs {
            id,
            // a constraint that ends may stand in for another token
            logprob: own.map_or(f64::NEG_INFINITY, logprob),
            top: top.iter().map(|c| (c.id, logprob(c))).collect(),
        }
    }

    /// Returns the `n` most likely tokens of `among`, best first, each with its natural
    /// log-probability among those: after bias and penalties, before everything else. Empty if no
    /// token is left.
    ///
    /// # Errors
    /// If a logit is not finite, or their number is wrong.
    pub(crate) fn best_among(
        &mut self,
        logits: &[f32],
        among: Among<'_>,
        n: usize,
    ) -> Result<Vec<(u32, f64)>, SampleError> {
        check(logits, self.n_vocab)?;
        self.gather(logits, among, true);
        let max = max_logit(&self.candidates);
        let sum: f64 = self.candidates.iter().map(|c| (c.logit - max).exp()).sum();
        let lse = max + sum.ln();
        keep_top_k(&mut self.candidates, n);
        self.candidates.sort_unstable_by(likelier);
        let best = self.candidates.iter();
        Ok(best.map(|c| (c.id, c.logit - lse)).collect())
    }

    /// Collects the candidates, with bias, and with penalties if `penalise`.
    fn gather(&mut self, logits: &[f32], among: Among<'_>, penalise: bool) {
        self.candidates.clear();
        // + 0.0 makes a negative zero equal to zero under total_cmp
        self.candidates
            .extend((0u32..).zip(logits).map(|(id, &l)| Candidate {
                id,
                logit: f64::from(l) + 0.0,
            }));
        for &(id, bias) in &self.config.logit_bias {
            self.candidates[id as usize].logit += f64::from(bias);
        }
        if !among.is_all() {
            self.candidates.retain(|c| among.contains(c.id));
        }
        if penalise && self.config.penalises() {
            self.penalise();
        }
        self.candidates.retain(|c| c.logit > f64::NEG_INFINITY);
    }

    fn apply(&mut self, stage: Stage) {
        match stage {
            Stage::Penalties if self.config.penalises() => self.penalise(),
            Stage::Penalties => {}
            Stage::Temperature => {
                let t = f64::from(self.config.temperature);
                self.candidates.iter_mut().for_each(|c| c.logit /= t);
            }
            Stage::MinP if self.config.min_p > 0.0 => {
                let floor = max_logit(&self.candidates) + f64::from(self.config.min_p).ln();
                self.candidates.retain(|c| c.logit >= floor);
            }
            Stage::MinP => {}
            Stage::TopK => keep_top_k(&mut self.candidates, self.config.top_k),
            Stage::TopP => keep_top_p(&mut self.candidates, f64::from(self.config.top_p)),
        }
    }

    /// Applies llama.cpp's formula: the repeat penalty makes a token less likely whatever its
    /// logit's sign.
    fn penalise(&mut self) {
        let repeat = f64::from(self.config.repeat_penalty);
        for c in &mut self.candidates {
            if let Some(&n) = self.counts.get(&c.id) {
                c.logit = if c.logit > 0.0 {
                    c.logit / repeat
                } else {
                    c.logit * repeat
                };
                c.logit -= f64::from(n) * f64::from(self.config.frequency_penalty);
                c.logit -= f64::from(self.config.presence_penalty);
            }
        }
    }

    /// Draws from the softmax of the remaining candidates.
    fn draw(&mut self) -> Option<u32> {
        let max = max_logit(&self.candidates);
        let total: f64 = self.candidates.iter().map(|c| (c.logit - max).exp()).sum();
        let target = self.rng.unit() * total;
        let mut sum = 0.0;
        for c in &self.candidates {
            sum += (c.logit - max).exp();
            if sum > target {
                return Some(c.id);
            }
        }
        // only if target rounded up to the total itself: the last token that has any probability
        self.candidates
            .iter()
            .rev()
            .find(|c| (c.logit - max).exp() > 0.0)
            .map(|c| c.id)
    }
}

fn max_logit(candidates: &[Candidate]) -> f64 {
    candidates
        .iter()
        .fold(f64::NEG_INFINITY, |m, c| m.max(c.logit))
}

fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by(k - 1, likelier);
    candidates.truncate(k);
    candidates.sort_unstable_by(likelier);
}

fn keep_top_p(candidates: &mut Vec<Candidate>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let max = max_logit(candidates);
    let enough = p * candidates
        .iter()
        .map(|c| (c.logit - max).exp())
        .sum::<f64>();
    let mut sum = 0.0;
    let mut done = 0;
    // the set is usually small: sort a growing front instead of the whole vocabulary
    let mut front = 64;
    while done < candidates.len() {
        let rest = &mut candidates[done..];
        let n = front.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n, likelier);
        }
        rest[..n].sort_unstable_by(likelier);
        for (i, c) in rest[..n].iter().enumerate() {
            sum += (c.logit - max).exp();
            if sum >= enough {
                candidates.truncate(done + i + 1);
                return;
            }
        }
        done += n;
        front *= 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // the reference implementation's first outputs for seed 1234567
        let mut rng = SplitMix64(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423u64,
        ];
        assert_eq!([rng.next(), rng.next(), rng.next()], expected);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }
}
