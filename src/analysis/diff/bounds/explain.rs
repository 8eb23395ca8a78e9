//! Error and size of each operation's result as explained by its inputs, one arm per operation.

use octavo_kernels::{CacheLayer, Recurrence, Scores};
use octavo_model::{Op, ValueId, VecId, WeightId};

use super::rules::{self, each_row, largest, rms};
use super::{Bounds, Error, ErrorBound, Stats, U, step};

impl Bounds<'_> {
    /// Returns error and size of a node's result, as explained by its inputs.
    pub(super) fn explain(&mut self, at: usize) -> Result<ErrorBound, Error> {
        let model = self.model;
        let out = model.graph().nodes[at].out;
        let n = self.count(out);
        let vector = |id: VecId| model.tensors().vector(id);
        Ok(match model.graph().nodes[at].op {
            Op::Embed { table, .. } | Op::EmbedPositions { table } => {
                self.embedding(n, out, table)?
            }
            Op::Input => self.input(n),
            Op::Merge { x, rows } => rules::merge(n, self.of(x), rows),
            Op::Constant { values } => rules::constant(n, rms(vector(values))),
            Op::Concat { a, b, each } => rules::concat(n, self.of(a), self.of(b), each),
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. } => self.norm(x, weight),
            Op::MatMul { x, w } => self.product(x, w, 1)?,
            Op::AddBias { x, bias } => rules::bias(n, self.of(x), rms(vector(bias))),
            Op::AddEmbeddings { x, from } => self.add_embeddings(n, x, from),
            Op::Rope { x, rope, .. } => {
                rules::rotation(n, self.of(x), model.ropes()[rope].magnitude)
            }
            Op::Hadamard { x, order } => rules::hadamard(n, self.of(x), order),
            Op::KvWrite { k, v, cache } => {
                self.cache.insert(cache, (k, v));
                rules::constant(n, 0.0)
            }
            Op::Attention {
                q,
                seen,
                cache,
                scores,
                ..
            } => self.attention(q, seen, cache, scores),
            // any choice is possible, until both are known
            Op::SelectKeys { .. } => each_row(n, |r| (r as f64, r as f64)),
            Op::Gate { gate, up, act } => rules::gate(n, self.of(gate), self.of(up), act),
            Op::Unary { x, f } => rules::of_function(n, self.of(x), f),
            Op::ScaleByPosition {
                x,
                rate,
                step,
                offset,
            } => rules::scale_by_position(n, self.of(x), |r| (r + offset) / step, rate),
            Op::Add { a, b } => rules::sum(n, self.of(a), self.of(b)),
            Op::Mul { a, b } => rules::elementwise_product(n, self.of(a), self.of(b)),
            Op::MulVector { x, by } => rules::factors(n, self.of(x), largest(vector(by))),
            Op::CausalConv { x, weight, .. } => self.convolution(x, weight),
            op @ (Op::LinearAttention { .. } | Op::SelectiveScan { .. } | Op::Wkv7 { .. }) => {
                self.recurrence(op)
            }
            Op::Slice { x, each, width, .. } => rules::slice(n, self.of(x), each, width),
            Op::SelectRows { x } | Op::AllGather { x, .. } => rules::same(n, self.of(x)),
            Op::LoraDown { .. } | Op::LoraUp { .. } => unreachable!("backends add these"),
            Op::Softmax { x } => rules::softmax(n, self.of(x), self.width(x)),
            // any choice is possible, until both are known
            Op::TopK { x, .. } => each_row(n, |_| (self.width(x), self.width(x))),
            Op::Gather { x, ids } => {
                let of = self.width(x) / self.width(ids);
                rules::gather(n, self.of(x), self.of(ids), of)
            }
            Op::Normalize { x, least } => rules::normalize(n, self.of(x), self.width(x), least),
            Op::ScaleRows { x, by } if self.width(by) > 1.0 => {
                rules::elementwise_product(n, self.of(x), self.of(by))
            }
            Op::ScaleRows { x, by } => self.weighted(x, by),
            Op::ExpertSum { x, weights } => self.weighted(x, weights),
            Op::ExpertMatMul { x, w, ids, experts } => {
                let product = self.product(x, w, experts)?;
                rules::of_choices(product, self.of(ids))
            }
            Op::ExpertBias { x, bias, ids } => {
                let width = |value: ValueId| model.graph().values[value.index()].width;
                let biases = vector(bias).chunks(width(x) / width(ids));
                let bias = biases.map(rms).fold(0.0, f64::max);
                rules::expert_bias(n, self.of(x), self.of(ids), bias)
            }
        })
    }

    /// Explains the result of a recurrence.
    fn recurrence(&self, op: Op) -> ErrorBound {
        match op {
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                rate,
                how,
                ..
            } => self.linear_attention([q, k, v, decay, rate], how),
            Op::SelectiveScan { x, steps, b, c, .. } => self.selective_scan([x, steps, b, c]),
            Op::Wkv7 {
                r,
                decay,
                k,
                v,
                removed,
                replaced,
                key_dim,
                ..
            } => self.wkv7([r, decay, k, v, removed, replaced], key_dim),
            _ => unreachable!("the caller has seen which operation it is"),
        }
    }

    /// Returns the measured errors and sizes of a computed value.
    fn of(&self, value: ValueId) -> &Stats {
        &self.stats[value.index()]
    }

    fn embedding(&mut self, n: usize, out: ValueId, table: WeightId) -> Result<ErrorBound, Error> {
        let cols = self.model.tensors().matrix(table).cols as f64;
        let size = self.gain(table)? / cols.sqrt();
        let error = size * (self.other_type(table) + U);
        let width = self.model.graph().values[out.index()].width;
        Ok(each_row(n, |r| match self.embedding_input(r, 0, width) {
            Some(input) => (U * input, input),
            None => (error, size),
        }))
    }

    /// Explains the graph's input: identical in both, up to the error of the pixels.
    fn input(&self, n: usize) -> ErrorBound {
        let width = self.model.graph().input.max(1);
        let sizes: Vec<f64> = self
            .graph_inputs
            .rows
            .chunks_exact(width)
            .map(rms)
            .collect();
        each_row(n, |r| (self.pixels, sizes[r]))
    }

    fn add_embeddings(&self, n: usize, x: ValueId, from: usize) -> ErrorBound {
        let width = self.model.graph().values[x.index()].width;
        let x = self.of(x);
        each_row(n, |r| {
            let input = self.embedding_input(r, from, width).unwrap_or(0.0);
            let size = x.size[r] + input;
            (x.error[r] + 2.0 * U * size, size)
        })
    }

    /// Explains the weighted sum of the `count` parts of `x`.
    fn weighted(&self, x: ValueId, weights: ValueId) -> ErrorBound {
        let count = self.width(weights);
        let (x, w) = (&self.stats[x.index()], &self.stats[weights.index()]);
        each_row(x.error.len(), |r| {
            let size = count * w.size[r] * x.size[r];
            let error = count * (w.size[r] * x.error[r] + w.error[r] * x.size[r]);
            (error + U * (count + 1.0) * size, size)
        })
    }

    /// Returns the rms of the values from `from` on in the embedding input of row `r`, if any.
    fn embedding_input(&self, r: usize, from: usize, width: usize) -> Option<f64> {
        let row = self.graph_inputs.embedding_inputs.get(r)?.as_ref()?;
        Some(rms(&row[from..from + width]))
    }

    fn norm(&self, x: ValueId, weight: VecId) -> ErrorBound {
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

    fn product(&mut self, x: ValueId, w: WeightId, experts: usize) -> Result<ErrorBound, Error> {
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

    /// Explains a convolution: a weighted sum of a few rows.
    fn convolution(&self, x: ValueId, weight: VecId) -> ErrorBound {
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

    /// Explains linear attention: the largest relative errors so far of queries, keys, values and
    /// rates, and of the decayed state.
    fn linear_attention(&self, inputs: [ValueId; 5], how: Recurrence) -> ErrorBound {
        let [q, k, v, decay, rate] = inputs.map(|value| &self.stats[value.index()]);
        let (mut written, mut left, mut size) = (0.0f64, 0.0f64, 0.0f64);
        let mut bound = ErrorBound::default();
        for r in 0..self.graph_inputs.n {
            let now = relative(v, r) + 2.0 * relative(k, r) + relative(rate, r);
            written = written.max(now);
            left = left.max(decay.error[r]);
            size = size.max(v.size[r] * rate.size[r]);
            let roundings = 8.0 + 4.0 * (how.key_dim as f64).sqrt() + 4.0 * (r as f64).sqrt();
            let own = roundings * U;
            let sum = written + left + relative(q, r) + own;
            bound.error.push(size * sum);
            bound.size.push(size);
        }
        bound
    }

    /// Explains a selective scan, whose state never grows by its decay: a relative change of a step
    /// changes what is left of the state by no more than that fraction of 1 / e.
    fn selective_scan(&self, inputs: [ValueId; 4]) -> ErrorBound {
        let numbers = self.width(inputs[2]);
        let [x, steps, b, c] = inputs.map(|value| &self.stats[value.index()]);
        let (mut written, mut held) = (0.0f64, 0.0f64);
        let mut bound = ErrorBound::default();
        for r in 0..self.graph_inputs.n {
            let now = relative(x, r) + 2.0 * relative(steps, r) + relative(b, r);
            written = written.max(now);
            // values are not all alike: see products of elements
            held += 4.0 * x.size[r] * steps.size[r] * b.size[r];
            let size = numbers * held * c.size[r];
            let own = (8.0 + 4.0 * numbers.sqrt() + 4.0 * (r as f64).sqrt()) * U;
            bound.error.push(size * (written + relative(c, r) + own));
            bound.size.push(size);
        }
        bound
    }

    /// Explains the time mixing of RWKV 7, whose state is multiplied by a matrix of norm 1 at most:
    /// relative errors of that matrix add up.
    fn wkv7(&self, inputs: [ValueId; 6], key_dim: usize) -> ErrorBound {
        let keys = key_dim as f64;
        let inputs = inputs.map(|value| &self.stats[value.index()]);
        let [read, decay, k, v, removed, replaced] = inputs;
        let (mut written, mut held, mut left) = (0.0f64, 0.0f64, 0.0f64);
        let mut bound = ErrorBound::default();
        for r in 0..self.graph_inputs.n {
            written = written.max(relative(v, r) + relative(k, r));
            held += 4.0 * v.size[r] * k.size[r];
            let exchanged =
                removed.error[r] * replaced.size[r] + removed.size[r] * replaced.error[r];
            left += decay.error[r] + keys * exchanged + (8.0 + 4.0 * keys.sqrt()) * U;
            let size = keys * held * read.size[r];
            bound
                .error
                .push(size * (written + left + relative(read, r)));
            bound.size.push(size);
        }
        bound
    }

    fn attention(
        &self,
        q: ValueId,
        chosen: Option<ValueId>,
        cache: CacheLayer,
        scores: Scores,
    ) -> ErrorBound {
        let scale = f64::from(scores.scale);
        let (k, v) = self.cache[&cache];
        let (q, k, v) = (
            &self.stats[q.index()],
            &self.stats[k.index()],
            &self.stats[v.index()],
        );
        let head_dim = self.model.caches()[cache.group].head_dim as f64;
        let (mut k_size, mut k_error, mut v_size, mut v_error) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        let mut bound = ErrorBound::default();
        let mut read = 0;
        for r in 0..self.graph_inputs.n {
            // a position attends to all before it, or also to later ones: take the worst of them
            let seen = match (scores.causal, scores.images) {
                (false, _) => self.graph_inputs.n,
                (true, true) => read.max(self.graph_inputs.image_end(r)),
                (true, false) => r + 1,
            };
            for r in std::mem::replace(&mut read, seen)..seen {
                (k_size, v_size) = (k_size.max(k.size[r]), v_size.max(v.size[r]));
                k_error = k_error.max(k.error[r] + self.rounding.keys * k.size[r]);
                v_error = v_error.max(v.error[r] + self.rounding.values * v.size[r]);
            }
            let own = 4.0 * U * (seen as f64).sqrt() + self.rounding.kernels.attention;
            let logit = scale * head_dim.sqrt() * (q.error[r] * k_size + q.size[r] * k_error);
            let largest = scale * head_dim * q.size[r] * k_size;
            let capped = scores.cap.map_or(0.0, |cap| largest.min(cap.into()));
            // the first slope is the largest
            let fall = scores
                .alibi
                .map_or(0.0, |alibi| f64::from(alibi.slope(0)) * seen as f64);
            let logit_own = 4.0 * U * (largest + fall) + 16.0 * U * capped;
            let error = v_error + (2.0 * (logit + logit_own) + own) * v_size;
            // rows that see other keys are means of other values
            let same = chosen.is_none_or(|chosen| self.of(chosen).error[r] == 0.0);
            bound.error.push(if same { error } else { 2.0 * v_size });
            bound.size.push(v_size);
        }
        bound
    }

    /// Returns `|W|_F / sqrt(rows)`: the rms of `W e` for an `e` of rms 1 in a random direction.
    fn gain(&mut self, id: WeightId) -> Result<f64, Error> {
        self.gain_of(id, 1)
    }

    /// Returns the largest such gain among `experts` matrices stacked by rows.
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

    /// Returns the relative difference between two types of one weight; 0 for equal types.
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

/// Returns the relative error of a row.
fn relative(of: &Stats, r: usize) -> f64 {
    of.error[r] / of.size[r].max(f64::MIN_POSITIVE)
}
