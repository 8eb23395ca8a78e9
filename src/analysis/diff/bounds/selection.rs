//! Choices of keys: which of them the errors of their scores explain.

use octavo_kernels::CacheLayer;
use octavo_model::{Op, ValueId};

use super::{Bounds, U};

/// Operands of `Op::SelectKeys`.
#[derive(Clone, Copy)]
pub(super) struct Selection {
    pub(super) q: ValueId,
    pub(super) weights: ValueId,
    pub(super) cache: CacheLayer,
}

impl Bounds<'_> {
    /// Returns whether the scores of a row explain that two executions have chosen other keys: the
    /// positions are valid, and none that one of them lacks scores higher than one it has by more
    /// than both may be off.
    pub(super) fn explains_choice(&self, of: Selection, r: usize, choices: [&[f32]; 2]) -> bool {
        let Selection { q, weights, cache } = of;
        let (k, _) = self.cache[&cache];
        let width = |value: ValueId| self.model.graph().values[value.index()].width;
        let (dim, heads) = (width(k), width(weights));
        let Some([q_rows, weight_rows, keys]) = self.seen([q, weights, k]) else {
            return true;
        };
        let weight_row = &weight_rows[r * heads..][..heads];
        let q_row = &q_rows[r * heads * dim..][..heads * dim];
        let score = |key: &[f32]| -> f64 {
            let heads = q_row.chunks_exact(dim).zip(weight_row);
            heads
                .map(|(q, w)| f64::from(*w) * dot(q, key).max(0.0))
                .sum()
        };
        let scores: Vec<f64> = keys.chunks_exact(dim).take(r + 1).map(score).collect();
        let bound = self.score_error([q, weights, k], r);
        choices.into_iter().all(|chosen| {
            let places: Vec<usize> = chosen.iter().map(|p| *p as usize).collect();
            let valid = places.is_sorted() && places.iter().all(|p| *p < scores.len());
            let mut distinct = places.clone();
            distinct.dedup();
            if !valid || distinct.len() != chosen.len().min(scores.len()) {
                return false;
            }
            let lowest = places
                .iter()
                .map(|p| scores[*p])
                .fold(f64::INFINITY, f64::min);
            let others = (0..scores.len()).filter(|p| places.binary_search(p).is_err());
            others
                .map(|p| scores[p])
                .all(|score| score <= lowest + 2.0 * bound)
        })
    }

    /// Returns the most that a score of a row can be off, by Cauchy and Schwarz's inequality.
    fn score_error(&self, inputs: [ValueId; 3], r: usize) -> f64 {
        let [q, weights, k] = inputs.map(|value| {
            let width = self.width(value).sqrt();
            let stats = &self.stats[value.index()];
            move |at: usize| [stats.error[at], stats.size[at]].map(|rms| width * rms)
        });
        let ([q_error, q], [w_error, w]) = (q(r), weights(r));
        let (mut k_error, mut k_size) = (0.0f64, 0.0f64);
        for at in 0..=r {
            let [error, size] = k(at);
            k_error = k_error.max(error + self.rounding.keys * size);
            k_size = k_size.max(size);
        }
        let dim = self.width(inputs[2]);
        let own = (8.0 + 4.0 * dim.sqrt()) * U;
        w * (q_error * k_size + q * k_error) + (w_error + own * w) * q * k_size
    }

    /// Returns the first execution's values, if they are known.
    fn seen(&self, values: [ValueId; 3]) -> Option<[&[f32]; 3]> {
        let [a, b, c] = values.map(|value| self.chosen_by.get(&value).map(Vec::as_slice));
        Some([a?, b?, c?])
    }

    /// Returns whether choices depend on a value.
    pub(super) fn decides(&self, at: usize, value: ValueId) -> bool {
        let reads = |op: &Op| match *op {
            Op::TopK { x, .. } => x == value,
            Op::SelectKeys { q, weights, .. } => [q, weights].contains(&value),
            Op::KvWrite { k, .. } => k == value,
            _ => false,
        };
        let graph = self.model.graph();
        let selects = |op: &Op| matches!(op, Op::TopK { .. } | Op::SelectKeys { .. });
        graph.nodes[at..].iter().any(|node| reads(&node.op))
            && graph.nodes.iter().any(|node| selects(&node.op))
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}
