//! From logits to a token: greedy, or a chain of filters and a seeded draw; log-probabilities on
//! the side.
//!
//! The chain is logit bias, penalties, temperature, min-p, top-k, top-p, in that order unless
//! [`SamplerConfig::order`] says otherwise. llama.cpp's default order is penalties, top-k, top-p,
//! min-p, temperature: there the cut-offs see the distribution before the temperature, here after
//! it, so equal settings keep other tokens at temperatures other than 1.
//!
//! Everything is in f64 and every tie goes to the lowest id, so a draw depends on the logits, the
//! configuration, the seed and the number of draws before it, and on nothing else. The generator is
//! SplitMix64 (Steele, Lea and Flood 2014), written here so that no dependency's version can change
//! what a seed means: the n-th draw takes the n-th output's upper 53 bits as a fraction in [0, 1).

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

/// A step of the chain whose place can be chosen. Logit bias always comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalties over the last tokens.
    Penalties,
    /// Divides the logits.
    Temperature,
    /// Keeps tokens at least this probable relative to the most probable one.
    MinP,
    /// Keeps the most probable tokens.
    TopK,
    /// Keeps the smallest set of most probable tokens that reaches this probability.
    TopP,
}

impl Stage {
    /// The order in use unless another is asked for.
    pub const DEFAULT_ORDER: [Stage; 5] = [
        Stage::Penalties,
        Stage::Temperature,
        Stage::MinP,
        Stage::TopK,
        Stage::TopP,
    ];

    /// Its name, which is llama.cpp's own.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Penalties => "penalties",
            Stage::Temperature => "temperature",
            Stage::MinP => "min_p",
            Stage::TopK => "top_k",
            Stage::TopP => "top_p",
        }
    }

    /// Reads an order: names separated by `,` or `;`. A stage left out does not run.
    ///
    /// # Errors
    /// [`ConfigError`] on an unknown name, or one given twice.
    pub fn parse_order(text: &str) -> Result<Vec<Stage>, ConfigError> {
        let mut order = Vec::new();
        for name in text
            .split([',', ';'])
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let stage: Stage = name.parse()?;
            if order.contains(&stage) {
                return Err(ConfigError::new(
                    "samplers",
                    "each stage once",
                    format!("{name} twice"),
                ));
            }
            order.push(stage);
        }
        Ok(order)
    }
}

impl FromStr for Stage {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Stage, ConfigError> {
        let name = s.replace('-', "_");
        Stage::DEFAULT_ORDER
            .into_iter()
            .find(|stage| stage.name() == name || (*stage == Stage::Temperature && name == "temp"))
            .ok_or_else(|| {
                ConfigError::new(
                    "samplers",
                    "penalties, temperature, min_p, top_k or top_p",
                    s.to_owned(),
                )
            })
    }
}

/// How tokens are chosen. The default is greedy, without bias and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 takes the most likely token (after bias and penalties) and draws
    /// nothing.
    pub temperature: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most probable tokens until their sum reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Logits of recent tokens are divided (if positive) or multiplied by this; 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted once from a recent token's logit.
    pub presence_penalty: f32,
    /// Subtracted from a recent token's logit for each time it occurred.
    pub frequency_penalty: f32,
    /// How many tokens count as recent, the prompt's included; 0 switches penalties off.
    pub penalty_window: usize,
    /// Added to the logits of these tokens before anything else; negative infinity bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seeds the draws.
    pub seed: u64,
    /// Stages in the order they run; one that is left out does not run.
    pub order: Vec<Stage>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
            order: Stage::DEFAULT_ORDER.to_vec(),
        }
    }
}

/// A setting out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct ConfigError {
    /// The setting.
    pub what: &'static str,
    /// Its range.
    pub expected: String,
    /// The value.
    pub got: String,
}

impl ConfigError {
    fn new(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> ConfigError {
        ConfigError {
            what,
            expected: expected.into(),
            got: got.into(),
        }
    }
}

/// Logits from which no token can be chosen.
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
    /// Not one logit per token of the vocabulary.
    #[error("logits: expected one for each of {expected} tokens, got {got}")]
    Length {
        /// Size of the vocabulary.
        expected: usize,
        /// Logits given.
        got: usize,
    },
    /// Logit bias bans every token.
    #[error("logit bias bans every token of the vocabulary")]
    NothingLeft,
}

impl SamplerConfig {
    /// Whether the most likely token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    fn validate(&self, n_vocab: usize) -> Result<(), ConfigError> {
        let range = |ok: bool, what, expected: &str, got: f32| match ok {
            true => Ok(()),
            false => Err(ConfigError::new(what, expected, got.to_string())),
        };
        let t = self.temperature;
        range(
            t.is_finite() && t >= 0.0,
            "temperature",
            "a finite number of at least 0",
            t,
        )?;
        range(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "top_p",
            "a number above 0 and up to 1",
            self.top_p,
        )?;
        range(
            (0.0..=1.0).contains(&self.min_p),
            "min_p",
            "a number from 0 to 1",
            self.min_p,
        )?;
        let r = self.repeat_penalty;
        range(
            r.is_finite() && r > 0.0,
            "repeat_penalty",
            "a finite number above 0",
            r,
        )?;
        range(
            self.presence_penalty.is_finite(),
            "presence_penalty",
            "a finite number",
            self.presence_penalty,
        )?;
        range(
            self.frequency_penalty.is_finite(),
            "frequency_penalty",
            "a finite number",
            self.frequency_penalty,
        )?;
        for &(id, bias) in &self.logit_bias {
            if id as usize >= n_vocab {
                return Err(ConfigError::new(
                    "logit_bias",
                    format!("a token id below {n_vocab}"),
                    id.to_string(),
                ));
            }
            range(
                bias < f32::INFINITY,
                "logit_bias",
                "a finite number, or -inf to ban the token",
                bias,
            )?;
        }
        Ok(())
    }

    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && self.order.contains(&Stage::Penalties)
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
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

    /// Uniform in [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f64,
}

/// Most likely first; equal logits by id, so that no result depends on how a sort treats ties.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Chooses tokens for one sequence: remembers the recent tokens and the state of the generator.
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

    /// Tells the sampler of a token that is now part of the sequence, from the prompt or generated.
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

    /// Whether nothing but the place of the largest logit decides.
    pub fn takes_the_largest(&self) -> bool {
        self.config.is_greedy() && self.config.logit_bias.is_empty() && !self.config.penalises()
    }

    /// Chooses a token from the raw logits, one per token of the vocabulary. Does not
    /// [`accept`](Sampler::accept) it.
    ///
    /// # Errors
    /// [`SampleError`] if a logit is not finite, their number is wrong, or bias bans every token.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        check(logits, self.n_vocab)?;
        if self.takes_the_largest() {
            return argmax(logits).ok_or(SampleError::NothingLeft);
        }
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
        if self.config.penalises() && self.config.is_greedy() {
            self.penalise();
        }
        self.candidates.retain(|c| c.logit > f64::NEG_INFINITY);
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

    /// llama.cpp's formula: the repeat penalty moves a logit away from likely whatever its sign.
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

    /// Draws from the softmax of what is left.
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

fn check(logits: &[f32], n_vocab: usize) -> Result<(), SampleError> {
    if logits.len() != n_vocab {
        return Err(SampleError::Length {
            expected: n_vocab,
            got: logits.len(),
        });
    }
    match logits.iter().position(|l| !l.is_finite()) {
        Some(id) => Err(SampleError::NonFinite {
            id,
            value: logits[id],
        }),
        None => Ok(()),
    }
}

/// Values compared side by side: a vector's worth on any CPU.
const LANES: usize = 16;
/// Values of which only the largest is kept at first.
const BLOCK: usize = 64 * LANES;

/// The token with the highest logit, the lowest id of equals; `None` of nothing. What is not a
/// number is never chosen unless there is nothing else. Vocabularies are long, so this goes by
/// blocks, of which only the best is searched.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (0, f32::NEG_INFINITY);
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        let largest = largest(values);
        if largest > best.1 {
            best = (block, largest);
        }
    }
    let first = best.0 * BLOCK;
    let place = logits.get(first..)?.iter().position(|l| *l == best.1);
    u32::try_from(first + place.unwrap_or(0))
        .ok()
        .filter(|_| !logits.is_empty())
}

fn largest(values: &[f32]) -> f32 {
    let max = |a: f32, b: f32| if b > a { b } else { a };
    let (lanes, rest) = values.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for lane in lanes {
        most.iter_mut()
            .zip(lane)
            .for_each(|(most, value)| *most = max(*most, *value));
    }
    most.iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, max)
}

/// Whether all values are numbers, and no infinite ones.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    // zero, or not a number where the value is not finite
    let (lanes, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for lane in lanes {
        sums.iter_mut()
            .zip(lane)
            .for_each(|(sum, value)| *sum += value * 0.0);
    }
    sums.iter().all(|sum| *sum == 0.0) && rest.iter().all(|value| value.is_finite())
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

/// A token's natural log-probability under the raw logits, and the most likely tokens with theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token.
    pub id: u32,
    /// Its log-probability over the whole vocabulary.
    pub logprob: f64,
    /// The most likely tokens, best first, with theirs.
    pub top: Vec<(u32, f64)>,
}

/// Log-probabilities before bias, penalties and everything else: `ln softmax` over the whole
/// vocabulary in f64.
///
/// # Errors
/// [`SampleError::NonFinite`] if a logit is not finite, [`SampleError::Length`] if there is none
/// for `id`.
pub fn logprobs(logits: &[f32], id: u32, n_top: usize) -> Result<Logprobs, SampleError> {
    check(logits, logits.len())?;
    let length = SampleError::Length {
        expected: id as usize + 1,
        got: logits.len(),
    };
    let own = f64::from(*logits.get(id as usize).ok_or(length)?);
    let max = logits
        .iter()
        .fold(f64::NEG_INFINITY, |m, &l| m.max(f64::from(l)));
    let lse = max
        + logits
            .iter()
            .map(|&l| (f64::from(l) - max).exp())
            .sum::<f64>()
            .ln();
    let top = top_logits(logits, n_top)
        .into_iter()
        .map(|(id, l)| (id, f64::from(l) - lse))
        .collect();
    Ok(Logprobs {
        id,
        logprob: own - lse,
        top,
    })
}

/// The `n` highest logits with their tokens, best first, equal ones by id; NaN counts as lowest.
pub fn top_logits(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let key = |l: f32| {
        if l.is_nan() {
            f32::NEG_INFINITY
        } else {
            l + 0.0
        }
    }; // + 0.0: a negative zero equals zero
    let order = |a: &u32, b: &u32| {
        key(logits[*b as usize])
            .total_cmp(&key(logits[*a as usize]))
            .then(a.cmp(b))
    };
    let mut ids: Vec<u32> = (0u32..).zip(logits).map(|(id, _)| id).collect();
    let n = n.min(ids.len());
    if n < ids.len() {
        ids.select_nth_unstable_by(n, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    ids.into_iter()
        .map(|id| (id, logits[id as usize]))
        .collect()
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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

    #[test]
    fn the_largest_is_found_wherever_it_stands() {
        assert_eq!(argmax(&[]), None);
        for len in [
            1,
            2,
            LANES,
            LANES + 1,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            3 * BLOCK + 5,
        ] {
            let mut values: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
            assert_eq!(
                argmax(&values),
                Some(0),
                "the lowest id of equals, of {len}"
            );
            for at in [0, len / 2, len - 1] {
                values[at] = 3.0;
                // an equal one behind it
                values[len - 1] = 3.0;
                assert_eq!(argmax(&values), Some(at as u32), "of {len}");
                values[len - 1] = -9.0;
                values[at] = f32::NAN;
                let other = values
                    .iter()
                    .position(|v| *v == -1.0)
                    .or(values.iter().position(|v| !v.is_nan()));
                assert_eq!(
                    argmax(&values),
                    Some(other.unwrap_or(0) as u32),
                    "of {len}, without {at}"
                );
                values[at] = -9.0;
            }
            assert_eq!(argmax(&vec![f32::NEG_INFINITY; len]), Some(0));
        }
    }

    #[test]
    fn one_value_that_is_not_finite_is_seen() {
        for len in [1, LANES, 3 * LANES + 5] {
            let mut values = vec![f32::MAX; len];
            assert!(are_finite(&values));
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    values[at] = bad;
                    assert!(!are_finite(&values), "{bad} at {at} of {len}");
                }
                values[at] = f32::MIN_POSITIVE;
            }
        }
    }
}
