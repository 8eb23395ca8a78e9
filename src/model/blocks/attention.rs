//! Attention: from a layer's normed input to the block's result.

use octavo_kernels::{Function, ValueShape};

use super::super::arch::QkNorm;
use super::super::graph::{Op, ValueId};
use super::super::hparams::Temperature;
use super::super::taps;
use super::super::weights::{Attention, NormWeights, VecId, WeightId};
use super::{Builder, Named, at};

/// Weights and names of one of the Q, K and V projections.
struct Projection {
    w: WeightId,
    bias: Option<VecId>,
    /// Each head's rows are followed by those of its gate.
    gated: bool,
    norm: Option<NormWeights>,
    tap: &'static str,
    limited_tap: &'static str,
    rotated_tap: Option<&'static str>,
}

/// A projection's result.
struct Projected {
    y: ValueId,
    /// Gate of attention's result.
    gate: Option<ValueId>,
}

impl Builder<'_> {
    /// Appends attention over the cache, and its output projection. V comes before K: so does
    /// llama.cpp, to let K's rotation write into the cache.
    pub(super) fn attention(&mut self, x: ValueId, w: &Attention, l: usize) -> ValueId {
        let q = Projection {
            w: w.wq,
            bias: w.bq,
            gated: w.gated,
            norm: w.q_norm,
            tap: taps::Q_CUR,
            limited_tap: taps::Q_CUR_CLAMPED,
            rotated_tap: self.spec.rotated[0],
        };
        // for parts of one fused tensor llama.cpp names only the later results, not the products
        let apart = w.wk.is_none_or(|wk| !self.shares_tensor(w.wq, wk));
        let Projected { y: q, gate } = self.project_and_rotate(x, &q, apart, l);
        let q = self.scaled_by_position(q, l);
        if let Some(wk) = w.wk {
            self.cache_keys_and_values(x, w, wk, apart, l);
        }
        let layer = self.h.layers[l];
        let q = self.padded(q, w, [layer.head_dim, layer.cache_dim()]);
        let attention = Op::Attention {
            q,
            seen: None,
            cache: layer.cache,
            scores: layer.scores,
            sinks: w.sinks,
        };
        let names = self.spec.gate;
        let name = match gate.is_some() || w.gate.is_some() {
            true => names.before,
            false => taps::KQV_OUT,
        };
        let (cached, value) = (layer.cache_dim(), layer.value_dim);
        let named = at(name, l).filter(|_| cached == value);
        let mut out = self.push(attention, self.info(q), named);
        if cached > value {
            out = self.named_slice(out, cached, 0, value, at(name, l));
        }
        let gate = gate.or_else(|| Some(self.matmul(x, w.gate?, at(names.gate, l))));
        if let Some(gate) = gate {
            let by = self.unary(gate, Function::Sigmoid, at(names.sigmoid, l));
            out = match self.info(by) == self.info(out) {
                true => self.mul(out, by, at(names.after, l)),
                false => {
                    let op = Op::ScaleRows { x: out, by };
                    self.push(op, self.info(out), at(names.after, l))
                }
            };
        }
        let out = self.optional_norm(out, w.sub_norm, l);
        let named = self.spec.attn_out.and_then(|name| at(name, l));
        let out = self.affine(out, w.wo, w.bo, named);
        self.scale(out, self.h.factors.attention, at(taps::ATTN_OUT_SCALED, l))
    }

    /// Pads heads of `from` values with zeros to `to` values.
    fn padded(&mut self, x: ValueId, w: &Attention, [from, to]: [usize; 2]) -> ValueId {
        let Some(values) = w.padding.filter(|_| from < to) else {
            return x;
        };
        let info = ValueShape {
            width: to - from,
            ..self.info(x)
        };
        let zeros = self.push(Op::Constant { values }, info, None);
        self.concat(x, zeros, [from, to - from], None)
    }

    /// Writes the layer's own keys and values into the cache.
    fn cache_keys_and_values(
        &mut self,
        x: ValueId,
        w: &Attention,
        wk: WeightId,
        apart: bool,
        l: usize,
    ) {
        let k = Projection {
            w: wk,
            gated: false,
            bias: w.bk,
            norm: w.k_norm,
            tap: taps::K_CUR,
            limited_tap: taps::K_CUR_CLAMPED,
            rotated_tap: self.spec.rotated[1],
        };
        let named = at(taps::V_CUR, l);
        // without a V matrix, values are the keys' product, before norm and RoPE
        let wv = w.wv.unwrap_or(wk);
        let v = if apart {
            let v = self.matmul(x, wv, named);
            self.bias(v, w.bv, named)
        } else {
            let unlimited = self.h.qkv_limit.is_none();
            self.affine(x, wv, w.bv, named.filter(|_| unlimited))
        };
        // of parts of one fused tensor only the last step is named
        let v = self.limited(
            v,
            if apart {
                at(taps::V_CUR_CLAMPED, l)
            } else {
                named
            },
        );
        let v = self.optional_norm(v, w.v_norm, l);
        let k = self.project_and_rotate(x, &k, apart, l).y;
        let layer = self.h.layers[l];
        let k = self.padded(k, w, [layer.head_dim, layer.cache_dim()]);
        let v = self.padded(v, w, [layer.value_dim, layer.cache_dim()]);
        let cache = layer.cache;
        let nothing = ValueShape {
            width: 0,
            ..self.info(k)
        };
        self.push(Op::KvWrite { k, v, cache }, nothing, None);
    }

    /// Appends the ops of a query or key: product, bias, optional norm, RoPE if the layer has it.
    /// Product and bias are named if the tensor is `apart` from the others'. A bias is as wide as
    /// the product, so it is added before gates are split off.
    fn project_and_rotate(
        &mut self,
        x: ValueId,
        p: &Projection,
        apart: bool,
        l: usize,
    ) -> Projected {
        let own = at(p.tap, l).filter(|_| apart && !p.gated);
        let y = self.matmul(x, p.w, own);
        let y = self.bias(y, p.bias, own);
        let (mut y, mut gate) = (
            self.limited(y, at(p.limited_tap, l).filter(|_| apart)),
            None,
        );
        if p.gated {
            let n = self.h.layers[l].head_dim;
            let name = at(self.spec.gate.gate, l);
            gate = Some(self.named_slice(y, 2 * n, n, n, name));
            y = self.slice(y, 2 * n, 0, n);
        }
        let tap = p.rotated_tap.and_then(|name| at(name, l));
        y = match self.spec.qk_norm {
            QkNorm::BeforeRope => {
                y = self.optional_norm(y, p.norm, l);
                self.rotated(y, l, tap)
            }
            QkNorm::AfterRope => {
                y = self.rotated(y, l, tap);
                self.optional_norm(y, p.norm, l)
            }
        };
        Projected { y, gate }
    }

    /// Limits the size of values, if the model does.
    fn limited(&mut self, x: ValueId, tap: Option<Named>) -> ValueId {
        match self.h.qkv_limit {
            Some(most) => self.unary(x, Function::Clamp(-most, most), tap),
            None => x,
        }
    }

    fn rotated(&mut self, x: ValueId, l: usize, tap: Option<Named>) -> ValueId {
        let layer = &self.h.layers[l];
        let head_dim = layer.head_dim;
        match layer.rope {
            Some(rope) => self.push(Op::Rope { x, head_dim, rope }, self.info(x), tap),
            None => x,
        }
    }

    /// Scales queries by their position, if the model has a temperature.
    pub(super) fn scaled_by_position(&mut self, q: ValueId, l: usize) -> ValueId {
        let rotates = self.h.layers[l].rope.is_some();
        let scales = |t: &Temperature| !t.unrotated_only || !rotates;
        let Some(temperature) = self.h.temperature.filter(scales) else {
            return q;
        };
        let op = Op::ScaleByPosition {
            x: q,
            rate: temperature.rate,
            step: temperature.step,
            offset: temperature.offset,
        };
        self.push(op, self.info(q), at(self.spec.scaled_query, l))
    }
}
