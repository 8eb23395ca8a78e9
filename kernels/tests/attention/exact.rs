//! Attention in f64, and error bounds for a correct kernel.

use super::blocks::{IMAGES, block_ends};
use super::{Case, Data, sinks};
use octavo_kernels::{Isa, PromptBits};

/// Scale of the scores.
pub(super) const SCALE: f32 = 0.37;

/// Maximum relative rounding error of f32 and of bf16: half a step.
pub(super) const HALF: f64 = 0.5 * f32::EPSILON as f64;

const HALF_BF16: f64 = 1.0 / 256.0;

/// Relative error of `e^x`: two steps of f32 (see `simd::exp`).
const EXP: f64 = 2.0 * f32::EPSILON as f64;

/// Relative error of soft caps (see `elementwise.rs`); their slope is at most 1.
const CAP: f64 = 5.8 * f32::EPSILON as f64;

/// Returns the relative error of a sum of `k` terms, each rounding being half a step of the sum of
/// magnitudes: all of one sign if they are few, else a random walk, doubled as a margin for the
/// longest walk.
pub(super) fn roundings(k: usize) -> f64 {
    let k = k as f64;
    k.min(2.0 * k.sqrt()) * HALF
}

/// Rounding of prefill attention beyond f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rounds {
    Not,
    ToIntegers,
    ToBf16,
}

impl Rounds {
    /// Returns the rounding of a case's prefill kernels.
    pub(super) fn of(c: Case) -> Rounds {
        match c.isa {
            Isa::Amx if c.head_dim.is_multiple_of(32) && c.scores.alibi.is_none() => Rounds::ToBf16,
            Isa::Amx => Rounds::Not,
            // scores that fall with distance are computed in floats
            _ if c.scores.alibi.is_some() => Rounds::Not,
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

/// Limits of integer attention: magnitude of an integer, length of a query or key in integers, and
/// sum of the integer weights of a span.
const LARGEST: f64 = 16_383.0;
const LENGTH: f64 = 46_300.0;
const TOTAL: f64 = 131_000.0;

/// Error bound of a sum of values rounded to whole steps, relative to the root of the sum of these
/// steps squared: each is off by at most half a step, uniformly distributed, and six times the rms
/// of that exceeds the longest walk. Steps include those of f32.
const STEPS: f64 = 6.0 / 3.464 * 1.001;

/// Returns the length of a vector.
fn length(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Returns the quantization step of a query or key.
fn step(x: &[f64]) -> f64 {
    let largest = x.iter().fold(0.0f64, |a, v| a.max(v.abs()));
    (length(x.iter().copied()) / LENGTH).max(largest / LARGEST)
}

/// Returns the errors of a head's weighted sums due to integer values and integer weights, in spans
/// of 128 positions, the first position being `first`. The integer weights have one step per span,
/// and represent weights times the values' steps.
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

/// Returns the first position that token `t` attends to, where attention is causal.
fn first_seen(c: Case, t: usize) -> usize {
    match (c.scores.window, c.scores.chunked) {
        (None, _) => 0,
        (Some(window), false) => (t + 1).saturating_sub(window),
        (Some(chunk), true) => t - t % chunk,
    }
}

/// Returns the first position that token `t` of `len` attends to, and the end of the range.
fn seen(c: Case, t: usize, len: usize) -> (usize, usize) {
    match (c.scores.window, c.scores.causal) {
        _ if c.scores.blocks => {
            let ends = block_ends(len);
            let block = ends.partition_point(|end| *end <= t);
            (block.checked_sub(1).map_or(0, |b| ends[b]), ends[block])
        }
        (_, true) => {
            let first = first_seen(c, t);
            let own = IMAGES.into_iter().find(|image| image.contains(&t));
            let own = own.filter(|_| c.scores.images);
            (first, own.map_or(t + 1, |image| image.end))
        }
        (None, false) => (0, len),
        (Some(window), false) => (t.saturating_sub(window / 2), len.min(t + window / 2 + 1)),
    }
}

/// Computes the score of a query and a key, and its error bound.
fn score(c: Case, query: &[f64], keys: &[f64], rounds: Rounds) -> (f64, f64) {
    let (d, scale) = (c.head_dim, f64::from(c.scores.scale));
    let part = match rounds {
        Rounds::Not => HALF + roundings(d / 2 + 1),
        Rounds::ToIntegers => 4.0 * HALF,
        Rounds::ToBf16 => HALF + roundings(3 * d) + 3.0 * HALF_BF16 * HALF_BF16,
    };
    let products = keys.iter().zip(query).map(|(a, b)| a * b * scale);
    let magnitude: f64 = products.clone().map(f64::abs).sum();
    let (score, mut error) = (products.sum::<f64>(), part * magnitude);
    if rounds == Rounds::ToIntegers {
        let [of_query, of_keys] = [query, keys].map(|x| length(x.iter().copied()));
        let steps = step(query) * of_keys + step(keys) * of_query;
        error += scale * STEPS * steps;
    }
    c.scores.cap.map_or((score, error), |cap| {
        let capped = f64::from(cap) * (score / f64::from(cap)).tanh();
        (capped, error + CAP * capped.abs())
    })
}

/// Computes head `h` of token `t`: exact values, each with the error bound of a correct kernel.
///
/// The result is a mean of values `v` with weights `w = e^(s - max) / sum`, so that a relative
/// error `e` of each weight moves it by `sum w |v - mean| e`: errors common to all weights cancel.
/// The error of a weight has three parts:
/// - that of its score: the query's scaling, two sums of half of the head's products each (or of
///   the products that share a scale, then of those), and their sum, relative to `scale sum |q k|`;
/// - that of its difference to the maximum, which accumulates over the differences to each running
///   maximum: half a step of it;
/// - that of `e^x`, once for itself and once for every later span of 128 positions, or piece of 512
///   where pieces are merged, whose maximum is larger.
///
/// In addition, weighted values and weights are summed over positions, with one rescaling per span.
/// The last step multiplies by a reciprocal, which is also rounded.
///
/// A cap passes on a score's error and adds its own; a fall with distance is one more rounding. A
/// sink is one more score, without an error, with a value of zero; rescaling sums to its maximum is
/// one more join.
///
/// The matrix unit splits queries and keys into two bf16 each: this loses what is below the second
/// of either, and the product of both second ones, each a bf16 rounding squared. It adds three
/// products for one. Weights are rounded to bf16 where they multiply values, but not in their sum.
/// The values of these tests are exact in bf16.
///
/// Integer attention rounds queries and keys to whole steps, then computes exact sums of their
/// products, which are multiplied by two scales; for weights and values see [`integers`].
pub(super) fn exact(c: Case, data: &Data, t: usize, h: usize, rounds: Rounds) -> Vec<(f64, f64)> {
    let (first, end) = seen(c, t, data.1.len() / (c.heads_kv * c.head_dim));
    let positions: Vec<usize> = (first..end).collect();
    exact_of(c, data, (t, h), rounds, &positions)
}

/// Does the same for a token that attends to some positions.
pub(super) fn exact_of(
    c: Case,
    (q, k, v): &Data,
    (t, h): (usize, usize),
    rounds: Rounds,
    positions: &[usize],
) -> Vec<(f64, f64)> {
    let d = c.head_dim;
    let hk = h / (c.heads / c.heads_kv);
    let row = |x: &[f32], heads: usize, t: usize, h: usize| -> Vec<f64> {
        let at = (t * heads + h) * d;
        x[at..at + d].iter().map(|v| f64::from(*v)).collect()
    };
    let query = row(q, c.heads, t, h);
    let (first, n) = (positions[0], positions[positions.len() - 1] + 1);
    let slope = c.scores.alibi.map(|alibi| f64::from(alibi.slope(h)));
    let mut scores: Vec<(f64, f64)> = positions
        .iter()
        .map(|&p| {
            let (score, error) = score(c, &query, &row(k, c.heads_kv, p, hk), rounds);
            slope.map_or((score, error), |slope| {
                let fallen = score - slope * t.abs_diff(p) as f64;
                (fallen, error + HALF * fallen.abs())
            })
        })
        .collect();
    let values = positions.iter().map(|p| row(v, c.heads_kv, *p, hk));
    let mut values: Vec<Vec<f64>> = values.collect();
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

/// Checks a head of a token against its exact values; returns the largest error as a fraction of
/// its bound.
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
