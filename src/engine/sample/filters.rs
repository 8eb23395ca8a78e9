//! The filters, which cut the candidates down or change their logits.

use std::f64::consts::LN_2;

use super::candidates::{Candidate, Candidates, Softmax, likelier};

/// Buckets that candidates are put in where a filter needs the first few in an order.
const BUCKETS: usize = 256;

/// A difference, absolute of logits and relative of sums, that is far above rounding errors.
const MARGIN: f64 = 1e-9;

impl Candidates {
    /// Keeps the first `n` of a list of all candidates, of which masked ones are the last.
    fn truncate(&mut self, mut list: Vec<Candidate>, n: usize) {
        self.masked = self.masked.min(n.saturating_sub(self.len()));
        list.truncate(n);
        self.replace(&list);
    }

    /// Sorts candidates by `key`, and equal ones by id, and keeps the first of them until
    /// `is_enough` is true of the sum of their powers ([`Candidates::powers`]); keeps at least
    /// `min_keep`, and all if it never is. `list` has the first ones, and enough, or all.
    /// `distance` is at least 0 and never falls in the order of the keys.
    fn keep_until(
        &mut self,
        mut list: Vec<Candidate>,
        key: impl Fn(&Candidate) -> u64,
        distance: impl Fn(&Candidate) -> f64,
        min_keep: usize,
        is_enough: impl Fn(f64) -> bool,
    ) {
        if list.len() < min_keep {
            list = self.all();
        }
        let powers = self.powers(&list);
        let buckets = Buckets::new(&list, &distance);
        let last = buckets.last(&list, &powers, min_keep, &is_enough);
        // integers are sorted faster than what a function compares
        let entry = |(place, c): (u32, &Candidate)| {
            u128::from(key(c)) << 64 | u128::from(c.id) << 32 | u128::from(place)
        };
        let front = (0..).zip(&list).filter(|(_, c)| buckets.of(c) <= last);
        let mut entries: Vec<u128> = front.map(entry).collect();
        entries.sort_unstable();
        let places = entries.iter().map(|entry| *entry as u32 as usize);
        let mut sum = 0.0;
        let sufficient = places.clone().position(|place| {
            sum += powers[place];
            is_enough(sum)
        });
        let n = sufficient.map(|last| min_keep.max(last + 1));
        let kept: Vec<Candidate> = places
            .take(n.unwrap_or(usize::MAX))
            .map(|at| list[at])
            .collect();
        match n {
            Some(n) => self.truncate(kept, n),
            None => self.replace(&kept),
        }
    }

    /// Keeps the `k` most likely; 0 keeps all.
    pub(super) fn top_k(&mut self, k: usize) {
        if k > 0 && k < self.size() {
            let list = self.largest(k);
            self.truncate(list, k);
        }
    }

    /// Returns `ln(n / rest)` and a little more, with `n` the number of candidates. All that have
    /// less than the power of its negative together have less than half of `rest`.
    fn depth(&self, rest: f64) -> f64 {
        (2.0 * self.len() as f64 / rest).ln()
    }

    /// Keeps the most likely whose probabilities together reach `p`.
    pub(super) fn top_p(&mut self, p: f64, min_keep: usize) {
        if p >= 1.0 {
            return;
        }
        let Softmax { max, total, .. } = *self.softmax();
        let floor = max - self.depth((1.0 - p) * total);
        let list = self.select(floor, |c| c.logit >= floor);
        let descending = |c: &Candidate| !ascending(c.logit);
        let distance = |c: &Candidate| max - c.logit;
        self.keep_until(list, descending, distance, min_keep, |sum| sum >= p * total);
    }

    /// Keeps those at least `p` times as likely as the most likely one.
    pub(super) fn min_p(&mut self, p: f64, min_keep: usize) {
        if p <= 0.0 {
            return;
        }
        let floor = self.max() + p.ln();
        let list = self.select(floor, |c| c.logit >= floor);
        if list.len() < min_keep.max(1) {
            return self.top_k(min_keep.max(1));
        }
        self.replace(&list);
        self.masked = 0;
    }

    /// Keeps those whose information content is closest to the entropy, until their probabilities
    /// together exceed `p` (Meister and others 2023, locally typical sampling).
    pub(super) fn typical(&mut self, p: f64, min_keep: usize) {
        if p >= 1.0 {
            return;
        }
        let Softmax {
            max,
            total,
            log_sum,
            entropy,
            ..
        } = *self.softmax();
        let distance = |c: &Candidate| (log_sum - c.logit - entropy).abs();
        // all that are likelier than the entropy says, and of the others all but a small rest
        let likeliest = entropy - (log_sum - max) + MARGIN;
        let furthest = likeliest.max(self.depth(1.0 - p) - entropy);
        let list = self.select(f64::NEG_INFINITY, |c| distance(c) <= furthest);
        let closer = |c: &Candidate| ascending(distance(c));
        self.keep_until(list, closer, distance, min_keep, |sum| sum > p * total);
    }

    /// Masks those more than `n` standard deviations of all logits below the largest (Tang and
    /// others 2024, top-nσ).
    pub(super) fn top_n_sigma(&mut self, n: f64) {
        if n <= 0.0 || self.size() <= 1 {
            return;
        }
        let count = self.len() as f64;
        let mean = sum_of(&self.logits, |logit| logit) / count;
        let squares = sum_of(&self.logits, |logit| (logit - mean) * (logit - mean));
        let floor = self.max() - n * (squares / count).sqrt();
        self.mask(floor, |c| c.logit >= floor);
    }

    /// Removes those of at least the probability `threshold`, but the least likely of them.
    pub(super) fn exclude_top_choices(&mut self, threshold: f64, min_keep: usize) {
        let log_sum = self.softmax().log_sum;
        let floor = log_sum + threshold.ln();
        // the power decides only where the logarithm's rounding might
        let is_top = |c: &Candidate| match (c.logit - floor).abs() > MARGIN {
            true => c.logit > floor,
            false => (c.logit - log_sum).exp() >= threshold,
        };
        let tops = self.select(floor - MARGIN, is_top);
        let Some(last) = tops.iter().max_by(|a, b| likelier(a, b)) else {
            return;
        };
        if self.size() - (tops.len() - 1) >= min_keep {
            let list = self.select(f64::NEG_INFINITY, |c| !is_top(c) || c == last);
            self.replace(&list);
        }
    }

    /// Divides logits by a temperature; 0 leaves the most likely candidate.
    pub(super) fn divide(&mut self, temperature: f64) {
        if temperature > 0.0 {
            if temperature != 1.0 {
                self.scale(1.0 / temperature);
            }
        } else if let Some(best) = self.best() {
            self.mask(best.logit, |c| *c == best);
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
        let entropy = self.softmax().entropy / (size as f64).ln();
        self.divide(least + (most - least) * entropy.powf(exponent));
    }

    /// Keeps those of at most `surprise` bits, and at least the most likely one.
    pub(super) fn keep_surprise(&mut self, surprise: f64) {
        let log_sum = self.softmax().log_sum;
        let bits = |c: &Candidate| (log_sum - c.logit) / LN_2;
        let floor = log_sum - surprise * LN_2 - MARGIN;
        let mut list = self.select(floor, |c| bits(c) <= surprise);
        if list.is_empty() {
            list.extend(self.best());
        }
        self.replace(&list);
        self.masked = 0;
    }

    /// Sorts the `n` most likely to the front, as a selection does; the order of the others is the
    /// selection's.
    pub(super) fn bring_forward(&mut self, n: usize) {
        let mut list = self.all();
        let n = n.min(list.len());
        if n < list.len() {
            list.select_nth_unstable_by(n, likelier);
        }
        list[..n].sort_unstable_by(likelier);
        self.replace(&list);
    }
}

/// Candidates by distance, so that only those near enough are sorted.
struct Buckets<'a, D> {
    distance: &'a D,
    /// Buckets for each unit of distance.
    scale: f64,
}

impl<'a, D: Fn(&Candidate) -> f64> Buckets<'a, D> {
    fn new(list: &[Candidate], distance: &'a D) -> Buckets<'a, D> {
        let furthest = list.iter().map(distance).fold(0.0, f64::max);
        let scale = match furthest > 0.0 {
            true => BUCKETS as f64 / furthest,
            false => 0.0,
        };
        Buckets { distance, scale }
    }

    fn of(&self, c: &Candidate) -> usize {
        (((self.distance)(c) * self.scale) as usize).min(BUCKETS - 1)
    }

    /// Returns the first bucket that, with those before it, has at least `min_keep` candidates, and
    /// powers whose sum is enough.
    fn last(
        &self,
        list: &[Candidate],
        powers: &[f64],
        min_keep: usize,
        is_enough: impl Fn(f64) -> bool,
    ) -> usize {
        let mut all = [(0, 0.0); BUCKETS];
        for (c, power) in list.iter().zip(powers) {
            let bucket = &mut all[self.of(c)];
            *bucket = (bucket.0 + 1, bucket.1 + power);
        }
        let (mut n, mut sum) = (0, 0.0);
        let reached = all.iter().position(|bucket| {
            (n, sum) = (n + bucket.0, sum + bucket.1);
            // less a margin: another order of the sum is rounded in another way
            n >= min_keep && is_enough(sum * (1.0 - MARGIN))
        });
        reached.unwrap_or(BUCKETS - 1)
    }
}

/// Returns an integer that is the larger, the larger the number is.
fn ascending(x: f64) -> u64 {
    let bits = x.to_bits();
    match x.is_sign_negative() {
        true => !bits,
        false => bits | 1 << 63,
    }
}

/// Sums what `of` makes of values, in lanes side by side.
fn sum_of(values: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += of(*value);
        }
    }
    let rest: f64 = rest.iter().map(|value| of(*value)).sum();
    lanes.iter().sum::<f64>() + rest
}
