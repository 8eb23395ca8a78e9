//! Attention in f64, and how far a correct kernel may be from it.

use super::{Case, block_ends, sinks};
use octavo_kernels::{Isa, PromptBits};

/// What multiplies the scores.
pub(super) const SCALE: f32 = 0.37;

/// Half of a step of f32 and of bf16: the most that rounding is off, relatively.
const HALF: f64 = 0.5 * f32::EPSILON as f64;

const HALF_BF16: f64 = 1.0 / 256.0;

/// `e^x` is right to two steps of f32 (see `simd::exp`).
const EXP: f64 = 2.0 * f32::EPSILON as f64;

/// Caps are right to so much, relatively (see `elementwise.rs`); their slope is at most 1.
const CAP: f64 = 5.8 * f32::EPSILON as f64;

/// Roundings of a sum of `k` terms, of half a step of the sum of magnitudes each: all of one sign
/// where they are few, else a random walk, and twice that leaves room for the longest of all walks.
fn roundings(k: usize) -> f64 {
    let k = k as f64;
    k.min(2.0 * k.sqrt()) * HALF
}

/// How attention of prompts rounds beyond f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rounds {
    Not,
    ToIntegers,
    ToBf16,
}

impl Rounds {
    /// What the kernels for prompts of a case do.
    pub(super) fn of(c: Case) -> Rounds {
        match c.isa {
            Isa::Amx if c.head_dim.is_multiple_of(32) => Rounds::ToBf16,
            Isa::Amx => Rounds::Not,
            isa if isa
                .prompt_rounding_in(PromptBits::Sixteen, c.types)
                .attention
                > 0.0
                && c.head_dim.is_multiple_of(16) =>
            {
                Rounds::ToIntegers
            }
            _ => Rounds::Not,
        }
    }
}

/// Integers reach up to so much; those of a query or a key have this length at most, and weights of
/// a span add up to so much.
const LARGEST: f64 = 16_383.0;
const LENGTH: f64 = 46_300.0;
const TOTAL: f64 = 131_000.0;

/// How far a sum of values rounded to whole steps may be off, as a part of the root of the summed
/// squares of these steps: each is off by half a step at most, evenly spread, and six times the rms
/// of it is more than the longest of all walks. Steps are those of f32 too.
const STEPS: f64 = 6.0 / 3.464 * 1.001;

/// The length of a vector.
fn length(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// The step of the integers of a query or a key.
fn step(x: &[f64]) -> f64 {
    let largest = x.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    (length(x.iter().copied()) / LENGTH).max(largest / LARGEST)
}

/// How far sums of values are off, value by value of a head, for the integers of values and of the
/// weights of each span of 128 positions, the first of which is given: the latter have one step a
/// span, and stand for weights times the values' steps.
fn integers(weights: &[(f64, f64)], values: &[Vec<f64>], first: usize) -> Vec<f64> {
    let d = values[0].len();
    let steps: Vec<f64> = values
        .iter()
        .map(|v| length(v.iter().copied()) / LARGEST)
        .collect();
    let rounded = |i: usize| weights[i].0 * steps[i];
    let mut errors = vec![0.0; d];
    let mut at = 0;
    while at < values.len() {
        let end = values.len().min(at + 128 - (first + at) % 128);
        let largest = (at..end).map(rounded).fold(0.0, f64::max);
        let step = (largest / LARGEST).max((at..end).map(rounded).sum::<f64>() / TOTAL);
        for (i, error) in errors.iter_mut().enumerate() {
            // a sink has no value
            let met = (at..end).filter(|p| steps[*p] > 0.0);
            *error += STEPS * step * length(met.map(|p| values[p][i] / steps[p]));
        }
        at = end;
    }
    let of_values = STEPS * length((0..values.len()).map(rounded));
    errors.iter_mut().for_each(|error| *error += of_values);
    errors
}

/// The first position that token `t` of `len` sees, and where those end.
fn seen(c: Case, t: usize, len: usize) -> (usize, usize) {
    match (c.scores.window, c.scores.causal) {
        _ if c.scores.blocks => {
            let ends = block_ends(len);
            let block = ends.partition_point(|end| *end <= t);
            (block.checked_sub(1).map_or(0, |b| ends[b]), ends[block])
        }
        (None, true) => (0, t + 1),
        (Some(window), true) => ((t + 1).saturating_sub(window), t + 1),
        (None, false) => (0, len),
        (Some(window), false) => (t.saturating_sub(window / 2), len.min(t + window / 2 + 1)),
    }
}

/// Head `h` of token `t`: exact values, and how far a correct kernel may be from each.
///
/// The result is a mean of values `v` by weights `w = e^(s - max) / sum`, so that weights off by a
/// part `e` each move it by `sum w |v - mean| e`: whatever is common to all weights falls out. A
/// weight is off by
/// - its score's error: the query's scaling, two sums of half of the head's products each (or of
///   the products that share a scale, then of those), and their sum, as parts of `scale sum |q k|`;
/// - that of the difference to the maximum, which is the sum of all differences to a maximum of the
///   time: half a step of it;
/// - that of `e^x`, once for itself and once for every later span of 128 positions, or piece of 512
///   where pieces are merged, whose maximum is larger.
///
/// Besides, weighted values and weights are summed over positions, with a product for every span.
/// The last step multiplies with an inverse, which is rounded too.
///
/// A cap passes a score's error on, and adds its own. A sink is one more score, without an error,
/// of a value that is zero; bringing sums to its maximum is one more join.
///
/// The matrix unit takes queries and keys as two bf16 each: what is below the second is lost of
/// either, and so is the product of both second ones, each a rounding of bf16 squared. It adds
/// three products for one. Weights are rounded to bf16 where they meet values, not where they are
/// summed up. The values of these tests are bf16 themselves.
///
/// Attention in integers rounds queries and keys to whole steps, and then has exact sums of their
/// products, which are multiplied with two scales; weights and values as [`integers`] says.
pub(super) fn exact(
    c: Case,
    (q, k, v): &(Vec<f32>, Vec<f32>, Vec<f32>),
    t: usize,
    h: usize,
    rounds: Rounds,
) -> Vec<(f64, f64)> {
    let d = c.head_dim;
    let hk = h / (c.heads / c.heads_kv);
    let row = |x: &[f32], heads: usize, t: usize, h: usize| -> Vec<f64> {
        let at = (t * heads + h) * d;
        x[at..at + d].iter().map(|v| f64::from(*v)).collect()
    };
    let (scale, query) = (f64::from(c.scores.scale), row(q, c.heads, t, h));
    let (first, n) = seen(c, t, k.len() / (c.heads_kv * d));
    let score_part = match rounds {
        Rounds::Not => HALF + roundings(d / 2 + 1),
        Rounds::ToIntegers => 4.0 * HALF,
        Rounds::ToBf16 => HALF + roundings(3 * d) + 3.0 * HALF_BF16 * HALF_BF16,
    };
    let mut scores: Vec<(f64, f64)> = (first..n)
        .map(|p| {
            let keys = row(k, c.heads_kv, p, hk);
            let products = keys.iter().zip(&query).map(|(a, b)| a * b * scale);
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            let (score, mut error) = (products.sum::<f64>(), score_part * magnitude);
            if rounds == Rounds::ToIntegers {
                let [of_query, of_keys] = [&query, &keys].map(|x| length(x.iter().copied()));
                let steps = step(&query) * of_keys + step(&keys) * of_query;
                error += scale * STEPS * steps;
            }
            c.scores.cap.map_or((score, error), |cap| {
                let capped = f64::from(cap) * (score / f64::from(cap)).tanh();
                (capped, error + CAP * capped.abs())
            })
        })
        .collect();
    let mut values: Vec<Vec<f64>> = (first..n).map(|p| row(v, c.heads_kv, p, hk)).collect();
    if let Some(sinks) = sinks(c) {
        scores.push((f64::from(sinks[h]), 0.0));
        values.push(vec![0.0; d]);
    }
    let max = scores.iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|(s, _)| (s - max).exp()).sum();
    // spans and pieces end at fixed positions
    let joins = n.div_ceil(128) - first / 128 + n / 512 - first / 512 + usize::from(c.sinks);
    let weights: Vec<(f64, f64)> = scores
        .iter()
        .map(|(s, error)| {
            let off = error + (max - s) * HALF + EXP * joins as f64;
            ((s - max).exp() / total, off)
        })
        .collect();
    let sums = roundings(scores.len() + joins);
    let narrow = match rounds {
        Rounds::Not => 0.0,
        Rounds::ToIntegers => 4.0 * HALF,
        Rounds::ToBf16 => HALF_BF16,
    };
    let of_integers = match rounds {
        Rounds::ToIntegers => integers(&weights, &values, first),
        _ => vec![0.0; d],
    };
    (0..d)
        .map(|i| {
            let terms = || {
                weights
                    .iter()
                    .zip(&values)
                    .map(|((w, off), v)| (w, off, v[i]))
            };
            let mean: f64 = terms().map(|(w, _, v)| w * v).sum();
            let of_weights: f64 = terms().map(|(w, off, v)| w * off * (v - mean).abs()).sum();
            let magnitude: f64 = terms().map(|(w, _, v)| w * v.abs()).sum();
            let of_sums = (sums + narrow) * magnitude + (sums + 2.0 * HALF) * mean.abs();
            (mean, of_weights + of_sums + of_integers[i])
        })
        .collect()
}

/// Holds a head of a token against its exact values; returns the largest part of a bound.
pub(super) fn hold(c: Case, exact: &[(f64, f64)], got: &[f32], what: &str) -> f64 {
    let mut worst = 0.0f64;
    for ((exact, bound), got) in exact.iter().zip(got) {
        let error = (exact - f64::from(*got)).abs();
        assert!(
            error <= *bound,
            "{} {what}: expected {exact}, got {got}: {error:e} > {bound:e}",
            c.isa
        );
        worst = worst.max(error / bound);
    }
    worst
}
