//! Allowed distance between two computations of one tensor, derived op by op.
//!
//! Errors are Euclidean, per position, and divided by the square root of the width ("rms"). For
//! each op, the error explained by its inputs is the op's response to a small change of them, plus
//! the op's own rounding:
//!
//! * products (beyond deliberate kernel rounding): a change `e` of the input in a random direction
//!   becomes `e * |W|_F / sqrt(rows)`; the sum of `k` products in f32 rounds like a random walk,
//!   `(2 sqrt(k) + 8) u |x| |W|_F / sqrt(rows)`; two different quantizations of W differ by their
//!   quantization step;
//! * norms divide by the norm of the group: by the smallest head norm of the row, for per-head
//!   norms;
//! * attention: a change of a logit changes the weighted mean of the values by at most as much,
//!   relatively; logits change by `scale sqrt(d) (e_q |k| + |q| e_k)`, and values pass their own
//!   error on. A soft cap shrinks changes and rounds once more; a sliding window leaves some of the
//!   values out, and a sink shrinks the weighted mean: bounds for all values hold for these too;
//! * gates: the slopes of `silu` and `gelu` are at most 1.13; the other factor is unchanged;
//! * soft caps and sigmoids: the slope is at most 1; squared ReLU: the slope is twice the positive
//!   value;
//! * sums, rotations and selections pass errors on unchanged;
//! * convolutions add up a few rows; linear attention adds values to a decaying state, so that the
//!   error of its output is the largest relative error of its inputs so far. An error of the decay
//!   factor weighs old values no more than new ones: `k` tokens back it has been applied `k` times,
//!   to values that have decayed `k` times;
//! * softmax has a slope of at most 1/2, and values of at most 1;
//! * expert choices change only where router scores are closer to each other than their errors: an
//!   expert in another's place is explained if its score, or that of its group, is that close
//!   (`near_tie.rs`). Where choices differ, everything computed from them may differ, unless the
//!   second execution continues with the first's choices;
//! * choices of keys likewise: one in another's place is explained if their scores are that close.
//!
//! These are statements about typical directions, so the allowed error is [`MARGIN`] times the
//! explained error. Since an op is held against the *measured* error of its inputs, it is never
//! blamed for errors of earlier ops.

mod explain;
mod rules;
mod selection;

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorType};
use octavo_kernels::{CacheLayer, TopGroups};

use super::Error;
use super::execution::{IMAGE_EMBEDDINGS, PIXELS, Rounding};
use super::near_tie::{Tie, tie};
use super::target::GraphInputs;
use octavo_model::{Network, Op, OwnedTap, ValueId, WeightId};
use rules::{rms, rms_of};
use selection::Selection;

/// Allowed error, as a multiple of the explained error. Errors of a trained model point in
/// directions that matter (outlier channels, sink tokens): over all models, types and instruction
/// sets of the tests the largest ratio to the explained error is 3.4; the smallest planted fault is
/// at 6000.
pub const MARGIN: f64 = 8.0;

/// Unit roundoff of f32.
const U: f64 = 1.0 / 16_777_216.0;

/// A tensor's measured errors and sizes, per position.
#[derive(Clone, Debug, Default)]
struct Stats {
    /// rms of the difference.
    error: Vec<f64>,
    /// rms of the first execution's values.
    size: Vec<f64>,
    /// Smallest rms of the values of one head.
    smallest_head: Vec<f64>,
}

/// Error and size of a tensor that its inputs explain, per position.
#[derive(Default)]
struct ErrorBound {
    /// rms of the difference.
    error: Vec<f64>,
    /// rms of the values.
    size: Vec<f64>,
}

/// Walks a graph along with the tensors of two executions of it.
pub struct Bounds<'a> {
    model: &'a dyn Network,
    other: &'a dyn Network,
    gguf: &'a Gguf,
    rounding: Rounding,
    graph_inputs: &'a GraphInputs,
    nodes: HashMap<OwnedTap, usize>,
    stats: Vec<Stats>,
    /// Key and value written to each layer's KV cache.
    cache: HashMap<CacheLayer, (ValueId, ValueId)>,
    gains: HashMap<WeightId, f64>,
    /// rms of the difference of pixels, if there are any.
    pixels: f64,
    /// The first execution's values that experts or keys are chosen by.
    chosen_by: HashMap<ValueId, Vec<f32>>,
    next: usize,
}

impl<'a> Bounds<'a> {
    /// Creates bounds for two executions, of `model` and of `other` (the second's), on the same
    /// inputs.
    pub(super) fn new(
        gguf: &'a Gguf,
        [model, other]: [&'a dyn Network; 2],
        rounding: Rounding,
        graph_inputs: &'a GraphInputs,
    ) -> Bounds<'a> {
        let all = model.graph().nodes.iter().enumerate();
        let nodes = all
            .filter_map(|(i, node)| Some((node.tap?.owned(), i)))
            .collect();
        let stats = vec![Stats::default(); model.graph().values.len()];
        let (cache, gains) = (HashMap::new(), HashMap::new());
        Bounds {
            model,
            other,
            gguf,
            rounding,
            graph_inputs,
            nodes,
            stats,
            cache,
            gains,
            pixels: 0.0,
            chosen_by: HashMap::new(),
            next: 0,
        }
    }

    /// Returns the rms error allowed at each position of a tensor, given all tensors observed
    /// before; then records both versions of this one. `None` if the graph has no such tensor.
    ///
    /// # Errors
    /// A weight that cannot be dequantized.
    pub fn observe(
        &mut self,
        tap: &OwnedTap,
        width: usize,
        a: &[f32],
        b: &[f32],
    ) -> Result<Option<Vec<f64>>, Error> {
        if tap.name == PIXELS {
            // pixels are whole steps of a byte: there is nothing to round differently
            let off = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
            self.pixels = rms_of(&off.collect::<Vec<_>>());
            return Ok(Some(vec![0.0; a.len() / width.max(1)]));
        }
        if tap.name == IMAGE_EMBEDDINGS {
            let graph = self.model.graph();
            self.explain_until(graph.nodes.len())?;
            // rows are in another order here, and others stand between them
            let errors = &self.stats[graph.hidden.index()].error;
            let largest = errors.iter().copied().fold(0.0, f64::max);
            return Ok(Some(vec![MARGIN * largest; a.len() / width.max(1)]));
        }
        let Some(&at) = self.nodes.get(tap) else {
            return Ok(None);
        };
        self.explain_until(at)?;
        self.next = self.next.max(at + 1);
        let mut bound = self.explain(at)?.error;
        if let Op::TopK { x, groups, .. } = self.model.graph().nodes[at].op {
            let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
            for (r, (error, (a, b))) in bound.iter_mut().zip(rows).enumerate() {
                let tie = self.tie_in((x, groups), r, [a, b]);
                if tie.is_none_or(|tie| !tie.is_near()) {
                    *error = 0.0;
                }
            }
        }
        if let Op::SelectKeys {
            q, weights, cache, ..
        } = self.model.graph().nodes[at].op
        {
            let of = Selection { q, weights, cache };
            let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
            for (r, (error, (a, b))) in bound.iter_mut().zip(rows).enumerate() {
                if a == b || !self.explains_choice(of, r, [a, b]) {
                    *error = 0.0;
                }
            }
        }
        let out = self.model.graph().nodes[at].out;
        let head_dim = self.normed_together(out);
        let mut stats = Stats::default();
        for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            let squares: f64 = a
                .iter()
                .zip(b)
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                .sum();
            stats.error.push((squares / width as f64).sqrt());
            stats.size.push(rms(a));
            stats
                .smallest_head
                .push(a.chunks(head_dim).map(rms).fold(f64::INFINITY, f64::min));
        }
        self.stats[out.index()] = stats;
        if self.decides(at, out) {
            self.chosen_by.insert(out, a.to_vec());
        }
        Ok(Some(bound.into_iter().map(|e| MARGIN * e).collect()))
    }

    /// Gives tensors before a node, which have no names, the error and size that their inputs
    /// explain.
    fn explain_until(&mut self, at: usize) -> Result<(), Error> {
        while self.next < at {
            let out = self.model.graph().nodes[self.next].out;
            let ErrorBound { error, size } = self.explain(self.next)?;
            self.stats[out.index()] = Stats {
                error,
                smallest_head: size.clone(),
                size,
            };
            self.next += 1;
        }
        Ok(())
    }

    /// Returns the score gap between experts that differ in two choices at one position; the tensor
    /// of choices must have been observed.
    pub fn tie(&self, tap: &OwnedTap, position: usize, choices: [&[f32]; 2]) -> Option<Tie> {
        let node = &self.model.graph().nodes[*self.nodes.get(tap)?];
        let Op::TopK { x, groups, .. } = node.op else {
            return None;
        };
        self.tie_in((x, groups), position, choices)
    }

    /// Clears a tensor's error: both executions continue with the first's values of it.
    pub fn agree(&mut self, tap: &OwnedTap) {
        if let Some(&at) = self.nodes.get(tap) {
            let out = self.model.graph().nodes[at].out;
            self.stats[out.index()].error.fill(0.0);
        }
    }

    fn width(&self, value: ValueId) -> f64 {
        self.model.graph().values[value.index()].width as f64
    }

    /// Compares two choices from row `r` of `x` with its scores; returns the gap of the one that is
    /// harder to explain. `None` if one of them is not a valid choice.
    fn tie_in(
        &self,
        (x, groups): (ValueId, Option<TopGroups>),
        r: usize,
        choices: [&[f32]; 2],
    ) -> Option<Tie> {
        // the error of a single value is at most that of the whole row
        let error = self.width(x).sqrt() * self.stats[x.index()].error[r];
        let width = self.model.graph().values[x.index()].width;
        let values = self.chosen_by.get(&x);
        let Some(row) = values.and_then(|values| values.chunks_exact(width).nth(r)) else {
            return Some(Tie::UNSEEN);
        };
        let [a, b] = choices.map(|ids| tie(row, groups, ids, error));
        Some(a?.harder(b?))
    }

    /// Returns the number of rows of a value; all positions are outputs.
    fn count(&self, value: ValueId) -> usize {
        let n = self.graph_inputs.n;
        self.model.graph().values[value.index()].rows.count(n, n)
    }

    /// Returns the number of adjacent values of a row that are normed together; the smallest, if
    /// the value is normed several times.
    fn normed_together(&self, value: ValueId) -> usize {
        let width = self.model.graph().values[value.index()].width;
        let norms = self.model.graph().nodes.iter();
        let groups = norms.filter_map(|node| match node.op {
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. } if x == value => {
                Some(weight)
            }
            _ => None,
        });
        let groups = groups.map(|weight| self.model.tensors().vector(weight).len());
        groups.fold(width, usize::min).max(1)
    }
}

/// Returns the relative rms error of a weight in a type: codes of b bits spread over three standard
/// deviations to each side, rounded to the nearest.
pub fn step(ty: TensorType) -> f64 {
    match ty {
        TensorType::F64 | TensorType::F32 => 0.0,
        TensorType::F16 => 1.0 / 4096.0 / 3f64.sqrt() * 2.0,
        TensorType::BF16 => 1.0 / 512.0 / 3f64.sqrt() * 2.0,
        _ => {
            let bits = (8 * ty.block_bytes() / ty.block_len()).max(1) as f64;
            6.0 / (bits.exp2() - 1.0) / 12f64.sqrt()
        }
    }
}
