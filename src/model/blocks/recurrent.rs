//! Recurrent blocks: from a layer's normed input to the block's result.

use octavo_kernels::{Activation, Function, KeyHeads, Recurrence, matrix_state};

use super::super::graph::{Op, ValueId};
use super::super::hparams::RecurrentHparams;
use super::super::taps;
use super::super::weights::{
    DeltaInputs, DeltaNet, DeltaRates, GroupNorm, KimiDelta, Mamba1, Mamba2, Plamo2,
    Recurrence as Weights, ShortConv, VecId, WeightId,
};
use super::{Builder, Named, at};

/// Per-token inputs of the recurrence.
struct Streams {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// Factor on the state.
    decay: ValueId,
    rate: ValueId,
}

/// Results of a delta net's projections.
struct Projected {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// Gate of the result.
    gate: ValueId,
}

impl Builder<'_> {
    /// Appends the layer's recurrence.
    pub(super) fn recurrence(&mut self, x: ValueId, w: &Weights, l: usize) -> ValueId {
        match w {
            Weights::DeltaNet(w) => self.delta_net(x, w, l),
            Weights::KimiDelta(w) => self.kimi_delta(x, w, l),
            Weights::Mamba1(w) => self.mamba1(x, w),
            Weights::Mamba2(w) => self.mamba2(x, w, l),
            Weights::Plamo2(w) => self.plamo2(x, w, l),
            Weights::TimeMix(_) => unreachable!("it has a kind of layer of its own"),
            Weights::ShortConv(w) => self.short_conv(x, w, l),
        }
    }

    pub(super) fn sizes(&self) -> RecurrentHparams {
        self.h
            .recurrent
            .expect("checked where the weights were bound")
    }

    fn key_heads(&self) -> KeyHeads {
        let recurrent = self.spec.recurrent.expect("the layer has a recurrence");
        recurrent.key_heads()
    }

    fn delta_net(&mut self, x: ValueId, w: &DeltaNet, l: usize) -> ValueId {
        let sizes = self.sizes();
        let Projected { q, k, v, gate } = self.delta_inputs(x, &w.inputs, l);
        let named = |name| match self.key_heads() {
            KeyHeads::Tiled => at(name, l),
            KeyHeads::Grouped => None,
        };
        let names = [taps::Q_CONV_PREDELTA, taps::K_CONV_PREDELTA].map(named);
        let q = self.of_length_1(q, w.unit, names[0]);
        let k = self.of_length_1(k, w.unit, names[1]);
        let [decay, rate] = self.delta_rates(x, w, l);
        let how = Recurrence {
            key_dim: sizes.state_size,
            heads: self.key_heads(),
            delta: true,
            decay_by_key: false,
            scale: 1.0 / (sizes.state_size as f32).sqrt(),
        };
        let streams = Streams {
            q,
            k,
            v,
            decay,
            rate,
        };
        let y = self.linear_attention(&streams, how, None);
        let op = Op::RmsNorm {
            x: y,
            weight: w.norm,
            eps: self.h.norm_eps(),
        };
        let y = self.push(op, self.info(y), None);
        let y = self.gated_by(gate, y);
        self.matmul(y, w.out, at(taps::LINEAR_ATTN_OUT, l))
    }

    fn kimi_delta(&mut self, x: ValueId, w: &KimiDelta, l: usize) -> ValueId {
        let size = self.sizes().state_size;
        let mut streams = w.qkv.into_iter().zip(w.convs).map(|(w, conv)| {
            let y = self.matmul(x, w, None);
            let y = self.causal_conv(y, conv, None);
            self.unary(y, Function::Silu, None)
        });
        let mut next = || streams.next().expect("three streams");
        let (q, k, v) = (next(), next(), next());
        let q = self.of_length_1(q, w.unit, None);
        let k = self.of_length_1(k, w.unit, None);
        let steps = self.low_rank(x, w.decay);
        let steps = self.bias(steps, Some(w.dt_bias), None);
        let steps = self.unary(steps, Function::Softplus, None);
        let log = self.mul_vector(steps, w.a, at(taps::KDA_G1, l));
        let beta = self.matmul(x, w.beta, None);
        let streams = Streams {
            q,
            k,
            v,
            decay: self.unary(log, Function::Exp, None),
            rate: self.unary(beta, Function::Sigmoid, None),
        };
        let how = Recurrence {
            key_dim: size,
            heads: self.key_heads(),
            delta: true,
            decay_by_key: true,
            scale: 1.0 / (size as f32).sqrt(),
        };
        let y = self.linear_attention(&streams, how, at(taps::ATTN_OUTPUT, l));
        let op = Op::RmsNorm {
            x: y,
            weight: w.norm,
            eps: self.h.norm_eps(),
        };
        let y = self.push(op, self.info(y), at(taps::KDA_NORMED, l));
        let gate = self.low_rank(x, w.gate);
        let gate = self.unary(gate, Function::Sigmoid, None);
        let y = self.mul(y, gate, None);
        self.matmul(y, w.out, at(taps::KDA_OUT, l))
    }

    /// Appends two successive products.
    pub(super) fn low_rank(&mut self, x: ValueId, [down, up]: [WeightId; 2]) -> ValueId {
        let narrow = self.matmul(x, down, None);
        self.matmul(narrow, up, None)
    }

    /// L2-normalizes each head, with epsilon added to the sum of squares as in llama.cpp.
    fn of_length_1(&mut self, x: ValueId, unit: VecId, tap: Option<Named>) -> ValueId {
        let eps = self.h.norm_eps() / self.sizes().state_size as f32;
        let op = Op::RmsNorm {
            x,
            weight: unit,
            eps,
        };
        self.push(op, self.info(x), tap)
    }

    fn delta_inputs(&mut self, x: ValueId, w: &DeltaInputs, l: usize) -> Projected {
        let (keys, inner) = (self.sizes().key_width(), self.sizes().inner);
        match *w {
            DeltaInputs::Apart { qkv, conv, gate } => {
                let qkv = self.matmul(x, qkv, None);
                let gate = self.matmul(x, gate, at(taps::Z, l));
                let raw = self.causal_conv(qkv, conv, at(taps::CONV_OUTPUT_RAW, l));
                let all = self.unary(raw, Function::Silu, at(taps::CONV_OUTPUT_SILU, l));
                Projected {
                    q: self.part(all, 0, keys),
                    k: self.part(all, keys, keys),
                    v: self.part(all, 2 * keys, inner),
                    gate,
                }
            }
            DeltaInputs::ByHeads { all, convs } => {
                let all = self.matmul(x, all, at(taps::MIXED_QKVZ, l));
                let groups = self.sizes().groups;
                let (key, value) = (keys / groups, inner / groups);
                let each = 2 * (key + value);
                let firsts = [0, key, 2 * key].into_iter().zip([key, key, value]);
                let mut parts = firsts.zip(convs).map(|((from, width), conv)| {
                    let part = self.slice(all, each, from, width);
                    let raw = self.causal_conv(part, conv, None);
                    self.unary(raw, Function::Silu, None)
                });
                let mut next = || parts.next().expect("three parts");
                let (q, k, v) = (next(), next(), next());
                let gate = self.slice(all, each, 2 * key + value, value);
                Projected { q, k, v, gate }
            }
        }
    }

    /// Appends the decay of each head's state, and its learning rate (beta).
    fn delta_rates(&mut self, x: ValueId, w: &DeltaNet, l: usize) -> [ValueId; 2] {
        let (alpha, beta, corrected) = match w.rates {
            DeltaRates::Apart { alpha, beta } => {
                let alpha = self.matmul(x, alpha, None);
                let beta = self.matmul(x, beta, None);
                (alpha, beta, at(taps::BETA_SIGMOID, l))
            }
            DeltaRates::ByHeads(both) => {
                let both = self.matmul(x, both, at(taps::MIXED_BA, l));
                let of_group = self.sizes().heads / self.sizes().groups;
                let mut half =
                    |from, tap| self.named_slice(both, 2 * of_group, from, of_group, tap);
                let alpha = half(of_group, at(taps::A, l));
                (alpha, half(0, at(taps::B, l)), None)
            }
        };
        let alpha = self.bias(alpha, Some(w.dt_bias), None);
        let alpha = self.unary(alpha, Function::Softplus, at(taps::A_SOFTPLUS, l));
        let log = self.mul_vector(alpha, w.a, at(taps::GATE, l));
        let decay = self.unary(log, Function::Exp, None);
        [decay, self.unary(beta, Function::Sigmoid, corrected)]
    }

    fn mamba2(&mut self, x: ValueId, w: &Mamba2, l: usize) -> ValueId {
        let sizes = self.sizes();
        let (inner, keys) = (sizes.inner, sizes.key_width());
        let all = self.matmul(x, w.input, None);
        let gate = self.part(all, 0, inner);
        let mixed = self.part(all, inner, inner + 2 * keys);
        let steps = self.part(all, 2 * inner + 2 * keys, sizes.heads);
        let mixed = self.causal_conv(mixed, w.conv, None);
        let mixed = self.bias(mixed, w.conv_bias, None);
        let mixed = self.unary(mixed, Function::Silu, None);
        let v = self.part(mixed, 0, inner);
        let steps = self.bias(steps, Some(w.dt_bias), None);
        let rate = self.unary(steps, Function::Softplus, None);
        let log = self.mul_vector(rate, w.a, None);
        let streams = Streams {
            q: self.part(mixed, inner + keys, keys),
            k: self.part(mixed, inner, keys),
            v,
            decay: self.unary(log, Function::Exp, None),
            rate,
        };
        let how = Recurrence {
            key_dim: sizes.state_size,
            heads: self.key_heads(),
            delta: false,
            decay_by_key: false,
            scale: 1.0,
        };
        let read = self.linear_attention(&streams, how, None);
        let past = self.mul_vector(v, w.d, None);
        let y = self.add(read, past, at(taps::MAMBA2_Y_ADD_D, l));
        let y = self.gated_by(gate, y);
        let y = match &w.norm {
            Some(norm) => self.group_norm(y, norm),
            None => y,
        };
        self.matmul(y, w.out, at(w.tap, l))
    }

    fn mamba1(&mut self, x: ValueId, w: &Mamba1) -> ValueId {
        let RecurrentHparams {
            inner,
            state_size,
            rank,
            ..
        } = self.sizes();
        let all = self.matmul(x, w.input, None);
        let v = self.part(all, 0, inner);
        let gate = self.part(all, inner, inner);
        let v = self.causal_conv(v, w.conv, None);
        let v = self.bias(v, Some(w.conv_bias), None);
        let v = self.unary(v, Function::Silu, None);
        let mixed = self.matmul(v, w.mixed, None);
        let ranges = [
            (0, rank),
            (rank, state_size),
            (rank + state_size, state_size),
        ];
        let mut parts = ranges.map(|(from, width)| self.part(mixed, from, width));
        if let Some(norms) = w.norms {
            for (part, weight) in parts.iter_mut().zip(norms) {
                let (x, eps) = (*part, self.h.norm_eps());
                *part = self.push(Op::RmsNorm { x, weight, eps }, self.info(x), None);
            }
        }
        let [steps, b, c] = parts;
        let steps = self.matmul(steps, w.steps, None);
        let steps = self.bias(steps, Some(w.dt_bias), None);
        let steps = self.unary(steps, Function::Softplus, None);
        let state = matrix_state(1, state_size, inner);
        let op = Op::SelectiveScan {
            x: v,
            steps,
            b,
            c,
            a: w.a,
            state: self.state(state.expect("checked with the hyperparameters")),
        };
        let read = self.push(op, self.info(v), None);
        let past = self.mul_vector(v, w.d, None);
        let y = self.add(read, past, None);
        let y = self.gated_by(gate, y);
        self.matmul(y, w.out, None)
    }

    fn plamo2(&mut self, x: ValueId, w: &Plamo2, l: usize) -> ValueId {
        let sizes = self.sizes();
        let (size, value_dim) = (sizes.state_size, sizes.value_dim());
        let all = self.matmul(x, w.input, at(taps::MAMBA_IN_PROJ, l));
        let (each, name) = (2 * value_dim, at(taps::MAMBA_X_SPLIT, l));
        let v = self.named_slice(all, each, value_dim, value_dim, name);
        let v = self.causal_conv(v, w.conv, at(taps::MAMBA_CONV1D, l));
        let v = self.unary(v, Function::Silu, at(taps::MAMBA_CONV1D_SILU, l));
        let mixed = self.matmul(v, w.mixed, at(taps::MAMBA_BCDT_PROJ, l));
        let [k_norm, q_norm, steps_norm] = w.norms;
        let steps = self.part(mixed, 2 * size, sizes.rank);
        let steps = self.norm(steps, steps_norm, Some(l));
        let steps = self.affine(steps, w.steps, Some(w.dt_bias), at(taps::MAMBA_DT_PROJ, l));
        let rate = self.unary(steps, Function::Softplus, None);
        let log = self.mul_vector(rate, w.a, None);
        let k = self.part(mixed, 0, size);
        let k = self.norm(k, k_norm, Some(l));
        let q = self.part(mixed, size, size);
        let streams = Streams {
            q: self.norm(q, q_norm, Some(l)),
            k,
            v,
            decay: self.unary(log, Function::Exp, None),
            rate,
        };
        let how = Recurrence {
            key_dim: size,
            heads: self.key_heads(),
            delta: false,
            decay_by_key: false,
            scale: 1.0,
        };
        let read = self.linear_attention(&streams, how, None);
        let gate = self.named_slice(all, each, 0, value_dim, at(taps::MAMBA_Z_SPLIT, l));
        let past = self.mul_vector(v, w.d, None);
        let y = self.add(read, past, at(taps::MAMBA_Y_ADD, l));
        let gated = Op::Gate {
            gate,
            up: y,
            act: Activation::Silu,
        };
        let y = self.push(gated, self.info(y), at(taps::MAMBA_Y_SWIGLU_Z, l));
        self.matmul(y, w.out, at(taps::MAMBA_OUT_PROJ, l))
    }

    fn short_conv(&mut self, x: ValueId, w: &ShortConv, l: usize) -> ValueId {
        let n = self.h.n_embd();
        let all = self.matmul(x, w.input, at(taps::CONV_IN_PROJ, l));
        let [b, c, x] = [0, 1, 2].map(|nth| self.part(all, nth * n, n));
        let y = self.mul(b, x, None);
        let y = self.causal_conv(y, w.conv, at(taps::CONV_CONV, l));
        let y = self.mul(c, y, None);
        self.matmul(y, w.out, at(taps::CONV_OUT_PROJ, l))
    }

    fn group_norm(&mut self, x: ValueId, w: &GroupNorm) -> ValueId {
        let op = Op::RmsNorm {
            x,
            weight: w.ones,
            eps: self.h.norm_eps(),
        };
        let y = self.push(op, self.info(x), None);
        self.mul_vector(y, w.weight, None)
    }

    /// Appends `silu(gate) * y`.
    fn gated_by(&mut self, gate: ValueId, y: ValueId) -> ValueId {
        let op = Op::Gate {
            gate,
            up: y,
            act: Activation::Silu,
        };
        self.push(op, self.info(y), None)
    }

    pub(super) fn causal_conv(&mut self, x: ValueId, weight: VecId, tap: Option<Named>) -> ValueId {
        let info = self.info(x);
        let state = self.state(self.w.vector(weight).len() - info.width);
        self.push(Op::CausalConv { x, weight, state }, info, tap)
    }

    fn linear_attention(&mut self, s: &Streams, how: Recurrence, tap: Option<Named>) -> ValueId {
        let (heads, info) = (self.info(s.rate).width, self.info(s.v));
        let values = matrix_state(heads, how.key_dim, info.width / heads);
        let state = self.state(values.expect("checked with the hyperparameters"));
        let op = Op::LinearAttention {
            q: s.q,
            k: s.k,
            v: s.v,
            decay: s.decay,
            rate: s.rate,
            how,
            state,
        };
        self.push(op, info, tap)
    }

    /// Registers a part of a sequence's state, of this many values, and returns its number.
    pub(super) fn state(&mut self, values: usize) -> usize {
        self.states.push(values);
        self.states.len() - 1
    }
}
