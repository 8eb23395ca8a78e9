//! Building blocks shared by all architectures: each appends its ops, with llama.cpp's names, in
//! llama.cpp's order. A layer's weights decide which blocks it has; its architecture's
//! [`Spec`](super::arch::Spec) decides how they are arranged.

mod attention;
mod embeddings_and_head;
mod experts;
mod feed_forward;
mod indexer;
mod latent;
mod recurrent;
mod rwkv;

use std::ops::{Deref, DerefMut};

use octavo_kernels::{Activation, Function, RowSet, ValueShape};

pub(super) use feed_forward::Feature;

use super::arch::Spec;
use super::graph::{HiddenRows, Named, Nodes, Op, ValueId, at, once};
use super::hparams::Hparams;
use super::taps;
use super::weights::{Ffn, Layer, NormWeights, PerLayer, WeightId, Weights};

/// Arrangement of attention and feed-forward block in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// The feed-forward block reads the layer's input plus attention's result; `residual` is that
    /// sum's name.
    Sequential { residual: Option<&'static str> },
    /// Both read the layer's input, and both are added to it.
    Parallel,
    /// Sequential, with norms of the residual sums (post-norm).
    NormedSums,
    /// A layer is a token mixer or a feed-forward block.
    OneOfBoth,
    /// Time mixing, then channel mixing (RWKV).
    Mixes,
}

/// Appends nodes to a graph.
pub(super) struct Builder<'a> {
    h: &'a Hparams,
    w: &'a Weights,
    spec: &'static Spec,
    nodes: Nodes<'a>,
    rows: HiddenRows,
    /// Per-layer inputs of all layers, if the model has them.
    per_layer: Option<ValueId>,
    /// Values of the first layer, which later ones take a share of (RWKV).
    first_values: Option<ValueId>,
    /// Keys that the last indexer has chosen.
    seen: Option<ValueId>,
    /// Number of nodes before the first layer, once these are complete.
    first_layer: usize,
}

impl<'a> Deref for Builder<'a> {
    type Target = Nodes<'a>;

    fn deref(&self) -> &Nodes<'a> {
        &self.nodes
    }
}

impl<'a> DerefMut for Builder<'a> {
    fn deref_mut(&mut self) -> &mut Nodes<'a> {
        &mut self.nodes
    }
}

impl<'a> Builder<'a> {
    pub(super) fn new(h: &'a Hparams, w: &'a Weights, rows: HiddenRows) -> Builder<'a> {
        Builder {
            h,
            w,
            spec: h.arch.spec(),
            nodes: Nodes::new(&w.tensors),
            rows,
            per_layer: None,
            first_values: None,
            seen: None,
            first_layer: 0,
        }
    }

    fn push(&mut self, op: Op, info: ValueShape, tap: Option<Named>) -> ValueId {
        self.nodes.push(op, info, tap)
    }

    fn scale(&mut self, x: ValueId, factor: f32, tap: Option<Named>) -> ValueId {
        self.nodes.scale(x, factor, tap)
    }

    /// Returns the weights of a layer.
    fn of_layer(&self, l: usize) -> &'a Layer {
        &self.w.layers[l]
    }

    /// Appends a norm over groups as wide as the weight: the row, or each head.
    fn norm(&mut self, x: ValueId, norm: NormWeights, layer: Option<usize>) -> ValueId {
        let (kind, eps) = (self.spec.norm, self.h.norm_eps());
        self.nodes.norm(x, kind, norm, eps, layer)
    }

    /// Appends a norm, or returns the value itself where there is none.
    fn optional_norm(&mut self, x: ValueId, norm: Option<NormWeights>, l: usize) -> ValueId {
        match norm {
            Some(norm) => self.norm(x, norm, Some(l)),
            None => x,
        }
    }

    /// Returns whether two matrices are rows of one tensor.
    fn shares_tensor(&self, a: WeightId, b: WeightId) -> bool {
        self.w.matrix(a).tensor == self.w.matrix(b).tensor
    }

    /// Keeps only the rows with outputs in the last layer: nothing after it looks at other tokens,
    /// and the feed-forward block is most of a layer's work.
    fn output_rows<const N: usize>(&mut self, values: [ValueId; N], l: usize) -> [ValueId; N] {
        if l + 1 < self.h.n_layer() || self.rows == HiddenRows::All {
            return values;
        }
        values.map(|x| self.select_rows(x, None))
    }

    /// Keeps the rows with outputs.
    fn select_rows(&mut self, x: ValueId, tap: Option<Named>) -> ValueId {
        let info = ValueShape {
            rows: RowSet::Outputs,
            ..self.info(x)
        };
        self.push(Op::SelectRows { x }, info, tap)
    }

    /// Appends a whole layer and returns its output.
    pub(super) fn layer(&mut self, x: ValueId, l: usize) -> ValueId {
        match self.h.block {
            Block::Sequential { residual } => self.sequential(x, l, residual),
            Block::Parallel => self.parallel(x, l),
            Block::NormedSums => self.normed_sums(x, l),
            Block::OneOfBoth => self.one_of_both(x, l),
            Block::Mixes => self.mixes(x, l),
        }
    }

    /// Appends the layer's token mixer: attention, recurrence, or both added.
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
        let [out, entry] = self.output_rows([out, x], l);
        let out = self.optional_norm(out, w.attn_post_norm, l);
        let out = self.scale(out, self.h.factors.residual, None);
        if w.ffn == Ffn::Absent {
            return self.add(out, entry, at(taps::L_OUT, l));
        }
        let x = self.add(out, entry, residual.and_then(|name| at(name, l)));
        let normed = self.optional_norm(x, w.ffn_norm, l);
        let out = self.feed_forward(normed, [x, entry], l);
        let out = self.optional_norm(out, w.ffn_post_norm, l);
        let out = self.scale(out, self.h.factors.residual, None);
        // the last step is named as the layer's output
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

    /// Appends the layer's use of its part of [`Builder::per_layer_inputs`].
    fn per_layer(&mut self, x: ValueId, w: &PerLayer, l: usize) -> ValueId {
        let all = self.per_layer.expect("made with the embeddings");
        let width = self.h.n_embd_per_layer;
        let own = self.part(all, l * width, width);
        let [up] = self.output_rows([own], l);
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
        let [attended, x, normed] =
            self.output_rows([attended, x, ffn_normed.unwrap_or(normed)], l);
        let out = self.feed_forward(normed, [x; 2], l);
        let out = self.add(out, x, None);
        self.add(attended, out, at(taps::L_OUT, l))
    }

    fn one_of_both(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.of_layer(l);
        let normed = self.optional_norm(x, w.attn_norm, l);
        let [out, x] = if w.ffn == Ffn::Absent {
            let out = self.mixed(normed, l);
            self.output_rows([out, x], l)
        } else {
            let [normed, x] = self.output_rows([normed, x], l);
            [self.feed_forward(normed, [x; 2], l), x]
        };
        self.add(out, x, at(taps::NEMOTRON_H_BLOCK_OUT, l))
    }

    fn normed_sums(&mut self, x: ValueId, l: usize) -> ValueId {
        let w = self.of_layer(l);
        let out = self.mixed(x, l);
        let [out, x] = self.output_rows([out, x], l);
        let x = self.add(out, x, None);
        let x = self.optional_norm(x, w.attn_post_norm, l);
        let out = self.feed_forward(x, [x; 2], l);
        let x = self.add(out, x, None);
        self.optional_norm(x, w.ffn_post_norm, l)
    }
}
