//! The candidates for the next token, and the filters that cut them down.

use std::cmp::Ordering;

/// Candidates sorted at a time where a filter needs the first few in an order.
const FRONT: usize = 64;

/// A token that may be next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f64,
}

/// Orders the most likely first, equal logits by id, so that no result depends on how a sort treats
/// ties.
pub(super) fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The candidates for the next token.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    /// Those that can be drawn, with finite logits.
    pub(super) list: Vec<Candidate>,
    /// Number of further ones whose logits are negative infinity. They are never drawn, but
    /// llama.cpp's filters count them.
    masked: usize,
}

impl Candidates {
    /// Makes every token a candidate, with its logit.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.masked = 0;
        self.list.clear();
        // + 0.0 makes a negative zero equal to zero under total_cmp
        self.list
            .extend((0u32..).zip(logits).map(|(id, &l)| Candidate {
                id,
                logit: f64::from(l) + 0.0,
            }));
    }

    /// Masks the candidates for which `stays` is false.
    pub(super) fn mask(&mut self, stays: impl Fn(&Candidate) -> bool) {
        let before = self.list.len();
        self.list.retain(stays);
        self.masked += before - self.list.len();
    }

    /// Returns the number of candidates, masked ones included.
    pub(super) fn size(&self) -> usize {
        self.list.len() + self.masked
    }

    /// Returns the most likely candidate.
    pub(super) fn best(&self) -> Option<Candidate> {
        self.list.iter().min_by(|a, b| likelier(a, b)).copied()
    }

    fn max(&self) -> f64 {
        let logits = self.list.iter().map(|c| c.logit);
        logits.fold(f64::NEG_INFINITY, f64::max)
    }

    /// Returns the logarithm of the sum of the exponentials of the logits.
    pub(super) fn log_sum_exp(&self) -> f64 {
        let max = self.max();
        let sum: f64 = self.list.iter().map(|c| (c.logit - max).exp()).sum();
        max + sum.ln()
    }

    /// Returns the entropy of the softmax in nats.
    fn entropy(&self, log_sum: f64) -> f64 {
        let terms = self.list.iter().map(|c| {
            let logprob = c.logit - log_sum;
            let p = logprob.exp();
            if p > 0.0 { -p * logprob } else { 0.0 }
        });
        terms.sum()
    }

    /// Keeps the first `n` candidates, of which masked ones are the last.
    fn truncate(&mut self, n: usize) {
        self.masked = self.masked.min(n.saturating_sub(self.list.len()));
        self.list.truncate(n);
    }

    /// Sorts candidates to the front until `is_enough` is true of one, which is the last that is
    /// kept; keeps at least `min_keep`, and all if none is enough.
    fn keep_until(
        &mut self,
        order: impl Fn(&Candidate, &Candidate) -> Ordering,
        min_keep: usize,
        mut is_enough: impl FnMut(&Candidate) -> bool,
    ) {
        let mut done = 0;
        let mut reached = false;
        // the set is usually small: sort a growing front instead of the whole vocabulary
        let mut front = FRONT;
        while done < self.list.len() {
            let rest = &mut self.list[done..];
            let n = front.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n, &order);
            }
            rest[..n].sort_unstable_by(&order);
            for (i, c) in (1..).zip(&rest[..n]) {
                reached = reached || is_enough(c);
                if reached && done + i >= min_keep {
                    return self.truncate(done + i);
                }
            }
            done += n;
            front *= 8;
        }
        if reached {
            self.truncate(min_keep);
        }
    }

    /// Keeps the `k` most likely; 0 keeps all.
    pub(super) fn top_k(&mut self, k: usize) {
        if k == 0 || k >= self.size() {
            return;
        }
        if k < self.list.len() {
            self.list.select_nth_unstable_by(k - 1, likelier);
        }
        self.truncate(k);
        self.list.sort_unstable_by(likelier);
    }

    /// Keeps the most likely whose probabilities together reach `p`.
    pub(super) fn top_p(&mut self, p: f64, min_keep: usize) {
        if p >= 1.0 {
            return;
        }
        let max = self.max();
        let total: f64 = self.list.iter().map(|c| (c.logit - max).exp()).sum();
        let mut sum = 0.0;
        self.keep_until(likelier, min_keep, |c| {
            sum += (c.logit - max).exp();
            sum >= p * total
        });
    }

    /// Keeps those at least `p` times as likely as the most likely one.
    pub(super) fn min_p(&mut self, p: f64, min_keep: usize) {
        if p <= 0.0 {
            return;
        }
        let floor = self.max() + p.ln();
        let enough = self.list.iter().filter(|c| c.logit >= floor).count();
        if enough < min_keep.max(1) {
            return self.top_k(min_keep.max(1));
        }
        self.list.retain(|c| c.logit >= floor);
        self.masked = 0;
    }

    /// Keeps those whose information content is closest to the entropy, until their probabilities
    /// together exceed `p` (Meister and others 2023, locally typical sampling).
    pub(super) fn typical(&mut self, p: f64, min_keep: usize) {
        if p >= 1.0 {
            return;
        }
        let log_sum = self.log_sum_exp();
        let entropy = self.entropy(log_sum);
        let distance = |c: &Candidate| (log_sum - c.logit - entropy).abs();
        let closer = |a: &Candidate, b: &Candidate| {
            distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
        };
        let mut sum = 0.0;
        self.keep_until(closer, min_keep, |c| {
            sum += (c.logit - log_sum).exp();
            sum > p
        });
    }

    /// Masks those more than `n` standard deviations of all logits below the largest (Tang and
    /// others 2024, top-nσ).
    pub(super) fn top_n_sigma(&mut self, n: f64) {
        if n <= 0.0 || self.size() <= 1 {
            return;
        }
        let count = self.list.len() as f64;
        let mean = self.list.iter().map(|c| c.logit).sum::<f64>() / count;
        let squares = self.list.iter().map(|c| (c.logit - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        let floor = self.max() - n * deviation;
        self.mask(|c| c.logit >= floor);
    }

    /// Removes those of at least the probability `threshold`, but the least likely of them.
    pub(super) fn exclude_top_choices(&mut self, threshold: f64, min_keep: usize) {
        let log_sum = self.log_sum_exp();
        let is_top = |c: &Candidate| (c.logit - log_sum).exp() >= threshold;
        let tops = self.list.iter().filter(|c| is_top(c));
        let n = tops.clone().count();
        let Some(last) = tops.max_by(|a, b| likelier(a, b)).copied() else {
            return;
        };
        if self.size() - (n - 1) >= min_keep {
            self.list.retain(|c| !is_top(c) || *c == last);
        }
    }

    /// Divides logits by a temperature; 0 leaves the most likely candidate.
    pub(super) fn divide(&mut self, temperature: f64) {
        if temperature > 0.0 {
            self.list.iter_mut().for_each(|c| c.logit /= temperature);
        } else if let Some(best) = self.best() {
            self.mask(|c| *c == best);
        }
    }

    /// Divides logits by a temperature that is `temperature` less `range` where one candidate is
    /// certain, and `temperature` plus `range` where all are alike.
    pub(super) fn divide_by_entropy(&mut self, temperature: f64, range: f64, exponent: f64) {
        let size = self.size();
        if size <= 1 {
            return;
        }
        let least = (temperature - range).max(0.0);
        let most = temperature + range;
        let entropy = self.entropy(self.log_sum_exp()) / (size as f64).ln();
        self.divide(least + (most - least) * entropy.powf(exponent));
    }

    /// Keeps those of at most `surprise` bits, and at least the most likely one.
    pub(super) fn keep_surprise(&mut self, surprise: f64) {
        let log_sum = self.log_sum_exp();
        let Some(best) = self.best() else { return };
        let bits = |c: &Candidate| (log_sum - c.logit) / std::f64::consts::LN_2;
        self.list.retain(|c| *c == best || bits(c) <= surprise);
        self.masked = 0;
    }

    /// Draws from the softmax by a number in [0, 1).
    pub(super) fn draw(&self, unit: f64) -> Option<u32> {
        let max = self.max();
        let total: f64 = self.list.iter().map(|c| (c.logit - max).exp()).sum();
        let target = unit * total;
        let mut sum = 0.0;
        for c in &self.list {
            sum += (c.logit - max).exp();
            if sum > target {
                return Some(c.id);
            }
        }
        // only if target rounded up to the total itself: the last token that has any probability
        let mut backwards = self.list.iter().rev();
        backwards
            .find(|c| (c.logit - max).exp() > 0.0)
            .map(|c| c.id)
    }

    /// Returns the natural log-probability of a candidate under the softmax; negative infinity of a
    /// token that is none.
    pub(super) fn logprob(&self, id: u32) -> f64 {
        let own = self.list.iter().find(|c| c.id == id);
        own.map_or(f64::NEG_INFINITY, |c| c.logit - self.log_sum_exp())
    }
}
