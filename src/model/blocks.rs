//! Building blocks shared by all architectures: each adds its ops, with llama.cpp's names, in
//! llama.cpp's order.

use octavo_kernels::{Activation, RowSet, Scores, ValueShape};

use super::graph::{Graph, Node, Op, ValueId};
use super::hparams::Hparams;
use super::taps::{self, Numbering};
use super::weights::{Layer, VecId, WeightId, Weights};

/// Appends nodes to a graph.
pub(super) struct Builder<'a> {
    h: &'a Hparams,
    w: &'a Weights,
    nodes: Vec<Node>,
    values: Vec<ValueShape>,
    taps: Numbering<&'static str>,
}

/// What a value is called.
#[derive(Clone, Copy)]
struct Named {
    name: &'static str,
    layer: Option<usize>,
}

/// This name in a layer.
fn at(name: &'static str, layer: usize) -> Option<Named> {
    Some(Named {
        name,
        layer: Some(layer),
    })
}

/// This name, which no layer has.
fn once(name: &'static str) -> Option<Named> {
    Some(Named { name, layer: None })
}

impl<'a> Builder<'a> {
    pub(super) fn new(h: &'a Hparams, w: &'a Weights) -> Builder<'a> {
        Builder {
            h,
            w,
            nodes: Vec::new(),
            values: Vec::new(),
            taps: Numbering::default(),
        }
    }

    fn layer(&self, l: usize) -> &'a Layer {
        &self.w.layers[l]
    }

    fn push(&mut self, op: Op, info: ValueShape, tap: Option<Named>) -> ValueId {
        let out = ValueId(self.values.len() as u32);
        self.values.push(info);
        let tap = tap.map(|tap| self.taps.next(tap.name, tap.layer));
        self.nodes.push(Node { op, out, tap });
        out
    }

    fn info(&self, v: ValueId) -> ValueShape {
        self.values[v.index()]
    }

    /// Token embeddings.
    pub(super) fn embed(&mut self) -> ValueId {
        let info = ValueShape {
            width: self.h.n_embd(),
            rows: RowSet::All,
        };
        self.push(
            Op::Embed {
                table: self.w.token_embd,
            },
            info,
            once(taps::INP_EMBD),
        )
    }

    /// RMS norm of groups as wide as the weight: the row, or each head.
    fn norm(&mut self, x: ValueId, weight: VecId, tap: Option<Named>) -> ValueId {
        self.push(
            Op::RmsNorm {
                x,
                weight,
                eps: self.h.rms_eps(),
            },
            self.info(x),
            tap,
        )
    }

    fn matmul(&mut self, x: ValueId, w: WeightId, tap: Option<Named>) -> ValueId {
        let width = self.w.matrix(w).rows as usize;
        self.push(
            Op::MatMul { x, w },
            ValueShape {
                width,
                ..self.info(x)
            },
            tap,
        )
    }

    fn bias(&mut self, x: ValueId, bias: Option<VecId>, tap: Option<Named>) -> ValueId {
        match bias {
            Some(bias) => self.push(Op::AddBias { x, bias }, self.info(x), tap),
            None => x,
        }
    }

    /// Product and bias where only the sum has a name.
    fn affine(
        &mut self,
        x: ValueId,
        w: WeightId,
        bias: Option<VecId>,
        tap: Option<Named>,
    ) -> ValueId {
        let y = self.matmul(x, w, if bias.is_some() { None } else { tap });
        self.bias(y, bias, tap)
    }

    fn add(&mut self, a: ValueId, b: ValueId, tap: Option<Named>) -> ValueId {
        self.push(Op::Add { a, b }, self.info(a), tap)
    }

    /// A query or key: product, bias, norm per head if there is one, rotation.
    fn rotated(&mut self, x: ValueId, p: &Projection, l: usize) -> ValueId {
        let mut y = self.matmul(x, p.w, at(p.tap, l));
        y = self.bias(y, p.bias, at(p.tap, l));
        if let Some(norm) = p.norm {
            y = self.norm(y, norm, at(p.normed_tap, l));
        }
        self.push(
            Op::Rope {
                x: y,
                head_dim: self.h.layers[l].head_dim,
                rope: self.h.layers[l].rope,
            },
            self.info(y),
            at(p.tap, l),
        )
    }

    /// Norm, attention over the cache, output projection. V comes before K: so does llama.cpp, to
    /// let K's rotation write into the cache.
    pub(super) fn attention(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.layer(l);
        let x = self.norm(x, w.attn_norm, at(taps::ATTN_NORM, l));
        let query = Projection {
            w: w.wq,
            bias: w.bq,
            norm: w.q_norm,
            tap: taps::Q_CUR,
            normed_tap: taps::Q_CUR_NORMED,
        };
        let q = self.rotated(x, &query, l);
        let v = self.matmul(x, w.wv, at(taps::V_CUR, l));
        let v = self.bias(v, w.bv, at(taps::V_CUR, l));
        let key = Projection {
            w: w.wk,
            bias: w.bk,
            norm: w.k_norm,
            tap: taps::K_CUR,
            normed_tap: taps::K_CUR_NORMED,
        };
        let k = self.rotated(x, &key, l);
        let cache = self.h.layers[l].cache;
        self.push(
            Op::KvWrite { k, v, cache },
            ValueShape {
                width: 0,
                ..self.info(k)
            },
            None,
        );
        let scale = 1.0 / (self.h.layers[l].head_dim as f32).sqrt();
        let out = self.push(
            Op::Attention {
                q,
                cache,
                scores: Scores::plain(scale),
                sinks: None,
            },
            self.info(q),
            at(taps::KQV_OUT, l),
        );
        self.affine(out, w.wo, w.bo, at(taps::ATTN_OUT, l))
    }

    /// Adds the attention's result to the layer's input. In the last layer only the wanted rows go
    /// on: nothing after it looks at other tokens, and the feed-forward block is most of a layer's
    /// work.
    pub(super) fn attention_residual(&mut self, out: ValueId, input: ValueId, l: usize) -> ValueId {
        let (mut a, mut b) = (out, input);
        if l + 1 == self.h.n_layer() {
            for v in [&mut a, &mut b] {
                *v = self.push(
                    Op::SelectRows { x: *v },
                    ValueShape {
                        rows: RowSet::Wanted,
                        ..self.info(*v)
                    },
                    None,
                );
            }
        }
        self.add(a, b, at(taps::FFN_INP, l))
    }

    /// Norm and gated feed-forward block.
    pub(super) fn gated(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.layer(l);
        let x = self.norm(x, w.ffn_norm, at(taps::FFN_NORM, l));
        let gate = self.matmul(x, w.gate, at(taps::FFN_GATE, l));
        let gate = self.bias(gate, w.gate_bias, at(taps::FFN_GATE_B, l));
        let up = self.matmul(x, w.up, at(taps::FFN_UP, l));
        let up = self.bias(up, w.up_bias, at(taps::FFN_UP_B, l));
        let y = self.push(
            Op::Gate {
                gate,
                up,
                act: Activation::Silu,
            },
            self.info(gate),
            at(taps::FFN_SWIGLU, l),
        );
        let product = if w.down_bias.is_some() {
            taps::FFN_DOWN
        } else {
            taps::FFN_OUT
        };
        let y = self.matmul(y, w.down, at(product, l));
        self.bias(y, w.down_bias, at(taps::FFN_OUT, l))
    }

    /// Adds the feed-forward block's result to its input: the layer's output.
    pub(super) fn ffn_residual(&mut self, out: ValueId, input: ValueId, l: usize) -> ValueId {
        self.add(out, input, at(taps::L_OUT, l))
    }

    /// Final norm and logits, of what the last of the layers hands on.
    pub(super) fn head(mut self, x: ValueId, layers: Vec<ValueId>) -> Graph {
        let hidden = self.norm(x, self.w.output_norm, once(taps::RESULT_NORM));
        let tap = once(taps::RESULT_OUTPUT);
        let logits = self.affine(hidden, self.w.output, self.w.output_bias, tap);
        Graph {
            nodes: self.nodes,
            values: self.values,
            n_layer: self.h.n_layer(),
            layers,
            hidden,
            logits,
        }
    }
}

/// One of Q and K on its way into attention.
struct Projection {
    w: WeightId,
    bias: Option<VecId>,
    norm: Option<VecId>,
    tap: &'static str,
    normed_tap: &'static str,
}
