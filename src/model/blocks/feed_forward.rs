//! Feed-forward blocks: from a layer's normed value to the block's result.

use octavo_kernels::{Activation, Function};

use super::super::graph::{Op, ValueId};
use super::super::taps;
use super::super::weights::{DenseAndExperts, FeedForward, Ffn};
use super::{Builder, at};

/// Activation of the gate or, without a gate, of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Silu,
    Gelu,
    SquaredRelu,
    SwigluOai,
}

impl Feature {
    /// Returns the usual name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Feature::Silu => "SiLU",
            Feature::Gelu => "GELU",
            Feature::SquaredRelu => "squared ReLU",
            Feature::SwigluOai => "clamped SwiGLU",
        }
    }

    /// Returns the activation that combines gate and up projections, and the result's name.
    fn gated(self) -> (Activation, &'static str) {
        match self {
            Feature::Silu => (Activation::Silu, taps::FFN_SWIGLU),
            Feature::Gelu => (Activation::Gelu, taps::FFN_GEGLU),
            Feature::SwigluOai => (Activation::SwigluOai, taps::FFN_SWIGLU_OAI),
            Feature::SquaredRelu => unreachable!("no architecture gates with it"),
        }
    }

    /// Returns the same for experts.
    pub(super) fn gated_experts(self) -> (Activation, &'static str) {
        let (act, _) = self.gated();
        let name = match act {
            Activation::Silu => taps::FFN_MOE_SWIGLU,
            Activation::Gelu => taps::FFN_MOE_GEGLU,
            Activation::SwigluOai => taps::FFN_MOE_SWIGLU_OAI,
        };
        (act, name)
    }

    /// Returns whether it is an activation of a gate.
    pub(crate) fn is_gated(self) -> bool {
        self != Feature::SquaredRelu
    }

    /// Returns the activation of an ungated product, and the result's name.
    pub(super) fn plain(self) -> (Function, &'static str) {
        match self {
            Feature::Gelu => (Function::Gelu, taps::FFN_GELU),
            Feature::SquaredRelu => (Function::SquaredRelu, taps::FFN_SQR_RELU),
            Feature::Silu | Feature::SwigluOai => {
                unreachable!("no architecture has it without a gate")
            }
        }
    }
}

impl Builder<'_> {
    /// Appends the layer's feed-forward block or experts, which read `normed`; a layer with both
    /// also norms `x` itself.
    pub(super) fn feed_forward(&mut self, normed: ValueId, x: ValueId, l: usize) -> ValueId {
        match &self.of_layer(l).ffn {
            Ffn::Dense(w) => self.dense(normed, w, l, self.spec.ffn_out),
            Ffn::Experts(w) => self.experts(normed, normed, w, l),
            Ffn::Both(w) => self.dense_and_experts(normed, x, w, l),
            Ffn::Absent => unreachable!("the layer ends before it"),
        }
    }

    /// Appends a dense feed-forward block and experts in parallel.
    fn dense_and_experts(
        &mut self,
        normed: ValueId,
        x: ValueId,
        w: &DenseAndExperts,
        l: usize,
    ) -> ValueId {
        let dense = self.dense(normed, &w.dense, l, taps::FFN_OUT);
        let dense = self.norm(dense, w.dense_post_norm, Some(l));
        let normed = self.norm(x, w.experts_norm, Some(l));
        let router = Op::RmsNorm {
            x,
            weight: w.router_norm,
            eps: self.h.norm_eps(),
        };
        let router = self.push(router, self.info(x), None);
        let experts = self.experts(normed, router, &w.experts, l);
        let experts = self.norm(experts, w.experts_post_norm, Some(l));
        self.add(dense, experts, at(taps::FFN_MOE_COMBINED, l))
    }

    /// Appends one feed-forward block, with its result named `out`.
    pub(super) fn dense(
        &mut self,
        x: ValueId,
        w: &FeedForward,
        l: usize,
        out: &'static str,
    ) -> ValueId {
        // for a fused tensor, llama.cpp's `ffn_up` is both products together, so neither part has
        // it
        let apart = w.gate.is_none_or(|gate| !self.shares_tensor(gate, w.up));
        let named = |name| at(name, l).filter(|_| apart);
        let gate = w.gate.map(|gate| {
            let gate = self.matmul(x, gate, named(taps::FFN_GATE));
            self.bias(gate, w.gate_bias, at(taps::FFN_GATE_B, l))
        });
        let up = self.matmul(x, w.up, named(taps::FFN_UP));
        let up = self.bias(up, w.up_bias, at(taps::FFN_UP_B, l));
        let y = match gate {
            Some(gate) => {
                let (act, name) = self.h.feature().gated();
                self.push(Op::Gate { gate, up, act }, self.info(gate), at(name, l))
            }
            None => {
                let (f, name) = self.h.feature().plain();
                self.unary(up, f, at(name, l))
            }
        };
        let product = if w.down_bias.is_some() {
            taps::FFN_DOWN
        } else {
            out
        };
        let y = self.matmul(y, w.down, at(product, l));
        self.bias(y, w.down_bias, at(out, l))
    }
}
