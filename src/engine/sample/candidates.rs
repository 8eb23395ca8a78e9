//! The candidates for the next token, and what is known of their softmax.
//!
//! At first every token is one, so loops over all of them are vectorized kernels, whose results
//! have the same bits on every instruction set. Tokens are listed only once some are gone.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use octavo_kernels::{ExpSums, LOGIT_BLOCK, LogitKernels, exp_f64};

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
    kernels: LogitKernels,
    /// Finite logits of those that can be drawn.
    pub(super) logits: Vec<f64>,
    /// Their tokens; empty while every token is one, in the order of ids.
    ids: Vec<u32>,
    /// Number of further ones whose logits are negative infinity. They are never drawn, but
    /// llama.cpp's filters count them.
    pub(super) masked: usize,
    /// Largest logit of each block, once it is known.
    maxima: OnceLock<Vec<f64>>,
    /// Softmax of the logits, once it is known.
    softmax: OnceLock<Softmax>,
}

/// Softmax of the candidates.
#[derive(Clone, Debug)]
pub(super) struct Softmax {
    /// Largest logit.
    pub(super) max: f64,
    /// Sum of `e^(logit - max)`.
    pub(super) total: f64,
    /// Logarithm of the sum of the exponentials of the logits.
    pub(super) log_sum: f64,
    /// Entropy in nats.
    pub(super) entropy: f64,
    /// Sums of each block.
    blocks: Vec<ExpSums>,
}

impl Softmax {
    fn new(max: f64, blocks: Vec<ExpSums>) -> Softmax {
        let total: f64 = blocks.iter().map(|sums| sums.powers).sum();
        let products: f64 = blocks.iter().map(|sums| sums.products).sum();
        Softmax {
            max,
            total,
            log_sum: max + total.ln(),
            entropy: total.ln() - products / total,
            blocks,
        }
    }
}

impl Candidates {
    /// Makes every token a candidate, with its logit. Returns whether all logits are finite;
    /// nothing is right otherwise.
    pub(super) fn fill(&mut self, logits: &[f32]) -> bool {
        self.masked = 0;
        self.ids.clear();
        self.forget();
        let mut maxima = Vec::new();
        let are_finite = self.kernels.widen(logits, &mut self.logits, &mut maxima);
        self.maxima = OnceLock::from(maxima);
        are_finite
    }

    /// Makes these tokens the candidates, and masks none.
    pub(super) fn start_from(&mut self, list: &[Candidate]) {
        self.masked = 0;
        self.replace(list);
    }

    /// Forgets what is known of the logits, which change.
    fn forget(&mut self) {
        self.maxima.take();
        self.softmax.take();
    }

    /// Returns the number of candidates, masked ones excluded.
    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    /// Returns the number of candidates, masked ones included.
    pub(super) fn size(&self) -> usize {
        self.logits.len() + self.masked
    }

    /// Returns the tokens; none if every token is a candidate.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    fn at(&self, place: usize) -> Candidate {
        Candidate {
            id: self.ids.get(place).copied().unwrap_or(place as u32),
            logit: self.logits[place],
        }
    }

    /// Iterates over the candidates in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Candidate> {
        (0..self.len()).map(|place| self.at(place))
    }

    fn maxima(&self) -> &[f64] {
        self.maxima.get_or_init(|| {
            let mut maxima = Vec::new();
            self.kernels.maxima(&self.logits, &mut maxima);
            maxima
        })
    }

    /// Returns the largest logit; negative infinity if there is no candidate.
    pub(super) fn max(&self) -> f64 {
        let maxima = self.maxima().iter().copied();
        maxima.fold(f64::NEG_INFINITY, f64::max)
    }

    /// Returns the softmax of the logits.
    pub(super) fn softmax(&self) -> &Softmax {
        self.softmax.get_or_init(|| {
            let max = self.max();
            Softmax::new(max, self.kernels.exp_sums(&self.logits, max))
        })
    }

    /// Replaces `all` by the probability of each candidate.
    pub(super) fn probabilities(&self, all: &mut Vec<f64>) {
        let Softmax { max, total, .. } = *self.softmax();
        all.clone_from(&self.logits);
        self.kernels.exps(all, max);
        all.iter_mut().for_each(|power| *power /= total);
    }

    /// Returns the candidates for which `stays` is true, in their order. It must be false of every
    /// logit below `floor`: blocks that have no other are skipped.
    pub(super) fn select(&self, floor: f64, stays: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
        let mut list = Vec::new();
        let none = Candidate { id: 0, logit: 0.0 };
        let mut kept = [none; LOGIT_BLOCK];
        for (block, most) in self.maxima().iter().enumerate() {
            if *most < floor {
                continue;
            }
            // each is written, and overwritten if it does not stay: branches would be guessed wrong
            let mut n = 0;
            let places = block * LOGIT_BLOCK..self.len().min((block + 1) * LOGIT_BLOCK);
            let mut keep = |id: u32, logit: f64| {
                let one = Candidate { id, logit };
                kept[n % LOGIT_BLOCK] = one;
                n += usize::from(stays(&one));
            };
            let logits = &self.logits[places.clone()];
            match self.ids.get(places.clone()) {
                Some(ids) => ids.iter().zip(logits).for_each(|(id, l)| keep(*id, *l)),
                None => (places.start as u32..)
                    .zip(logits)
                    .for_each(|(id, l)| keep(id, *l)),
            }
            list.extend_from_slice(&kept[..n]);
        }
        list
    }

    /// Returns every candidate, in their order.
    pub(super) fn all(&self) -> Vec<Candidate> {
        self.iter().collect()
    }

    /// Returns `e^(logit - max)` of the candidates in a list, with the largest logit of all.
    pub(super) fn powers(&self, list: &[Candidate]) -> Vec<f64> {
        let mut powers: Vec<f64> = list.iter().map(|c| c.logit).collect();
        self.kernels.exps(&mut powers, self.softmax().max);
        powers
    }

    /// Replaces the candidates by these.
    pub(super) fn replace(&mut self, list: &[Candidate]) {
        self.forget();
        self.logits.clear();
        self.logits.extend(list.iter().map(|c| c.logit));
        self.ids.clear();
        self.ids.extend(list.iter().map(|c| c.id));
    }

    /// Masks the candidates for which `stays` is false; it is false of every logit below `floor`.
    pub(super) fn mask(&mut self, floor: f64, stays: impl Fn(&Candidate) -> bool) {
        let list = self.select(floor, stays);
        self.masked += self.len() - list.len();
        self.replace(&list);
    }

    /// Adds bias to the logits of tokens, all of which are candidates yet, and masks those that it
    /// makes negative infinity or that are `banned`.
    pub(super) fn bias(&mut self, bias: &[(u32, f32)], banned: &[u32]) {
        if bias.is_empty() && banned.is_empty() {
            return;
        }
        self.forget();
        for &(id, bias) in bias {
            self.logits[id as usize] += f64::from(bias);
        }
        let biased = bias.iter().map(|(id, _)| *id);
        let mut gone: Vec<u32> = biased
            .filter(|id| self.logits[*id as usize] == f64::NEG_INFINITY)
            .chain(banned.iter().copied())
            .filter(|id| (*id as usize) < self.len())
            .collect();
        gone.sort_unstable();
        gone.dedup();
        if !gone.is_empty() {
            self.remove(&gone);
        }
    }

    /// Masks these tokens, in the order of their ids. Every token is a candidate yet.
    fn remove(&mut self, gone: &[u32]) {
        let all = self.len() as u32;
        let ends = gone.iter().copied().chain([all]);
        let mut first = 0;
        for end in ends {
            let to = self.ids.len();
            self.logits.copy_within(first as usize..end as usize, to);
            self.ids.extend(first..end);
            first = end + 1;
        }
        self.logits.truncate(self.ids.len());
        self.masked += gone.len();
    }

    /// Changes the logits of those of these tokens that are candidates.
    pub(super) fn adjust<T>(&mut self, tokens: &BTreeMap<u32, T>, by: impl Fn(f64, &T) -> f64) {
        self.forget();
        if self.ids.is_empty() {
            for (id, value) in tokens {
                if let Some(logit) = self.logits.get_mut(*id as usize) {
                    *logit = by(*logit, value);
                }
            }
        } else if self.ids.is_sorted() {
            for (id, value) in tokens {
                if let Ok(place) = self.ids.binary_search(id) {
                    self.logits[place] = by(self.logits[place], value);
                }
            }
        } else {
            for (logit, id) in self.logits.iter_mut().zip(&self.ids) {
                if let Some(value) = tokens.get(id) {
                    *logit = by(*logit, value);
                }
            }
        }
    }

    /// Multiplies the logits by a positive factor.
    pub(super) fn scale(&mut self, factor: f64) {
        let maxima = self.maxima.take();
        self.forget();
        self.logits.iter_mut().for_each(|logit| *logit *= factor);
        if let Some(mut maxima) = maxima {
            maxima.iter_mut().for_each(|most| *most *= factor);
            self.maxima = OnceLock::from(maxima);
        }
    }

    /// Replaces the logits by what `of` makes of each probability in `probabilities`.
    pub(super) fn reshape(&mut self, probabilities: &[f64], of: impl Fn(f64) -> f64) {
        self.forget();
        for (logit, p) in self.logits.iter_mut().zip(probabilities) {
            *logit = of(*p);
        }
    }

    /// Returns the most likely candidate.
    pub(super) fn best(&self) -> Option<Candidate> {
        let max = self.max();
        let equals = self.select(max, |c| c.logit == max);
        equals.into_iter().min_by_key(|c| c.id)
    }

    /// Returns the `n` most likely candidates, or all if there are fewer, the best first.
    pub(super) fn largest(&self, n: usize) -> Vec<Candidate> {
        if n == 0 {
            return Vec::new();
        }
        // the largest of n blocks are n logits: no smaller one can be among the n largest
        let mut maxima = self.maxima().to_vec();
        let floor = match n <= maxima.len() {
            true => {
                *maxima
                    .select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a))
                    .1
            }
            false => f64::NEG_INFINITY,
        };
        let mut list = self.select(floor, |c| c.logit >= floor);
        if n < list.len() {
            list.select_nth_unstable_by(n - 1, likelier);
            list.truncate(n);
        }
        list.sort_unstable_by(likelier);
        list
    }

    /// Draws from the softmax by a number in [0, 1).
    pub(super) fn draw(&self, unit: f64) -> Option<u32> {
        let Softmax { max, total, .. } = *self.softmax();
        let target = unit * total;
        let mut before = 0.0;
        for (block, sums) in self.softmax().blocks.iter().enumerate() {
            let end = before + sums.powers;
            if end > target {
                let first = block * LOGIT_BLOCK;
                let mut sum = before;
                for place in first..self.len().min(first + LOGIT_BLOCK) {
                    let power = exp_f64(self.logits[place] - max);
                    sum += power;
                    if sum > target && power > 0.0 {
                        return Some(self.at(place).id);
                    }
                }
                // in this order the block's sum was rounded down: the next block begins with more
            }
            before = end;
        }
        // only if target rounded up to the total itself: the last token that has any probability
        let has_any = |place: &usize| exp_f64(self.logits[*place] - max) > 0.0;
        let last = (0..self.len()).rev().find(has_any);
        last.map(|place| self.at(place).id)
    }

    /// Returns the natural log-probability of a candidate under the softmax; negative infinity of a
    /// token that is none.
    pub(super) fn logprob(&self, id: u32) -> f64 {
        let own = match self.ids.is_empty() {
            true => self.logits.get(id as usize),
            false => {
                let place = self.ids.iter().position(|own| *own == id);
                place.map(|place| &self.logits[place])
            }
        };
        own.map_or(f64::NEG_INFINITY, |logit| logit - self.softmax().log_sum)
    }
}

#[cfg(test)]
mod tests;
