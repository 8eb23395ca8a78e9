//! How far two computations of one tensor may be apart, derived op by op.
//!
//! Errors are Euclidean, per position, and divided by the square root of the width ("rms"). For
//! each op the error that its inputs explain follows from what the op does to a small change of
//! them, plus what the op itself rounds:
//!
//! * products (beyond what kernels round on purpose): a change `e` of the input that points nowhere
//!   in particular becomes `e * |W|_F / sqrt(rows)`; the sum of `k` products in f32 rounds like a
//!   random walk, `(2 sqrt(k) + 8) u |x| |W|_F / sqrt(rows)`; two different quantizations of W
//!   differ by the step of their codes;
//! * norms divide by the norm of the group: by the smallest one of the row, where heads are normed;
//! * attention: a change of a logit moves the mix of values by at most as much, relatively; logits
//!   change by `scale sqrt(d) (e_q |k| + |q| e_k)`, and values pass their own error on. A cap makes
//!   changes smaller and rounds once more; a window leaves some of the values out, and a sink makes
//!   the mix of the others smaller: what holds of all values holds of these;
//! * gates: the slopes of `silu` and `gelu` are at most 1.13; the other factor is as it is;
//! * soft caps and sigmoids: their slope is at most 1; of the square of what is above 0 it is twice
//!   the value;
//! * sums, rotations and selections pass errors on as they are;
//! * convolutions add a few rows up; linear attention adds values to a state that fades, so that
//!   the largest relative errors of its inputs so far are those of what it reads. What is off in
//!   how much is left makes no more of old values than of new ones: `k` tokens back it counts `k`
//!   times, of what has faded `k` times;
//! * softmax has a slope of at most 1/2, and is at most 1 in all;
//! * which experts are chosen changes only where values are as close to each other as their errors
//!   allow: an expert in another's place is explained if its score is, or that of its group
//!   (`near_tie.rs`). Where choices differ, so may whatever follows from them, unless the second
//!   execution goes on with the first's.
//!
//! These are statements about typical directions, so that what is allowed is [`MARGIN`] times what
//! is explained. Being held against the *measured* error of its inputs, an op is never blamed for
//! what came before it.

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorType};
use octavo_kernels::{
    Activation, CacheLayer, Function, MERGED_ROWS, Recurrence, Scores, TopGroups,
};

use super::Error;
use super::execution::{PIXELS, Rounding};
use super::near_tie::{Tie, tie};
use super::subject::Entering;
use octavo_model::{Network, Op, OwnedTap, ValueId, VecId, WeightId};

/// What is allowed, as a multiple of what is explained. Errors of a trained model point in
/// directions that matter (outlier channels, sink tokens): over all models, types and instruction
/// sets of the tests the largest ratio to what is explained is 3.4; the smallest planted fault is
/// at 6000.
pub const MARGIN: f64 = 8.0;

/// Unit roundoff of f32.
const U: f64 = 1.0 / 16_777_216.0;

/// A tensor's errors and sizes, per position.
#[derive(Clone, Debug, Default)]
struct Stats {
    /// rms of the difference.
    error: Vec<f64>,
    /// rms of the first's values.
    size: Vec<f64>,
    /// Smallest rms of a head's values.
    smallest_head: Vec<f64>,
}

/// What a tensor's inputs explain of it, per position.
#[derive(Default)]
struct Explained {
    /// rms of the difference.
    error: Vec<f64>,
    /// rms of the values.
    size: Vec<f64>,
}

/// Walks a graph with the tensors of two executions of it.
pub struct Bounds<'a> {
    model: &'a dyn Network,
    other: &'a dyn Network,
    gguf: &'a Gguf,
    rounding: Rounding,
    entering: &'a Entering,
    nodes: HashMap<OwnedTap, usize>,
    stats: Vec<Stats>,
    /// The values written to each layer's cache.
    cache: HashMap<CacheLayer, (ValueId, ValueId)>,
    gains: HashMap<WeightId, f64>,
    /// rms of the difference of pixels, where there are any.
    pixels: f64,
    /// The first execution's values where experts are chosen by them.
    chosen_by: HashMap<ValueId, Vec<f32>>,
    next: usize,
}

impl<'a> Bounds<'a> {
    /// For two executions of `model` and `other` (the second's), into which the same enters.
    pub(super) fn new(
        gguf: &'a Gguf,
        [model, other]: [&'a dyn Network; 2],
        rounding: Rounding,
        entering: &'a Entering,
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
            entering,
            nodes,
            stats,
            cache,
            gains,
            pixels: 0.0,
            chosen_by: HashMap::new(),
            next: 0,
        }
    }

    /// The rms error allowed at each position of a tensor, given all tensors shown before; then
    /// takes in this one's two versions. `None` if the graph has no such tensor.
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
            // whole numbers of steps of a byte: there is nothing to round differently
            let off = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
            self.pixels = rms_of(&off.collect::<Vec<_>>());
            return Ok(Some(vec![0.0; a.len() / width.max(1)]));
        }
        let Some(&at) = self.nodes.get(tap) else {
            return Ok(None);
        };
        // tensors without a name have the error and size that their inputs explain
        while self.next < at {
            let out = self.model.graph().nodes[self.next].out;
            let Explained { error, size } = self.explain(self.next)?;
            self.stats[out.index()] = Stats {
                error,
                smallest_head: size.clone(),
                size,
            };
            self.next += 1;
        }
        self.next = self.next.max(at + 1);
        let mut explained = self.explain(at)?.error;
        if let Op::TopK { x, groups, .. } = self.model.graph().nodes[at].op {
            let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
            for (r, (error, (a, b))) in explained.iter_mut().zip(rows).enumerate() {
                let tie = self.tie_in((x, groups), r, [a, b]);
                if tie.is_none_or(|tie| !tie.is_near()) {
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
        let mut behind = self.model.graph().nodes[at..].iter();
        if behind.any(|node| matches!(node.op, Op::TopK { x, .. } if x == out)) {
            self.chosen_by.insert(out, a.to_vec());
        }
        Ok(Some(explained.into_iter().map(|e| MARGIN * e).collect()))
    }

    /// What changed places in two choices of one position, of a tensor of choices that was observed.
    pub fn tie(&self, tap: &OwnedTap, position: usize, choices: [&[f32]; 2]) -> Option<Tie> {
        let node = &self.model.graph().nodes[*self.nodes.get(tap)?];
        let Op::TopK { x, groups, .. } = node.op else {
            return None;
        };
        self.tie_in((x, groups), position, choices)
    }

    /// Both go on with the first's values of a tensor that was observed.
    pub fn agree(&mut self, tap: &OwnedTap) {
        if let Some(&at) = self.nodes.get(tap) {
            let out = self.model.graph().nodes[at].out;
            self.stats[out.index()].error.fill(0.0);
        }
    }

    /// Error and size of a node's result, as its inputs explain them.
    fn explain(&mut self, at: usize) -> Result<Explained, Error> {
        let model = self.model;
        let count = self.count(model.graph().nodes[at].out);
        Ok(match model.graph().nodes[at].op {
            Op::Embed { table } | Op::EmbedPositions { table } => {
                let size = self.gain(table)? / (model.tensors().matrix(table).cols as f64).sqrt();
                let error = size * (self.other_type(table) + U);
                let width = model.graph().values[model.graph().nodes[at].out.index()].width;
                each_row(count, |r| match self.given(r, 0, width) {
                    Some(given) => (U * given, given),
                    None => (error, size),
                })
            }
            // the same for both, as far as the pixels are
            Op::Input => {
                let rows = self.entering.rows.chunks_exact(model.graph().input.max(1));
                let sizes: Vec<f64> = rows.map(rms).collect();
                each_row(count, |r| (self.pixels, sizes[r]))
            }
            Op::Merge { x } => {
                let x = &self.stats[x.index()];
                let together = |of: &[f64], r: usize| rms_of(&of[MERGED_ROWS * r..][..MERGED_ROWS]);
                each_row(count, |r| (together(&x.error, r), together(&x.size, r)))
            }
            Op::Constant { values } => {
                let size = rms(model.tensors().vector(values));
                each_row(count, |_| (0.0, size))
            }
            Op::Concat { a, b, each } => {
                let (a, b) = (&self.stats[a.index()], &self.stats[b.index()]);
                let each = each.map(|part| part as f64);
                let both = |a: f64, b: f64| {
                    ((each[0] * a * a + each[1] * b * b) / (each[0] + each[1])).sqrt()
                };
                each_row(count, |r| {
                    (both(a.error[r], b.error[r]), both(a.size[r], b.size[r]))
                })
            }
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. } => self.norm(x, weight),
            Op::MatMul { x, w } => self.product(x, w, 1)?,
            Op::AddBias { x, bias } => {
                let bias = rms(model.tensors().vector(bias));
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let size = x.size[r] + bias;
                    (x.error[r] + U * size, size)
                })
            }
            Op::AddGiven { x, from } => {
                let width = model.graph().values[x.index()].width;
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let given = self.given(r, from, width).unwrap_or(0.0);
                    let size = x.size[r] + given;
                    (x.error[r] + 2.0 * U * size, size)
                })
            }
            Op::Rope { x, rope, .. } => {
                let (x, magnitude) = (&self.stats[x.index()], model.ropes()[rope].magnitude);
                each_row(count, |r| {
                    let error = x.error[r] + 8.0 * U * x.size[r];
                    (magnitude * error, magnitude * x.size[r])
                })
            }
            Op::KvWrite { k, v, cache } => {
                self.cache.insert(cache, (k, v));
                each_row(count, |_| (0.0, 0.0))
            }
            Op::Attention {
                q, cache, scores, ..
            } => self.attention(q, cache, scores),
            Op::Gate { gate, up, act } => {
                let (g, u) = (&self.stats[gate.index()], &self.stats[up.index()]);
                // gpt-oss adds 1 to what is gated
                let more = f64::from(u8::from(act == Activation::SwigluOai));
                each_row(count, |r| {
                    let up = u.size[r] + more;
                    let error = 1.13 * g.error[r] * up + g.size[r] * u.error[r];
                    let size = g.size[r] * up;
                    (4.0 * error + 16.0 * U * size, size)
                })
            }
            Op::Unary { x, f } => {
                let x = &self.stats[x.index()];
                each_row(count, |r| unary(f, x.error[r], x.size[r]))
            }
            Op::ScaleByPosition { x, rate, step } => {
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let factor = 1.0 + f64::from(rate) * ((1 + r / step) as f64).ln();
                    let size = factor * x.size[r];
                    (factor * x.error[r] + 2.0 * U * size, size)
                })
            }
            Op::Add { a, b } => {
                let (a, b) = (&self.stats[a.index()], &self.stats[b.index()]);
                each_row(count, |r| {
                    let size = a.size[r] + b.size[r];
                    (a.error[r] + b.error[r] + U * size, size)
                })
            }
            Op::Mul { a, b } => {
                let (a, b) = (&self.stats[a.index()], &self.stats[b.index()]);
                each_row(count, |r| {
                    let size = a.size[r] * b.size[r];
                    let error = a.error[r] * b.size[r] + a.size[r] * b.error[r];
                    (4.0 * error + 4.0 * U * size, size)
                })
            }
            Op::MulVector { x, by } => {
                let by = largest(model.tensors().vector(by));
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let size = by * x.size[r];
                    (by * x.error[r] + U * size, size)
                })
            }
            Op::CausalConv { x, weight, .. } => self.convolution(x, weight),
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                how,
                ..
            } => self.linear_attention([q, k, v, decay, rate], how),
            // a part of a row may have all of its error, and all of its size
            Op::Slice { x, each, width, .. } => {
                let x = &self.stats[x.index()];
                let share = (each as f64 / width as f64).sqrt();
                each_row(count, |r| (share * x.error[r], share * x.size[r]))
            }
            Op::SelectRows { x } => {
                let x = &self.stats[x.index()];
                each_row(count, |r| (x.error[r], x.size[r]))
            }
            Op::Softmax { x } => {
                let width = self.width(x);
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let size = 1.0 / width.sqrt();
                    // arguments are rounded too, the largest by as much as it is
                    let own = U * (16.0 + width.sqrt() * (1.0 + x.size[r])) * size;
                    (0.5 * x.error[r] + own, size)
                })
            }
            // any, until both choices are known
            Op::TopK { x, .. } => each_row(count, |_| (self.width(x), self.width(x))),
            Op::Gather { x, ids } => {
                // the largest may be among them, with all of the error
                let few = (self.width(x) / self.width(ids)).max(1.0).sqrt();
                let (x, ids) = (&self.stats[x.index()], &self.stats[ids.index()]);
                each_row(count, |r| {
                    let size = few * x.size[r];
                    (few * x.error[r] + others(ids, r, size), size)
                })
            }
            Op::Normalize { x, least } => {
                let width = self.width(x);
                let x = &self.stats[x.index()];
                each_row(count, |r| {
                    let sum = (width.sqrt() * x.size[r]).max(least.into());
                    let size = x.size[r] / sum;
                    let error = x.error[r] / sum * (1.0 + width.sqrt());
                    (error + U * (width + 1.0) * size, size)
                })
            }
            Op::ScaleRows { x, by } => self.weighted(x, by),
            Op::ExpertSum { x, weights } => self.weighted(x, weights),
            Op::ExpertMatMul { x, w, ids, experts } => {
                let mut explained = self.product(x, w, experts)?;
                let ids = &self.stats[ids.index()];
                for (r, error) in explained.error.iter_mut().enumerate() {
                    *error += others(ids, r, explained.size[r]);
                }
                explained
            }
            Op::ExpertBias { x, bias, ids } => {
                let n =
                    model.graph().values[x.index()].width / model.graph().values[ids.index()].width;
                let biases = model.tensors().vector(bias).chunks(n);
                let bias = biases.map(rms).fold(0.0, f64::max);
                let (x, ids) = (&self.stats[x.index()], &self.stats[ids.index()]);
                each_row(count, |r| {
                    let size = x.size[r] + bias;
                    (x.error[r] + U * size + others(ids, r, bias), size)
                })
            }
        })
    }

    fn width(&self, value: ValueId) -> f64 {
        self.model.graph().values[value.index()].width as f64
    }

    /// What changed places in a choice from row `r` of `x`, of two such choices the one that is
    /// harder to explain. `None` if one of them is none.
    fn tie_in(
        &self,
        (x, groups): (ValueId, Option<TopGroups>),
        r: usize,
        choices: [&[f32]; 2],
    ) -> Option<Tie> {
        // that of one value, at most
        let error = self.width(x).sqrt() * self.stats[x.index()].error[r];
        let width = self.model.graph().values[x.index()].width;
        let values = self.chosen_by.get(&x);
        let Some(row) = values.and_then(|values| values.chunks_exact(width).nth(r)) else {
            return Some(Tie::UNSEEN);
        };
        let [a, b] = choices.map(|ids| tie(row, groups, ids, error));
        Some(a?.harder(b?))
    }

    /// The parts of `x`, each times its weight, added up: no more than there are parts.
    fn weighted(&self, x: ValueId, weights: ValueId) -> Explained {
        let count = self.width(weights);
        let (x, w) = (&self.stats[x.index()], &self.stats[weights.index()]);
        each_row(x.error.len(), |r| {
            let size = count * w.size[r] * x.size[r];
            let error = count * (w.size[r] * x.error[r] + w.error[r] * x.size[r]);
            (error + U * (count + 1.0) * size, size)
        })
    }

    /// How many rows a value has; outputs are wanted of all.
    fn count(&self, value: ValueId) -> usize {
        let n = self.entering.n;
        self.model.graph().values[value.index()].rows.count(n, n)
    }

    /// rms of the values from `from` on that are given in the place of row `r`.
    fn given(&self, r: usize, from: usize, width: usize) -> Option<f64> {
        let row = self.entering.given.get(r)?.as_ref()?;
        Some(rms(&row[from..from + width]))
    }

    /// How many neighbours of a value's row are normed together, the fewest if they are several
    /// times.
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

    fn norm(&self, x: ValueId, weight: VecId) -> Explained {
        let weight = self.model.tensors().vector(weight);
        let largest = largest(weight);
        let of_heads = weight.len() < self.model.graph().values[x.index()].width;
        let x = &self.stats[x.index()];
        each_row(x.error.len(), |r| {
            let norm = if of_heads {
                x.smallest_head[r]
            } else {
                x.size[r]
            };
            let relative = 2.0 * x.error[r] / norm.max(f64::MIN_POSITIVE);
            (largest * (relative + 4.0 * U), largest)
        })
    }

    fn product(&mut self, x: ValueId, w: WeightId, experts: usize) -> Result<Explained, Error> {
        let matrix = self.model.tensors().matrix(w);
        let (gain, cols) = (self.gain_of(w, experts)?, matrix.cols as f64);
        let kernels = self.rounding.kernels;
        let rounded = if matrix.ty.block_len() > 1 {
            kernels.products
        } else {
            kernels.floats
        };
        let own = (2.0 * cols.sqrt() + 8.0) * U + rounded + self.other_type(w);
        let x = &self.stats[x.index()];
        Ok(each_row(x.error.len(), |r| {
            (gain * (x.error[r] + own * x.size[r]), gain * x.size[r])
        }))
    }

    /// A few rows, each weighed.
    fn convolution(&self, x: ValueId, weight: VecId) -> Explained {
        let weight = self.model.tensors().vector(weight);
        let kernel = (weight.len() as f64 / self.width(x)).max(1.0);
        let gain = kernel.sqrt() * rms(weight);
        let x = &self.stats[x.index()];
        let latest = |of: &[f64], r: usize| {
            let first = (r + 1).saturating_sub(kernel as usize);
            of[first..=r].iter().copied().fold(0.0, f64::max)
        };
        each_row(x.error.len(), |r| {
            let size = gain * latest(&x.size, r);
            let own = (kernel + 2.0) * U * size;
            (gain * latest(&x.error, r) + own, size)
        })
    }

    /// The largest relative errors of queries, keys, values and rates so far, and of what is left
    /// of the state.
    fn linear_attention(&self, inputs: [ValueId; 5], how: Recurrence) -> Explained {
        let [q, k, v, decay, rate] = inputs.map(|value| &self.stats[value.index()]);
        let relative = |of: &Stats, r: usize| of.error[r] / of.size[r].max(f64::MIN_POSITIVE);
        let (mut written, mut left, mut size) = (0.0f64, 0.0f64, 0.0f64);
        let mut explained = Explained::default();
        for r in 0..self.entering.n {
            let now = relative(v, r) + 2.0 * relative(k, r) + relative(rate, r);
            written = written.max(now);
            left = left.max(decay.error[r]);
            size = size.max(v.size[r] * rate.size[r]);
            let roundings = 8.0 + 4.0 * (how.key_dim as f64).sqrt() + 4.0 * (r as f64).sqrt();
            let own = roundings * U;
            let sum = written + left + relative(q, r) + own;
            explained.error.push(size * sum);
            explained.size.push(size);
        }
        explained
    }

    fn attention(&self, q: ValueId, cache: CacheLayer, scores: Scores) -> Explained {
        let scale = f64::from(scores.scale);
        let (k, v) = self.cache[&cache];
        let (q, k, v) = (
            &self.stats[q.index()],
            &self.stats[k.index()],
            &self.stats[v.index()],
        );
        let head_dim = self.model.caches()[cache.group].head_dim as f64;
        let (mut k_size, mut k_error, mut v_size, mut v_error) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        let mut explained = Explained::default();
        let mut read = 0;
        for r in 0..self.entering.n {
            // a position attends to all before it, or to all there are: the worst of them
            let seen = if scores.causal {
                r + 1
            } else {
                self.entering.n
            };
            for r in std::mem::replace(&mut read, seen)..seen {
                (k_size, v_size) = (k_size.max(k.size[r]), v_size.max(v.size[r]));
                k_error = k_error.max(k.error[r] + self.rounding.kv * k.size[r]);
                v_error = v_error.max(v.error[r] + self.rounding.kv * v.size[r]);
            }
            let own = 4.0 * U * (seen as f64).sqrt() + self.rounding.kernels.attention;
            let logit = scale * head_dim.sqrt() * (q.error[r] * k_size + q.size[r] * k_error);
            let largest = scale * head_dim * q.size[r] * k_size;
            let capped = scores.cap.map_or(0.0, |cap| largest.min(cap.into()));
            let logit_own = 4.0 * U * largest + 16.0 * U * capped;
            let error = v_error + (2.0 * (logit + logit_own) + own) * v_size;
            explained.error.push(error);
            explained.size.push(v_size);
        }
        explained
    }

    /// `|W|_F / sqrt(rows)`: the rms of `W e` for an `e` of rms 1 that points nowhere in
    /// particular.
    fn gain(&mut self, id: WeightId) -> Result<f64, Error> {
        self.gain_of(id, 1)
    }

    /// The largest of those of so many experts, one below the other.
    fn gain_of(&mut self, id: WeightId, experts: usize) -> Result<f64, Error> {
        if let Some(gain) = self.gains.get(&id) {
            return Ok(*gain);
        }
        let w = self.model.tensors().matrix(id);
        let mut row = vec![0.0f32; w.cols as usize];
        let expert_rows = (w.rows as usize / experts).max(1);
        let mut squares = vec![0.0; experts];
        let rows = w.bytes(self.gguf).chunks_exact(w.row_bytes().max(1));
        for (r, bytes) in rows.enumerate() {
            octavo_quant::dequantize(w.ty, bytes, &mut row).map_err(|source| Error::Weight {
                name: w.name.clone(),
                source,
            })?;
            squares[r / expert_rows] += row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        let most = squares.into_iter().fold(0.0, f64::max);
        let gain = (most / expert_rows as f64).sqrt();
        self.gains.insert(id, gain);
        Ok(gain)
    }

    /// What two types of one weight differ by, relatively; nothing for equal types.
    fn other_type(&self, id: WeightId) -> f64 {
        let a = self.model.tensors().matrix(id).ty;
        let b = self
            .other
            .tensors()
            .matrices
            .get(id.0 as usize)
            .map_or(a, |w| w.ty);
        if a == b { 0.0 } else { step(a).hypot(step(b)) }
    }
}

/// Error and size of a function's values, of those of its argument. Of the size no more is known
/// than the largest that it can be, so that a few roundings of it are allowed for.
fn unary(f: Function, error: f64, size: f64) -> (f64, f64) {
    match f {
        Function::SoftCap(cap) => {
            let size = size.min(cap.into());
            (error + 16.0 * U * size, size)
        }
        Function::Scale(factor) => {
            let factor = f64::from(factor.abs());
            (factor * (error + U * size), factor * size)
        }
        Function::Gelu => (1.13 * error + 16.0 * U * size, size),
        // values are not all alike: the square of a row's rms is less than the rms of the squares
        Function::SquaredRelu => (
            4.0 * (2.0 * size * error + U * size * size),
            4.0 * size * size,
        ),
        Function::Sigmoid => (error + 16.0 * U, 1.0),
        Function::Silu => (1.13 * error + 16.0 * U * size, size),
        Function::Softplus => {
            let size = size + std::f64::consts::LN_2;
            (error + 16.0 * U * size, size)
        }
        // of what is not above 0: a change of x by a part of it changes e^x by no more than that
        // part of 1 / e, however large x is
        Function::Exp => {
            let part = error / size.max(f64::MIN_POSITIVE);
            (error.min(0.4 * part) + 16.0 * U, 1.0)
        }
    }
}

/// What other choices of experts may change of a value of such a size: all of it, twice.
fn others(ids: &Stats, row: usize, size: f64) -> f64 {
    if ids.error[row] > 0.0 {
        2.0 * size
    } else {
        0.0
    }
}

/// The relative rms error of a weight in a type: codes of b bits spread over three standard
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

/// What a function of the row says of error and size.
fn each_row(n: usize, one: impl Fn(usize) -> (f64, f64)) -> Explained {
    let (error, size) = (0..n).map(one).unzip();
    Explained { error, size }
}

/// Of what is one of several errors or sizes, each of as many values.
fn rms_of(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

fn largest(x: &[f32]) -> f64 {
    x.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
}
