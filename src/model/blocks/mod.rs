//! Building blocks shared by all architectures: each adds its ops, with llama.cpp's names, in
//! llama.cpp's order. What a layer has follows from its weights, and how it is put together from
//! its architecture's [`Spec`](super::arch::Spec).

mod attention;
mod experts;
mod feed_forward;
mod latent;
mod recurrent;

use octavo_kernels::{Activation, Function, RowSet, ValueShape};

pub(super) use feed_forward::Feature;

use super::arch::{Norm, Spec};
use super::graph::{Graph, Node, Op, ValueId};
use super::hparams::Hparams;
use super::taps::{self, Numbering};
use super::weights::{Ffn, Layer, NormWeights, PerLayer, PerLayerInputs, VecId, WeightId, Weights};

/// How attention and the feed-forward block of a layer stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// The feed-forward block reads the layer's input with attention's result added; `residual` is
    /// what that sum is called.
    Sequential { residual: Option<&'static str> },
    /// Both read the layer's input, and both are added to it.
    Parallel,
}

/// Appends nodes to a graph.
pub(super) struct Builder<'a> {
    h: &'a Hparams,
    w: &'a Weights,
    spec: &'static Spec,
    nodes: Vec<Node>,
    values: Vec<ValueShape>,
    taps: Numbering<&'static str>,
    /// What every layer gets of each token beside its input.
    per_layer: Option<ValueId>,
    /// How many values each part of a sequence's state has.
    states: Vec<usize>,
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
            spec: h.arch.spec(),
            nodes: Vec::new(),
            values: Vec::new(),
            taps: Numbering::default(),
            per_layer: None,
            states: Vec::new(),
        }
    }

    /// The weights of a layer.
    fn of_layer(&self, l: usize) -> &'a Layer {
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

    /// Token embeddings, and their factor.
    pub(super) fn embed(&mut self) -> ValueId {
        let info = ValueShape {
            width: self.h.n_embd(),
            rows: RowSet::All,
        };
        let (factor, name) = (self.h.factors.embedding, self.spec.scaled_embedding);
        // where both have one name, it is that of the product
        let own = (factor == 1.0 || name != taps::INP_EMBD).then_some(self.spec.embedding);
        let table = self.w.token_embd;
        let x = self.push(Op::Embed { table }, info, own.and_then(once));
        let x = self.scale(x, factor, once(name));
        self.per_layer = self
            .w
            .per_layer_inputs
            .map(|w| self.per_layer_inputs(x, &w));
        x
    }

    /// What the token's own row and its embedding give every layer, side by side.
    fn per_layer_inputs(&mut self, x: ValueId, w: &PerLayerInputs) -> ValueId {
        let width = self.h.n_embd_per_layer;
        let all = ValueShape {
            width: width * self.h.n_layer(),
            ..self.info(x)
        };
        let rows = self.push(Op::Embed { table: w.table }, all, None);
        let selected = once(taps::INP_PER_LAYER_SELECTED);
        let rows = self.scale(rows, (width as f32).sqrt(), selected);
        let projected = self.matmul(x, w.projection, None);
        let projected = self.scale(projected, 1.0 / (self.h.n_embd() as f32).sqrt(), None);
        let projected = self.norm(projected, w.norm, None);
        let sum = self.add(projected, rows, None);
        self.scale(
            sum,
            std::f32::consts::FRAC_1_SQRT_2,
            once(taps::INP_PER_LAYER),
        )
    }

    /// Norm of groups as wide as the weight: the row, or each head.
    fn norm(&mut self, x: ValueId, norm: NormWeights, layer: Option<usize>) -> ValueId {
        let (weight, eps) = (norm.weight, self.h.norm_eps());
        let layer = layer.filter(|_| norm.numbered);
        let named = |name| Some(Named { name, layer });
        let (op, name) = match (self.spec.norm, norm.bias) {
            (Norm::Rms, _) => (Op::RmsNorm { x, weight, eps }, norm.tap),
            (Norm::Layer, None) => (Op::LayerNorm { x, weight, eps }, norm.tap),
            (Norm::Layer, Some(_)) => (Op::LayerNorm { x, weight, eps }, taps::NORM_W),
        };
        let y = self.push(op, self.info(x), named(name));
        self.bias(y, norm.bias, named(norm.tap))
    }

    /// The same, or the value itself where there is no norm.
    fn optional_norm(&mut self, x: ValueId, norm: Option<NormWeights>, l: usize) -> ValueId {
        match norm {
            Some(norm) => self.norm(x, norm, Some(l)),
            None => x,
        }
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

    /// Whether two matrices are rows of one tensor.
    fn shares_tensor(&self, a: WeightId, b: WeightId) -> bool {
        self.w.matrix(a).tensor == self.w.matrix(b).tensor
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

    fn unary(&mut self, x: ValueId, f: Function, tap: Option<Named>) -> ValueId {
        self.push(Op::Unary { x, f }, self.info(x), tap)
    }

    /// Times a factor, unless that is 1.
    fn scale(&mut self, x: ValueId, factor: f32, tap: Option<Named>) -> ValueId {
        if factor == 1.0 {
            return x;
        }
        self.unary(x, Function::Scale(factor), tap)
    }

    /// In the last layer only the wanted rows go on: nothing after it looks at other tokens, and
    /// the feed-forward block is most of a layer's work.
    fn wanted<const N: usize>(&mut self, values: [ValueId; N], l: usize) -> [ValueId; N] {
        if l + 1 < self.h.n_layer() {
            return values;
        }
        values.map(|x| {
            let rows = RowSet::Wanted;
            let info = ValueShape {
                rows,
                ..self.info(x)
            };
            self.push(Op::SelectRows { x }, info, None)
        })
    }

    /// A whole layer: takes its input and gives its output.
    pub(super) fn layer(&mut self, x: ValueId, l: usize) -> ValueId {
        match self.spec.block {
            Block::Sequential { residual } => self.sequential(x, l, residual),
            Block::Parallel => self.parallel(x, l),
        }
    }

    /// What the layer draws from other tokens.
    fn mixed(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.of_layer(l);
        let attended = match (&w.attention, &w.latent) {
            (Some(w), _) => Some(self.attention(x, w, l)),
            (None, Some(w)) => Some(self.latent_attention(x, w, l)),
            (None, None) => None,
        };
        let carried = w.recurrence.as_ref().map(|w| self.recurrence(x, w, l));
        match (attended, carried) {
            (Some(a), Some(b)) => self.add(a, b, at(taps::LAYER_OUT, l)),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => unreachable!("whoever bound the layer gave it one of them"),
        }
    }

    fn sequential(&mut self, x: ValueId, l: usize, residual: Option<&'static str>) -> ValueId {
        let w = self.of_layer(l);
        let normed = self.optional_norm(x, w.attn_norm, l);
        let out = self.mixed(normed, l);
        let [out, x] = self.wanted([out, x], l);
        let out = self.optional_norm(out, w.attn_post_norm, l);
        let out = self.scale(out, self.h.factors.residual, None);
        if w.ffn == Ffn::Absent {
            return self.add(out, x, at(taps::L_OUT, l));
        }
        let x = self.add(out, x, residual.and_then(|name| at(name, l)));
        let normed = self.optional_norm(x, w.ffn_norm, l);
        let out = self.feed_forward(normed, x, l);
        let out = self.optional_norm(out, w.ffn_post_norm, l);
        let out = self.scale(out, self.h.factors.residual, None);
        // the last of the steps has the name of the layer's output
        let named =
            |step: &'static str, is_last: bool| at(if is_last { taps::L_OUT } else { step }, l);
        let unscaled = w.output_scale.is_none();
        let ends = unscaled && w.per_layer.is_none();
        let mut x = self.add(out, x, named(taps::PE_IN, ends));
        if let Some(per_layer) = &w.per_layer {
            let out = self.per_layer(x, per_layer, l);
            x = self.add(out, x, at(taps::L_OUT, l).filter(|_| unscaled));
        }
        match w.output_scale {
            Some(scale) => self.unary(x, Function::Scale(scale), at(taps::L_OUT, l)),
            None => x,
        }
    }

    /// What a layer makes of its part of [`Builder::per_layer_inputs`].
    fn per_layer(&mut self, x: ValueId, w: &PerLayer, l: usize) -> ValueId {
        let all = self.per_layer.expect("made with the embeddings");
        let width = self.h.n_embd_per_layer;
        let own = self.part(all, l * width, width);
        let [up] = self.wanted([own], l);
        let gate = self.matmul(x, w.gate, None);
        let gated = Op::Gate {
            gate,
            up,
            act: Activation::Gelu,
        };
        let y = self.push(gated, self.info(gate), None);
        let y = self.matmul(y, w.projection, None);
        self.norm(y, w.norm, Some(l))
    }

    fn parallel(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.of_layer(l);
        let ffn_normed = w.ffn_norm.map(|norm| self.norm(x, norm, Some(l)));
        let normed = self.optional_norm(x, w.attn_norm, l);
        let attended = self.mixed(normed, l);
        let [attended, x, normed] = self.wanted([attended, x, ffn_normed.unwrap_or(normed)], l);
        let out = self.feed_forward(normed, x, l);
        let out = self.add(out, x, None);
        self.add(attended, out, at(taps::L_OUT, l))
    }

    /// Final norm and logits, of what the last of the layers hands on.
    pub(super) fn head(mut self, x: ValueId, layers: Vec<ValueId>) -> Graph {
        let hidden = self.norm(x, self.w.output_norm, None);
        let factors = self.h.factors;
        let steps = [factors.logits != 1.0, factors.logit_cap.is_some()];
        // the last step has the name
        let named = |step: usize| {
            let is_last = steps[step..].iter().all(|follows| !follows);
            is_last.then_some(taps::RESULT_OUTPUT).and_then(once)
        };
        let logits = self.affine(hidden, self.w.output, self.w.output_bias, named(0));
        let mut logits = self.scale(logits, factors.logits, named(1));
        if let Some(cap) = factors.logit_cap {
            logits = self.unary(logits, Function::SoftCap(cap), once(taps::RESULT_OUTPUT));
        }
        Graph {
            nodes: self.nodes,
            values: self.values,
            states: self.states,
            n_layer: self.h.n_layer(),
            layers,
            hidden,
            logits,
        }
    }
}
