//! Feed-forward blocks: from a layer's normed value to the block's result.

use octavo_kernels::{Activation, Function};

use super::super::graph::{Op, ValueId};
use super::super::taps;
use super::super::weights::{DenseAndExperts, FeedForward, Ffn, WeightId};
use super::{Builder, at};

/// Activation of the gate or, without a gate, of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Silu,
    Gelu,
    SquaredRelu,
    SwigluOai,
    Relu,
    Xielu,
}

impl Feature {
    /// Returns the usual name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Feature::Silu => "SiLU",
            Feature::Gelu => "GELU",
            Feature::SquaredRelu => "squared ReLU",
            Feature::SwigluOai => "clamped SwiGLU",
            Feature::Relu => "ReLU",
            Feature::Xielu => "xIELU",
        }
    }

    /// Returns whether it is an activation of a gate.
    pub(crate) fn is_gated(self) -> bool {
        !matches!(self, Feature::SquaredRelu | Feature::Xielu)
    }

    /// Returns the activation of an ungated product, and the result's name.
    pub(super) fn plain(self) -> (Function, &'static str) {
        match self {
            Feature::Gelu => (Function::Gelu, taps::FFN_GELU),
            Feature::SquaredRelu => (Function::SquaredRelu, taps::FFN_SQR_RELU),
            Feature::Silu | Feature::SwigluOai | Feature::Relu | Feature::Xielu => {
                unreachable!("no architecture has it without a gate, or for all layers")
            }
        }
    }
}

/// Tap names of gated products: with SiLU, GELU, gpt-oss's function and ReLU, then those of limited
/// products.
pub(super) struct ProductTaps {
    gated: [&'static str; 4],
    silu: &'static str,
    silu_clamped: &'static str,
    up_clamped: &'static str,
    limited: &'static str,
}

const DENSE: ProductTaps = ProductTaps {
    gated: [
        taps::FFN_SWIGLU,
        taps::FFN_GEGLU,
        taps::FFN_SWIGLU_OAI,
        taps::FFN_REGLU,
    ],
    silu: taps::FFN_SILU,
    silu_clamped: taps::FFN_SILU_CLAMPED,
    up_clamped: taps::FFN_UP_CLAMPED,
    limited: taps::FFN_SWIGLU_LIMITED,
};

/// Those of products before a norm.
const SUB: ProductTaps = ProductTaps {
    gated: [taps::FFN_SUB_OUT; 4],
    ..DENSE
};

pub(super) const OF_EXPERTS: ProductTaps = ProductTaps {
    gated: [
        taps::FFN_MOE_SWIGLU,
        taps::FFN_MOE_GEGLU,
        taps::FFN_MOE_SWIGLU_OAI,
        taps::FFN_MOE_REGLU,
    ],
    silu: taps::FFN_MOE_SILU,
    silu_clamped: taps::FFN_MOE_SILU_CLAMPED,
    up_clamped: taps::FFN_MOE_UP_CLAMPED,
    limited: taps::FFN_MOE_SWIGLU_LIMITED,
};

impl Builder<'_> {
    /// Appends the layer's feed-forward block or experts, which read `normed`; a layer with both
    /// also norms `x` itself, and a router may read the layer's input, `entry`.
    pub(super) fn feed_forward(
        &mut self,
        normed: ValueId,
        [x, entry]: [ValueId; 2],
        l: usize,
    ) -> ValueId {
        match &self.of_layer(l).ffn {
            Ffn::Dense(w) => self.dense(normed, w, l, self.spec.ffn_out),
            Ffn::Experts(w) if self.spec.early_router => self.experts(normed, entry, w, l),
            Ffn::Experts(w) => self.experts(normed, normed, w, l),
            Ffn::Both(w) => self.dense_and_experts(normed, x, w, l),
            Ffn::ChannelMix(_) => unreachable!("it has a kind of layer of its own"),
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
        // products times a factor have names of their own
        let named = |w: WeightId, names: [&'static str; 2]| {
            let name = names[usize::from(self.w.matrix(w).scale != 1.0)];
            at(name, l).filter(|_| apart)
        };
        let up_name = named(w.up, [taps::FFN_UP, taps::FFN_UP_S]);
        let gate = w.gate.map(|gate| {
            let name = named(gate, [taps::FFN_GATE, taps::FFN_GATE_S]);
            let gate = self.matmul(x, gate, name);
            self.bias(gate, w.gate_bias, at(taps::FFN_GATE_B, l))
        });
        let up = self.matmul(x, w.up, up_name);
        let up = self.bias(up, w.up_bias, at(taps::FFN_UP_B, l));
        let y = match gate {
            Some(gate) => {
                let limit = self.h.layers[l].clamps.dense;
                let names = if w.sub_norm.is_some() { &SUB } else { &DENSE };
                self.gated_product([gate, up], limit, l, names)
            }
            None => {
                let (f, name) = match self.h.layers[l].xielu {
                    Some(by) => (Function::Xielu(by), taps::FFN_XIELU),
                    None => self.h.feature().plain(),
                };
                self.unary(up, f, at(name, l))
            }
        };
        let y = self.optional_norm(y, w.sub_norm, l);
        let product = if w.down_bias.is_some() {
            taps::FFN_DOWN
        } else {
            out
        };
        let y = self.matmul(y, w.down, at(product, l));
        self.bias(y, w.down_bias, at(out, l))
    }

    /// Appends the product of a gate's activation and an up projection, with an optional limit.
    pub(super) fn gated_product(
        &mut self,
        [gate, up]: [ValueId; 2],
        limit: Option<f32>,
        l: usize,
        names: &ProductTaps,
    ) -> ValueId {
        if let Some(most) = limit {
            let gate = self.unary(gate, Function::Silu, at(names.silu, l));
            let below = Function::Clamp(f32::NEG_INFINITY, most);
            let gate = self.unary(gate, below, at(names.silu_clamped, l));
            let up = self.unary(up, Function::Clamp(-most, most), at(names.up_clamped, l));
            return self.mul(gate, up, at(names.limited, l));
        }
        let [silu, gelu, oai, relu] = names.gated.map(|name| at(name, l));
        let (act, name) = match self.h.feature() {
            Feature::Silu => (Activation::Silu, silu),
            Feature::Gelu => (Activation::Gelu, gelu),
            Feature::SwigluOai => (Activation::SwigluOai, oai),
            Feature::Relu => {
                let gate = self.unary(gate, Function::Clamp(0.0, f32::INFINITY), None);
                return self.mul(gate, up, relu);
            }
            Feature::SquaredRelu | Feature::Xielu => {
                unreachable!("no architecture gates with it")
            }
        };
        self.push(Op::Gate { gate, up, act }, self.info(gate), name)
    }
}
