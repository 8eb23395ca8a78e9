//! The last tokens of a sequence, and the penalties on them.

use std::collections::{BTreeMap, VecDeque};

use super::SamplerConfig;
use super::candidates::Candidates;

/// The last tokens of a sequence.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// At most `kept` tokens, the oldest first.
    tokens: VecDeque<u32>,
    kept: usize,
    /// How often each token is among the last `window`.
    counts: BTreeMap<u32, u32>,
    window: usize,
}

impl History {
    /// Keeps as many tokens as penalties and DRY need.
    pub(super) fn new(config: &SamplerConfig) -> History {
        let window = match config.penalises() {
            true => config.penalty_window,
            false => 0,
        };
        let repetitions = match config.penalises_repetitions() {
            true => config.dry_penalty_last_n,
            false => 0,
        };
        History {
            tokens: VecDeque::new(),
            kept: window.max(repetitions),
            counts: BTreeMap::new(),
            window,
        }
    }

    pub(super) fn push(&mut self, id: u32) {
        if self.kept == 0 {
            return;
        }
        self.tokens.push_back(id);
        *self.counts.entry(id).or_insert(0) += 1;
        let leaving = self.tokens.len().checked_sub(self.window.saturating_add(1));
        if let Some(id) = leaving.map(|at| self.tokens[at])
            && let Some(n) = self.counts.get_mut(&id)
        {
            *n -= 1;
            if *n == 0 {
                self.counts.remove(&id);
            }
        }
        if self.tokens.len() > self.kept {
            self.tokens.pop_front();
        }
    }

    /// Returns the last `n` tokens, the newest first.
    pub(super) fn newest(&self, n: usize) -> Vec<u32> {
        self.tokens.iter().rev().take(n).copied().collect()
    }

    /// Applies llama.cpp's formula: the repeat penalty makes a token less likely whatever its
    /// logit's sign.
    pub(super) fn penalise(&self, candidates: &mut Candidates, config: &SamplerConfig) {
        let repeat = f64::from(config.repeat_penalty);
        candidates.adjust(&self.counts, |logit, n| {
            let logit = match logit > 0.0 {
                true => logit / repeat,
                false => logit * repeat,
            };
            let logit = logit - f64::from(*n) * f64::from(config.frequency_penalty);
            logit - f64::from(config.presence_penalty)
        });
    }
}
