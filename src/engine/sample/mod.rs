//! Samples a token from logits: greedy, or a chain of filters and a seeded draw. Computes
//! log-probabilities too.
//!
//! The chain is logit bias, penalties, DRY, top-nσ, top-k, typical-p, top-p, min-p, XTC,
//! temperature, in llama.cpp's order unless [`SamplerConfig::order`] says otherwise: cut-offs see
//! the distribution before the temperature. Mirostat takes the place of all of them but bias and
//! temperature, the adaptive sampler that of the draw.
//!
//! Everything is in f64, sums have the same bits on every instruction set, and every tie goes to
//! the lowest id, so a draw depends on the logits, the configuration, the seed and the tokens
//! before it, and on nothing else. The generator is SplitMix64 (Steele, Lea and Flood 2014),
//! written here so that no dependency's version can change what a seed means: the n-th draw takes
//! the upper 53 bits of the n-th output as a fraction in [0, 1). XTC has a generator of its own.

mod candidates;
mod config;
mod constraint;
mod defaults;
mod draw;
mod dry;
#[cfg(test)]
mod few;
mod filters;
#[cfg(test)]
mod goldens;
mod history;
mod logits;
mod numbers;
mod random;
mod stage;

use std::sync::Arc;

use candidates::{Candidate, Candidates};
pub use config::{ConfigError, MAX_BREAKERS, SamplerConfig, SamplerDefaults};
pub use constraint::{Among, Constraint, ConstraintError, TokenSet};
pub use defaults::random_seed;
use draw::Draw;
pub use dry::DryBreakers;
use history::History;
pub use logits::{Logprobs, argmax, logprobs, mean_logprob, top_logits};
pub(crate) use logits::{OutputNeed, OutputValue, all_logprobs, are_finite};
use logits::{check_finite, check_length};
pub use numbers::{NUMBERS, Number};
use random::SplitMix64;
pub use stage::Stage;

/// Makes the seed of XTC's draws another one than that of the tokens'.
const XTC_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

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

/// Chooses tokens for one sequence; keeps its recent tokens and the state of the generator.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    n_vocab: usize,
    rng: SplitMix64,
    xtc: SplitMix64,
    history: History,
    breakers: Arc<DryBreakers>,
    draw: Draw,
    candidates: Candidates,
}

impl Sampler {
    /// Checks the configuration against a vocabulary of `n_vocab` tokens. `breakers` are the token
    /// sequences of [`SamplerConfig::dry_sequence_breakers`], and are asked for only if DRY runs.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is out of its range.
    pub fn new(
        config: SamplerConfig,
        n_vocab: usize,
        breakers: impl FnOnce(&[String]) -> DryBreakers,
    ) -> Result<Sampler, ConfigError> {
        config.validate(n_vocab)?;
        let breakers = match config.penalises_repetitions() {
            true => breakers(&config.dry_sequence_breakers),
            false => DryBreakers::default(),
        };
        Ok(Sampler {
            n_vocab,
            rng: SplitMix64::new(config.seed),
            xtc: SplitMix64::new(config.seed ^ XTC_SEED),
            history: History::new(&config),
            breakers: Arc::new(breakers),
            draw: Draw::new(&config, n_vocab),
            candidates: Candidates::default(),
            config,
        })
    }

    /// Records a token that is now part of the sequence, from the prompt or generated.
    pub fn accept(&mut self, id: u32) {
        self.history.push(id);
        self.draw.accept(id);
    }

    /// Returns whether the choice is always the argmax of the raw logits.
    pub fn takes_the_largest(&self) -> bool {
        self.config.is_greedy() && self.config.logit_bias.is_empty() && !self.config.reorders()
    }

    /// Returns how many of the largest raw logits decide every choice, if a few do: top-k comes
    /// before all that looks at more, and bias bans tokens at most.
    pub(crate) fn enough_candidates(&self) -> Option<usize> {
        let config = &self.config;
        let bans = config.logit_bias.iter();
        if config.is_greedy()
            || config.mirostat != 0
            || !bans.clone().all(|(_, bias)| *bias == f32::NEG_INFINITY)
        {
            return None;
        }
        for stage in &config.order {
            let has_no_effect = match stage {
                Stage::TopK if config.top_k > 0 => return Some(config.top_k + bans.len()),
                Stage::TopK | Stage::AdaptiveP => true,
                Stage::Penalties => !config.penalises(),
                Stage::Dry => !config.penalises_repetitions(),
                Stage::TopNSigma => config.top_n_sigma <= 0.0,
                Stage::TypicalP => config.typical_p >= 1.0,
                Stage::TopP => config.top_p >= 1.0,
                Stage::MinP => config.min_p <= 0.0,
                Stage::Xtc => config.xtc_probability <= 0.0,
                // it leaves the order as it is
                Stage::Temperature => config.dynatemp_range == 0.0,
            };
            if !has_no_effect {
                return None;
            }
        }
        None
    }

    /// As [`Sampler::sample`], from the largest logits, in their order, of as many tokens as
    /// [`Sampler::enough_candidates`] says, or more.
    ///
    /// # Errors
    /// If bias bans every token.
    ///
    /// # Panics
    /// If more are needed.
    pub(crate) fn sample_from(&mut self, largest: &[(u32, f32)]) -> Result<u32, SampleError> {
        let enough = self.enough_candidates();
        let enough = enough.map(|n| n.min(self.n_vocab));
        assert!(
            enough.is_some_and(|n| n <= largest.len()),
            "{} candidates, {enough:?} are needed",
            largest.len()
        );
        let is_banned = |id: u32| {
            self.config
                .logit_bias
                .iter()
                .any(|(banned, _)| *banned == id)
        };
        let left = largest.iter().filter(|(id, _)| !is_banned(*id));
        let best = left.take(self.config.top_k);
        let list: Vec<Candidate> = best
            .map(|&(id, logit)| Candidate {
                id,
                logit: f64::from(logit),
            })
            .collect();
        self.candidates.start_from(&list);
        self.draw()
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
        check_length(logits, self.n_vocab)?;
        let is_greedy = self.config.is_greedy();
        if is_greedy && !self.config.reorders() && among.is_all() {
            check_finite(logits, are_finite(logits))?;
            let largest = argmax(logits).ok_or(SampleError::NothingLeft)?;
            if self.stays_the_largest(largest) {
                return Ok(largest);
            }
        }
        self.gather(logits, among)?;
        self.draw()
    }

    /// Reduces the candidates and draws one, or takes the best.
    fn draw(&mut self) -> Result<u32, SampleError> {
        self.reduce();
        if self.config.is_greedy() {
            let best = self.candidates.best();
            return best.map(|c| c.id).ok_or(SampleError::NothingLeft);
        }
        let id = self.candidates.draw(self.rng.unit());
        let id = id.ok_or(SampleError::NothingLeft)?;
        self.draw.note(&self.candidates, id);
        Ok(id)
    }

    /// Cuts the candidates down to those that the token is drawn from.
    fn reduce(&mut self) {
        if self.config.is_greedy() {
            if self.config.reorders() {
                self.filter(|stage| stage != Stage::Temperature);
            }
            return;
        }
        match self.config.mirostat {
            0 => self.filter(|_| true),
            _ => self.candidates.divide(f64::from(self.config.temperature)),
        }
        self.draw.prepare(&mut self.candidates);
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
        let log_sum = self.candidates.softmax().log_sum;
        let mut top = self.candidates.largest(n_top);
        top.retain(|c| (c.logit - log_sum).exp() > 0.0);
        Logprobs {
            id,
            // a constraint that ends may stand in for another token
            logprob: self.candidates.logprob(id),
            top: top.iter().map(|c| (c.id, c.logit - log_sum)).collect(),
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
        check_length(logits, self.n_vocab)?;
        self.gather(logits, among)?;
        self.filter(|stage| matches!(stage, Stage::Penalties | Stage::Dry));
        let log_sum = self.candidates.softmax().log_sum;
        let best = self.candidates.largest(n);
        Ok(best.iter().map(|c| (c.id, c.logit - log_sum)).collect())
    }

    /// Collects the candidates, with bias.
    ///
    /// # Errors
    /// If a logit is not finite.
    fn gather(&mut self, logits: &[f32], among: Among<'_>) -> Result<(), SampleError> {
        let are_finite = self.candidates.fill(logits);
        check_finite(logits, are_finite)?;
        self.candidates.bias(&self.config.logit_bias, among.banned);
        if let Some(allowed) = among.allowed {
            self.candidates.mask(f64::MIN, |c| allowed.contains(c.id));
        }
        Ok(())
    }

    /// Applies the stages that `runs` names, in their order.
    fn filter(&mut self, runs: impl Fn(Stage) -> bool) {
        for i in 0..self.config.order.len() {
            let stage = self.config.order[i];
            if runs(stage) && self.candidates.len() > 0 {
                self.apply(stage);
            }
        }
    }

    fn apply(&mut self, stage: Stage) {
        let (config, candidates) = (&self.config, &mut self.candidates);
        let min_keep = config.min_keep;
        match stage {
            Stage::Penalties if config.penalises() => self.history.penalise(candidates, config),
            Stage::Dry if config.penalises_repetitions() => {
                let newest = self.history.newest(config.dry_penalty_last_n);
                dry::penalise(candidates, &newest, config, &self.breakers);
            }
            Stage::Penalties | Stage::Dry => {}
            Stage::TopNSigma => candidates.top_n_sigma(f64::from(config.top_n_sigma)),
            Stage::TopK => candidates.top_k(config.top_k),
            Stage::TypicalP => candidates.typical(f64::from(config.typical_p), min_keep),
            Stage::TopP => candidates.top_p(f64::from(config.top_p), min_keep),
            Stage::MinP => candidates.min_p(f64::from(config.min_p), min_keep),
            Stage::Xtc => self.exclude_top_choices(),
            Stage::Temperature if config.dynatemp_range > 0.0 => candidates.divide_by_entropy(
                f64::from(config.temperature),
                f64::from(config.dynatemp_range),
                f64::from(config.dynatemp_exponent),
            ),
            Stage::Temperature => candidates.divide(f64::from(config.temperature)),
            // it draws at the end
            Stage::AdaptiveP => {}
        }
    }

    fn exclude_top_choices(&mut self) {
        let threshold = f64::from(self.config.xtc_threshold);
        let probability = f64::from(self.config.xtc_probability);
        if probability <= 0.0 || threshold > 0.5 || self.candidates.size() < 2 {
            return;
        }
        if self.xtc.unit() <= probability {
            self.candidates
                .exclude_top_choices(threshold, self.config.min_keep);
        }
    }
}
