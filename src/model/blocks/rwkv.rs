//! RWKV 7: layers of time mixing, whose state is a matrix of each head, and channel mixing.

use octavo_kernels::{Function, matrix_state};

use super::super::graph::{Op, ValueId};
use super::super::taps;
use super::super::weights::{BiasedLowRank, Ffn, Recurrence, TimeMix, VecId};
use super::{Builder, at};

/// Decays are `e^(-0.606531 sigmoid(x))`.
const FASTEST_DECAY: f32 = -0.606_531;
/// Added to the square of a key's length.
const LENGTH_EPS: f32 = 1e-24;
/// Epsilon of the norm of heads' results, which no key states.
const HEAD_EPS: f32 = 64e-5;

impl Builder<'_> {
    /// Appends a layer.
    pub(super) fn mixes(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.of_layer(l);
        let (Some(Recurrence::TimeMix(time)), Ffn::ChannelMix(channel)) = (&w.recurrence, &w.ffn)
        else {
            unreachable!("whoever bound the layer gave it both");
        };
        let normed = self.optional_norm(x, w.attn_norm, l);
        let out = self.time_mix(normed, time);
        let x = self.add(out, x, at(taps::FFN_INP, l));
        let normed = self.optional_norm(x, w.ffn_norm, l);
        let change = self.causal_conv(normed, channel.shift, None);
        let mixed = self.shifted(normed, change, channel.share);
        let [mixed, x] = self.output_rows([mixed, x], l);
        let key = self.matmul(mixed, channel.key, None);
        let key = self.unary(key, Function::SquaredRelu, None);
        let out = self.matmul(key, channel.value, None);
        self.add(out, x, at(taps::L_OUT, l))
    }

    /// Appends a row plus a share of its change to the row before.
    fn shifted(&mut self, x: ValueId, change: ValueId, share: VecId) -> ValueId {
        let change = self.mul_vector(change, share, None);
        self.add(change, x, None)
    }

    fn time_mix(&mut self, x: ValueId, w: &TimeMix) -> ValueId {
        let size = self.sizes().state_size;
        let change = self.causal_conv(x, w.shift, None);
        let [for_r, for_decay, for_k, for_v, for_rate, for_gate] =
            w.shares.map(|share| self.shifted(x, change, share));
        let r = self.matmul(for_r, w.rkv[0], None);
        let k = self.matmul(for_k, w.rkv[1], None);
        let v = self.matmul(for_v, w.rkv[2], None);
        let v = self.with_first_values(v, for_v, w.value);
        let decay = self.decay(for_decay, w.decay);
        let rate = self.low_rank(for_rate, w.rate.0);
        let rate = self.bias(rate, Some(w.rate.1), None);
        let rate = self.unary(rate, Function::Sigmoid, None);
        let removed = self.mul_vector(k, w.k_k, None);
        let removed = Op::RmsNorm {
            x: removed,
            weight: w.unit,
            eps: LENGTH_EPS / size as f32,
        };
        let removed = self.push(removed, self.info(k), None);
        let replaced = self.mul(removed, rate, None);
        // k + (rate - 1) k k_a
        let followed = self.mul_vector(k, w.k_a, None);
        let slowed = self.mul(rate, followed, None);
        let kept = self.difference(slowed, followed);
        let k = self.add(k, kept, None);
        let values = matrix_state(self.info(k).width / size, size, size);
        let state = self.state(values.expect("checked with the hyperparameters"));
        let op = Op::Wkv7 {
            r,
            decay,
            k,
            v,
            removed,
            replaced,
            key_dim: size,
            state,
        };
        let y = self.push(op, self.info(v), None);
        let (kind, norm) = (self.spec.norm, w.norm);
        let y = self.nodes.norm(y, kind, norm, HEAD_EPS, None);
        let own = self.mul(k, r, None);
        let own = self.matmul(own, w.r_k, None);
        let own = Op::ScaleRows { x: v, by: own };
        let own = self.push(own, self.info(v), None);
        let y = self.add(y, own, None);
        let gate = self.matmul(for_gate, w.gate[0], None);
        let gate = self.unary(gate, Function::Sigmoid, None);
        let gate = self.matmul(gate, w.gate[1], None);
        let y = self.mul(y, gate, None);
        self.matmul(y, w.out, None)
    }

    /// Appends what becomes of values where layers take a share of the first one's.
    fn with_first_values(&mut self, v: ValueId, x: ValueId, w: Option<BiasedLowRank>) -> ValueId {
        let (Some(first), Some((ranks, bias))) = (self.first_values, w) else {
            self.first_values = Some(v);
            return v;
        };
        let share = self.low_rank(x, ranks);
        let share = self.bias(share, Some(bias), None);
        let share = self.unary(share, Function::Sigmoid, None);
        let change = self.difference(first, v);
        let change = self.mul(change, share, None);
        self.add(v, change, None)
    }

    fn decay(&mut self, x: ValueId, ([down, up], bias): BiasedLowRank) -> ValueId {
        let narrow = self.matmul(x, down, None);
        // the hyperbolic tangent
        let narrow = self.unary(narrow, Function::SoftCap(1.0), None);
        let decay = self.matmul(narrow, up, None);
        let decay = self.bias(decay, Some(bias), None);
        let decay = self.unary(decay, Function::Sigmoid, None);
        let log = self.unary(decay, Function::Scale(FASTEST_DECAY), None);
        self.unary(log, Function::Exp, None)
    }

    /// Appends `a - b`.
    fn difference(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let negative = self.unary(b, Function::Scale(-1.0), None);
        self.add(a, negative, None)
    }
}
