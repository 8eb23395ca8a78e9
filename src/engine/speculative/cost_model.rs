//! Decides how many tokens to draft: measures their cost and counts how often they are accepted.
//! Times decide only how much is drafted, which changes no text.

use std::time::Duration;

/// Maximum number of tokens drafted at a time.
pub(crate) const MAX_DRAFT_TOKENS: usize = 15;

/// Largest step, in rows, whose time is measured separately for its size.
const MAX_ROWS: usize = 64;
/// Initial estimate of an extra row's cost, as a fraction of a one-row step.
const ROW_COST: f64 = 0.3;
/// Weight of a new measurement in a mean.
const NEW_WEIGHT: f64 = 0.2;
/// Fraction of all time that drafting may lose.
const LOSS: f64 = 0.02;
/// Steps without drafts to measure before there are any: the first after a prompt is slow.
const BASELINE_STEPS: usize = 3;
/// Steps with drafts after which one without is measured again: this baseline may have changed
/// since, and was slower than usual if the machine had other work then.
const MAX_INTERVAL: usize = 24;
/// First such interval, which doubles each time up to [`MAX_INTERVAL`], while drafting would not be
/// worth its time if steps without drafts took half of their measured time.
const FIRST_INTERVAL: usize = 4;
/// Weight of a faster step without drafts in their mean: a slow one may be so by chance.
const FASTER_WEIGHT: f64 = 0.5;
/// Time that drafting may lose, in steps without drafts: before anything was gained, and at max,
/// also of earlier gains.
const FIRST_LOSS: f64 = 1.0;
const MAX_LOSS: f64 = 16.0;

/// Cost model: what steps cost, and what drafting has gained so far.
#[derive(Clone, Debug)]
pub(crate) struct CostModel {
    /// Seconds of a step by its number of rows, and the number of measurements.
    steps: [Option<f64>; MAX_ROWS + 1],
    measured: [usize; MAX_ROWS + 1],
    /// Steps with drafts since the last one without, and after how many of them comes another.
    since_plain: DraftedSteps,
    interval: usize,
    /// Seconds of all steps.
    spent: f64,
    /// Seconds that drafting has gained.
    gained: f64,
}

/// Steps with draft tokens.
#[derive(Clone, Copy, Debug, Default)]
struct DraftedSteps {
    steps: usize,
    seconds: f64,
    /// Steps without drafts that would have given as many tokens.
    stands_for: f64,
}

/// How many draft tokens are worth their time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DraftPlan {
    /// Number of draft tokens.
    pub(super) n: usize,
    /// Gain in speed, in tokens per second of all texts together.
    pub(super) gain: f64,
}

/// A request for draft tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftRequest {
    /// Tokens that the step computes in any case: one for each text.
    pub(super) texts: usize,
    /// Rows that it has already: those, and draft tokens of other texts.
    pub(super) rows: usize,
    /// Maximum number of draft tokens.
    pub(super) max: usize,
    /// Seconds that each takes to draft.
    pub(super) each: f64,
    /// Draft regardless of cost (`--lookup on`).
    pub(super) is_forced: bool,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            steps: [None; MAX_ROWS + 1],
            measured: [0; MAX_ROWS + 1],
            since_plain: DraftedSteps::default(),
            interval: FIRST_INTERVAL,
            spent: 0.0,
            gained: 0.0,
        }
    }
}

impl CostModel {
    /// Records the time of a decode step of `texts` rows and `drafted` draft tokens, of which
    /// `accepted` were accepted.
    pub(crate) fn record_step(
        &mut self,
        texts: usize,
        drafted: usize,
        accepted: usize,
        time: Duration,
    ) {
        let time = time.as_secs_f64();
        self.spent += time;
        let plain = self.step(texts);
        if drafted == 0 {
            // the steps since the last one were compared with a baseline that was too slow
            let too_slow = plain.map_or(0.0, |plain| (plain - time).max(0.0));
            self.gained -= self.since_plain.stands_for * too_slow;
            if self.since_plain.steps >= self.interval {
                self.interval = (2 * self.interval).min(MAX_INTERVAL);
            }
            self.since_plain = DraftedSteps::default();
        } else {
            self.since_plain.steps += 1;
            if let Some(plain) = plain {
                let stands_for = 1.0 + accepted as f64 / texts as f64;
                self.since_plain.stands_for += stands_for;
                self.since_plain.seconds += time;
                let gained = self.gained + stands_for * plain - time;
                self.gained = gained.min(MAX_LOSS * plain);
            }
        }
        let rows = texts + drafted;
        let Some(mean) = self.steps.get_mut(rows) else {
            return;
        };
        let earlier = self.measured[rows];
        self.measured[rows] += 1;
        // the first measurement is dropped
        *mean = Some(match *mean {
            Some(old) if earlier > 1 && drafted == 0 && time < old => {
                old + FASTER_WEIGHT * (time - old)
            }
            Some(old) if earlier > 1 => updated_mean(old, time),
            _ => time,
        });
    }

    /// Records the seconds that drafting took.
    pub(super) fn record_drafting(&mut self, seconds: f64) {
        self.spent += seconds;
        self.gained -= seconds;
    }

    /// Returns how many draft tokens are worth their time, if these are the probabilities that they
    /// are accepted, each given that those before it are.
    pub(super) fn plan(&self, request: DraftRequest, chance: impl Fn(usize) -> f64) -> DraftPlan {
        let DraftRequest {
            texts,
            rows,
            max,
            each,
            is_forced,
        } = request;
        let (Some(plain), Some(before)) = (self.step(texts), self.step(rows)) else {
            return DraftPlan::default();
        };
        let since_plain = &self.since_plain;
        let is_sure = since_plain.stands_for * plain > 2.0 * since_plain.seconds;
        let interval = if is_sure { MAX_INTERVAL } else { self.interval };
        if since_plain.steps >= interval
            || self
                .measured
                .get(texts)
                .is_some_and(|n| *n < BASELINE_STEPS)
                && !is_forced
        {
            return DraftPlan::default();
        }
        // draft tokens of other texts in the same step gain what they cost, or more
        let (rate, without) = (texts as f64 / plain, before * texts as f64 / plain);
        let allowed = self.gained + (LOSS * self.spent).min(MAX_LOSS * plain) + FIRST_LOSS * plain;
        let mut best = DraftPlan::default();
        let (mut right, mut expected) = (1.0, 0.0);
        for n in 1..=max {
            right *= chance(n - 1);
            expected += right;
            let cost = self.step(rows + n).unwrap_or(before) - before + n as f64 * each;
            let gain = (without + expected) / (before + cost) - rate;
            let is_first = is_forced && best.n == 0;
            if is_first || (gain > best.gain && (is_forced || cost <= allowed)) {
                best = DraftPlan { n, gain };
            }
        }
        best
    }

    /// Estimates the seconds of a step of this many rows; `None` as long as none was measured.
    fn step(&self, rows: usize) -> Option<f64> {
        if let Some(known) = self.steps.get(rows).copied().flatten() {
            return Some(known);
        }
        let known = |at: usize| Some((at, self.steps[at]?));
        let (at, below) = (1..=rows.min(MAX_ROWS)).rev().find_map(known)?;
        let above = (rows + 1..=MAX_ROWS).find_map(known);
        Some(match above {
            Some((end, above)) => below + (above - below) * (rows - at) as f64 / (end - at) as f64,
            None => {
                let (first, one) = (1..=MAX_ROWS).find_map(known)?;
                let row = match at > first {
                    true => (below - one) / (at - first) as f64,
                    false => ROW_COST * one / first as f64,
                };
                below + row.max(0.0) * (rows - at) as f64
            }
        })
    }
}

/// Returns a mean with another measurement.
pub(super) fn updated_mean(mean: f64, seen: f64) -> f64 {
    mean + NEW_WEIGHT * (capped(mean, seen) - mean)
}

/// Returns how much of a measurement counts, given the mean of those before: other work of the
/// machine is not part of the cost.
pub(super) fn capped(mean: f64, seen: f64) -> f64 {
    seen.min(2.0 * mean)
}

/// Acceptance rates of draft tokens, by class.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptanceRate<const N: usize> {
    rates: [f64; N],
    /// Number of draft tokens that each rate is the mean of; at first a weight of its initial
    /// value.
    samples: [f64; N],
}

impl<const N: usize> AcceptanceRate<N> {
    /// Starts with given rates, which weigh as much as `weight` draft tokens each.
    pub(super) fn new(rates: [f64; N], weight: f64) -> AcceptanceRate<N> {
        let samples = [weight; N];
        AcceptanceRate { rates, samples }
    }

    /// Records whether a draft token of a class was right.
    pub(super) fn record(&mut self, kind: usize, was_right: bool) {
        let (rate, samples) = (&mut self.rates[kind], &mut self.samples[kind]);
        *samples = (*samples + 1.0).min(MAX_SAMPLES);
        *rate += (f64::from(u8::from(was_right)) - *rate) / *samples;
    }

    /// Returns the acceptance rate of a class.
    pub(super) fn rate(&self, kind: usize) -> f64 {
        self.rates[kind]
    }
}

/// Maximum number of draft tokens that a rate is the mean of, because texts change.
pub(super) const MAX_SAMPLES: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a row takes `row` seconds beside the 10 ms of every step.
    fn measured(row: f64) -> CostModel {
        let mut cost_model = CostModel::default();
        for _ in 0..BASELINE_STEPS {
            for rows in 1..=16 {
                let time = Duration::from_secs_f64(0.01 + row * (rows - 1) as f64);
                cost_model.record_step(rows, 0, 0, time);
            }
        }
        cost_model.spent = 100.0;
        cost_model
    }

    fn request(max: usize) -> DraftRequest {
        DraftRequest {
            texts: 1,
            rows: 1,
            max,
            each: 0.0,
            is_forced: false,
        }
    }

    #[test]
    fn what_is_sure_and_cheap_is_drafted_far() {
        let n = |row: f64, chance: f64| measured(row).plan(request(15), |_| chance).n;
        assert_eq!(n(0.001, 0.99), 15);
        assert_eq!(n(0.001, 0.05), 0);
        assert_eq!(n(0.012, 0.99), 0);
        let (some, more) = (n(0.003, 0.6), n(0.001, 0.6));
        assert!(0 < some && some < more && more < 15, "{some} {more}");
    }

    #[test]
    fn drafts_are_as_long_as_tokens_come_fastest() {
        // with 3, 4 and 5 draft tokens 3.44 tokens come in 22 ms, 4.1 in 26 and 4.69 in 30
        let drafted = DraftRequest {
            each: 0.003,
            ..request(15)
        };
        let best = measured(0.001).plan(drafted, |_| 0.9);
        assert_eq!(best.n, 4);
        assert!(
            (best.gain - (4.0951 / 0.026 - 100.0)).abs() < 0.1,
            "{best:?}"
        );
    }

    #[test]
    fn little_that_is_known_is_soon_learned_and_much_slowly() {
        let [mut new, mut known] =
            [3.0, MAX_SAMPLES].map(|weight| AcceptanceRate::new([0.6, 0.6], weight));
        for rates in [&mut new, &mut known] {
            (0..4).for_each(|_| rates.record(0, true));
        }
        assert!(new.rate(0) > 0.82, "{}", new.rate(0));
        assert!((0.6..0.7).contains(&known.rate(0)), "{}", known.rate(0));
        assert_eq!((new.rate(1), known.rate(1)), (0.6, 0.6));
        (0..100).for_each(|_| new.record(0, false));
        assert!(new.rate(0) < 0.01);
    }

    #[test]
    fn nothing_is_drafted_before_a_step_was_measured_unless_it_is_forced() {
        let cost_model = CostModel::default();
        assert_eq!(cost_model.plan(request(15), |_| 0.99).n, 0);
        let forced = DraftRequest {
            is_forced: true,
            ..request(15)
        };
        assert!(measured(0.012).plan(forced, |_| 0.01).n == 1);
    }

    #[test]
    fn what_drafts_may_lose_is_a_small_part_of_the_time() {
        // drafts look good and are never accepted
        let mut cost_model = CostModel::default();
        let (step, row) = (0.01, 0.004);
        let mut lost = 0.0;
        for _ in 0..1000 {
            let n = cost_model.plan(request(15), |_| 0.95).n;
            let time = step + row * n as f64;
            lost += time - step;
            cost_model.record_step(1, n, 0, Duration::from_secs_f64(time));
        }
        let part = lost / (1000.0 * step);
        assert!(0.0 < part && part < 0.03, "{part}");
    }

    #[test]
    fn a_slow_first_step_makes_no_draft_look_better_than_it_is() {
        // drafts are always accepted and cost more than they save; the first step took ten times as
        // long as others do
        let mut cost_model = CostModel::default();
        let (step, row) = (0.01, 0.012);
        let mut spent = 0.0;
        for i in 0..300 {
            let n = cost_model.plan(request(7), |_| 0.99).n;
            let time = if i == 0 { 0.1 } else { step + row * n as f64 };
            spent += time - n as f64 * step;
            cost_model.record_step(1, n, n, Duration::from_secs_f64(time));
        }
        assert!(spent < 0.09 + 300.0 * step * 1.03, "{spent}");
    }

    #[test]
    fn what_all_is_held_against_is_measured_again() {
        let mut cost_model = measured(0.001);
        let mut plain = 0;
        for _ in 0..100 {
            let n = cost_model.plan(request(7), |_| 0.9).n;
            plain += usize::from(n == 0);
            cost_model.record_step(1, n, n, Duration::from_secs_f64(0.01 + 0.001 * n as f64));
        }
        assert_eq!(plain, 100 / (MAX_INTERVAL + 1));
    }

    #[test]
    fn a_slow_beginning_makes_no_draft_look_better_than_it_is() {
        // a row costs nearly half a step, and a third of the drafts are accepted
        let (step, row) = (0.016, 0.007);
        let mut cost_model = CostModel::default();
        let (mut spent, mut tokens) = (0.0, 0);
        for i in 0..150 {
            // other work at the beginning
            let slower = if i < 8 { 1.6 } else { 1.0 };
            let n = cost_model.plan(request(7), |_| 0.75).n;
            let right = if i % 3 == 0 { n } else { 0 };
            let time = slower * (step + row * n as f64);
            spent += time;
            tokens += 1 + right;
            cost_model.record_step(1, n, right, Duration::from_secs_f64(time));
        }
        let plain = (tokens as f64 + 8.0 * 0.6) * step;
        assert!(spent < 1.05 * plain, "{spent} {plain}");
    }

    #[test]
    fn other_texts_make_drafts_dearer() {
        let cost_model = measured(0.002);
        let n = |texts: usize| {
            let request = DraftRequest {
                texts,
                rows: texts,
                ..request(8)
            };
            cost_model.plan(request, |_| 0.7).n
        };
        assert!(n(1) > n(8), "{} {}", n(1), n(8));
    }
}
