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
//! * SwiGLU: the slope of `silu` is at most 1.1; the other factor is as it is;
//! * soft caps: their slope is at most 1;
//! * sums, rotations and selections pass errors on as they are.
//!
//! These are statements about typical directions, so that what is allowed is [`MARGIN`] times what
//! is explained. Being held against the *measured* error of its inputs, an op is never blamed for
//! what came before it.

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorType};
use octavo_kernels::{Activation, CacheLayer, Function, Scores};

use super::Error;
use super::execution::Rounding;
use octavo_model::{Model, Op, OwnedTap, ValueId, VecId, WeightId};

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
    model: &'a Model,
    other: &'a Model,
    gguf: &'a Gguf,
    rounding: Rounding,
    n_tokens: usize,
    nodes: HashMap<OwnedTap, usize>,
    stats: Vec<Stats>,
    /// The values written to each layer's cache.
    cache: HashMap<CacheLayer, (ValueId, ValueId)>,
    gains: HashMap<WeightId, f64>,
    next: usize,
}

impl<'a> Bounds<'a> {
    /// For two executions of `model` and `other` (the second's) over `n_tokens` positions.
    pub fn new(
        gguf: &'a Gguf,
        model: &'a Model,
        other: &'a Model,
        rounding: Rounding,
        n_tokens: usize,
    ) -> Bounds<'a> {
        let all = model.graph.nodes.iter().enumerate();
        let nodes = all
            .filter_map(|(i, node)| Some((node.tap?.owned(), i)))
            .collect();
        let stats = vec![Stats::default(); model.graph.values.len()];
        let (cache, gains) = (HashMap::new(), HashMap::new());
        Bounds {
            model,
            other,
            gguf,
            rounding,
            n_tokens,
            nodes,
            stats,
            cache,
            gains,
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
        let Some(&at) = self.nodes.get(tap) else {
            return Ok(None);
        };
        // tensors without a name have the error and size that their inputs explain
        while self.next < at {
            let out = self.model.graph.nodes[self.next].out;
            let Explained { error, size } = self.explain(self.next)?;
            self.stats[out.index()] = Stats {
                error,
                smallest_head: size.clone(),
                size,
            };
            self.next += 1;
        }
        self.next = self.next.max(at + 1);
        let explained = self.explain(at)?.error;
        let layer = tap.layer.unwrap_or(0);
        let head_dim = self.model.hparams.layers[layer].head_dim;
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
        let out = self.model.graph.nodes[at].out;
        self.stats[out.index()] = stats;
        Ok(Some(explained.into_iter().map(|e| MARGIN * e).collect()))
    }

    /// Error and size of a node's result, as its inputs explain them.
    fn explain(&mut self, at: usize) -> Result<Explained, Error> {
        let model = self.model;
        Ok(match model.graph.nodes[at].op {
            Op::Embed { table } => {
                let size = self.gain(table)? / (model.weights.matrix(table).cols as f64).sqrt();
                let error = size * (self.other_type(table) + U);
                self.each_row(|_| (error, size))
            }
            Op::Input => unreachable!("a graph begins with token ids"),
            Op::RmsNorm { x, weight, .. } => self.norm(x, weight),
            Op::MatMul { x, w } => self.product(x, w)?,
            Op::AddBias { x, bias } => {
                let bias = rms(model.weights.vector(bias));
                let x = &self.stats[x.index()];
                self.each_row(|r| {
                    let size = x.size[r] + bias;
                    (x.error[r] + U * size, size)
                })
            }
            Op::Rope { x, rope, .. } => {
                let (x, magnitude) = (&self.stats[x.index()], model.ropes[rope].magnitude);
                self.each_row(|r| {
                    let error = x.error[r] + 8.0 * U * x.size[r];
                    (magnitude * error, magnitude * x.size[r])
                })
            }
            Op::KvWrite { k, v, cache } => {
                self.cache.insert(cache, (k, v));
                self.each_row(|_| (0.0, 0.0))
            }
            Op::Attention {
                q, cache, scores, ..
            } => self.attention(q, cache, scores),
            Op::Gate {
                gate,
                up,
                act: Activation::Silu,
            } => {
                let (g, u) = (&self.stats[gate.index()], &self.stats[up.index()]);
                self.each_row(|r| {
                    let error = 1.1 * g.error[r] * u.size[r] + g.size[r] * u.error[r];
                    let size = g.size[r] * u.size[r];
                    (4.0 * error + 16.0 * U * size, size)
                })
            }
            Op::Unary {
                x,
                f: Function::SoftCap(cap),
            } => {
                let x = &self.stats[x.index()];
                self.each_row(|r| {
                    let size = x.size[r].min(cap.into());
                    (x.error[r] + 16.0 * U * size, size)
                })
            }
            Op::Add { a, b } => {
                let (a, b) = (&self.stats[a.index()], &self.stats[b.index()]);
                self.each_row(|r| {
                    let size = a.size[r] + b.size[r];
                    (a.error[r] + b.error[r] + U * size, size)
                })
            }
            Op::SelectRows { x } => {
                let x = &self.stats[x.index()];
                self.each_row(|r| (x.error[r], x.size[r]))
            }
        })
    }

    /// What a function of the position says of error and size.
    fn each_row(&self, one: impl Fn(usize) -> (f64, f64)) -> Explained {
        let (error, size) = (0..self.n_tokens).map(one).unzip();
        Explained { error, size }
    }

    fn norm(&self, x: ValueId, weight: VecId) -> Explained {
        let weight = self.model.weights.vector(weight);
        let largest = largest(weight);
        let of_heads = weight.len() < self.model.graph.values[x.index()].width;
        let x = &self.stats[x.index()];
        self.each_row(|r| {
            let norm = if of_heads {
                x.smallest_head[r]
            } else {
                x.size[r]
            };
            let relative = 2.0 * x.error[r] / norm.max(f64::MIN_POSITIVE);
            (largest * (relative + 4.0 * U), largest)
        })
    }

    fn product(&mut self, x: ValueId, w: WeightId) -> Result<Explained, Error> {
        let matrix = self.model.weights.matrix(w);
        let (gain, cols) = (self.gain(w)?, matrix.cols as f64);
        let kernels = self.rounding.kernels;
        let rounded = if matrix.ty.block_len() > 1 {
            kernels.products
        } else {
            kernels.floats
        };
        let own = (2.0 * cols.sqrt() + 8.0) * U + rounded + self.other_type(w);
        let x = &self.stats[x.index()];
        Ok(self.each_row(|r| (gain * (x.error[r] + own * x.size[r]), gain * x.size[r])))
    }

    fn attention(&self, q: ValueId, cache: CacheLayer, scores: Scores) -> Explained {
        let scale = f64::from(scores.scale);
        let (k, v) = self.cache[&cache];
        let (q, k, v) = (
            &self.stats[q.index()],
            &self.stats[k.index()],
            &self.stats[v.index()],
        );
        let head_dim = self.model.hparams.caches[cache.group].head_dim as f64;
        let (mut k_size, mut k_error, mut v_size, mut v_error) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        let mut explained = Explained::default();
        for r in 0..self.n_tokens {
            // a position attends to all before it: the worst of them
            (k_size, v_size) = (k_size.max(k.size[r]), v_size.max(v.size[r]));
            k_error = k_error.max(k.error[r] + self.rounding.kv * k.size[r]);
            v_error = v_error.max(v.error[r] + self.rounding.kv * v.size[r]);
            let own = 4.0 * U * (r as f64 + 1.0).sqrt() + self.rounding.kernels.attention;
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
        if let Some(gain) = self.gains.get(&id) {
            return Ok(*gain);
        }
        let w = self.model.weights.matrix(id);
        let mut row = vec![0.0f32; w.cols as usize];
        let mut squares = 0.0;
        for bytes in w.bytes(self.gguf).chunks_exact(w.row_bytes().max(1)) {
            octavo_quant::dequantize(w.ty, bytes, &mut row).map_err(|source| Error::Weight {
                name: w.name.clone(),
                source,
            })?;
            squares += row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        let gain = (squares / (w.rows as f64).max(1.0)).sqrt();
        self.gains.insert(id, gain);
        Ok(gain)
    }

    /// What two types of one weight differ by, relatively; nothing for equal types.
    fn other_type(&self, id: WeightId) -> f64 {
        let a = self.model.weights.matrix(id).ty;
        let b = self
            .other
            .weights
            .matrices
            .get(id.0 as usize)
            .map_or(a, |w| w.ty);
        if a == b { 0.0 } else { step(a).hypot(step(b)) }
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

fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

fn largest(x: &[f32]) -> f64 {
    x.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
}
