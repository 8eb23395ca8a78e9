//! Builds the graph of a vision encoder: patches are the input of a step, position embeddings are
//! rows that come with a step, and the result is one row per image token.

use octavo_kernels::{
    Activation, CacheLayer, Function, MERGED_ROWS, Pairing, Rope, RowSet, Scores, ValueShape,
};
use octavo_model::graph::{Named, Nodes, at, once};
use octavo_model::{CacheGroup, Graph, Op, Tensors, ValueId};

use super::hparams::{Feature, Hparams};
use super::weights::{Affine, Block, FeedForward, Projection, Weights};

/// RoPE base; no key stores it.
const ROPE_BASE: f64 = 10_000.0;
/// RoPE axes of patches, as in [`octavo_kernels::RopePosition`].
const ROW: usize = 1;
const COLUMN: usize = 2;
/// Cache layers used alternately by blocks: some patches may already be in the next block while
/// others still attend in this one.
const CACHE_LAYERS: usize = 2;
/// Factor on quick GELU's argument.
const QUICK: f32 = 1.702;

/// Returns the 2D RoPE: the first half of a head's pairs is rotated by the patch's row, the other
/// by its column, both beginning with the highest frequency.
pub(super) fn rope(h: &Hparams) -> Rope {
    let (head_dim, quarter) = (h.head_dim(), h.head_dim() / 4);
    let frequency = |i: usize| ROPE_BASE.powf(-4.0 * i as f64 / head_dim as f64);
    let half: Vec<f64> = (0..quarter).map(frequency).collect();
    Rope {
        pairing: Pairing::Neox,
        frequencies: [&half[..], &half].concat(),
        magnitude: 1.0,
        axes: [vec![ROW; quarter], vec![COLUMN; quarter]].concat(),
    }
}

/// Returns the cache group whose layers blocks use alternately.
pub(super) fn cache(h: &Hparams) -> CacheGroup {
    CacheGroup {
        n_layer: CACHE_LAYERS.min(h.n_block),
        n_head_kv: h.n_head,
        head_dim: h.head_dim(),
        window: None,
    }
}

pub(super) fn build(h: &Hparams, w: &Weights, tensors: &Tensors) -> Graph {
    let mut b = Builder {
        h,
        nodes: Nodes::new(tensors),
    };
    let mut x = b.embed(w);
    let first_layer = b.nodes.nodes.len();
    let (mut layers, mut deep) = (Vec::new(), Vec::new());
    for (l, block) in w.blocks.iter().enumerate() {
        x = b.block(x, block, l);
        layers.push(x);
        if let Some(projection) = &block.deepstack {
            deep.push(b.deepstack(x, projection, l));
        }
    }
    let main = b.project(x, &w.projection);
    let output = b.side_by_side(main, &deep);
    Graph {
        nodes: b.nodes.nodes,
        values: b.nodes.values,
        states: Vec::new(),
        n_layer: h.n_block,
        first_layer,
        input: h.patch_values(),
        embedding_input_width: w.positions.as_ref().map_or(0, |_| h.n_embd),
        layers,
        hidden: output,
        logits: output,
    }
}

struct Builder<'a> {
    h: &'a Hparams,
    nodes: Nodes<'a>,
}

impl Builder<'_> {
    /// Appends the patch embedding `W0 p + W1 p`, with its bias and position embedding.
    fn embed(&mut self, w: &Weights) -> ValueId {
        let shape = ValueShape {
            width: self.h.patch_values(),
            rows: RowSet::All,
        };
        let patches = self.nodes.push(Op::Input, shape, None);
        let [first, second] = w.patches.map(|w| self.nodes.matmul(patches, w, None));
        let x = self.nodes.add(first, second, None);
        let x = self.nodes.bias(x, w.patch_bias, once("patch_bias"));
        if w.positions.is_none() {
            return x;
        }
        let shape = self.nodes.info(x);
        let placed = Op::AddEmbeddings { x, from: 0 };
        self.nodes.push(placed, shape, once("inp_pos_emb"))
    }

    fn block(&mut self, x: ValueId, w: &Block, l: usize) -> ValueId {
        let h = self.norm(x, w.attn_norm, l);
        let mixed = self.attention(h, w, l);
        let out = self.affine(mixed, w.out, at("attn_out", l));
        let x = self.nodes.add(out, x, at("ffn_inp", l));
        let h = self.norm(x, w.ffn_norm, l);
        let feature = self.h.feature;
        let out = self.feed_forward(h, &w.ffn, feature, Some(l), at("ffn_out", l));
        self.nodes.add(out, x, at("layer_out", l))
    }

    fn norm(&mut self, x: ValueId, norm: octavo_model::weights::NormWeights, l: usize) -> ValueId {
        let kind = self.h.projector.norm();
        self.nodes.norm(x, kind, norm, self.h.norm_eps, Some(l))
    }

    fn affine(&mut self, x: ValueId, w: Affine, tap: Option<Named>) -> ValueId {
        self.nodes.affine(x, w.w, w.bias, tap)
    }

    fn attention(&mut self, x: ValueId, w: &Block, l: usize) -> ValueId {
        let [q, k, v] = w.qkv;
        let q = self.rotated(x, q, ["Qcur", "Qcur_rope"], l);
        let k = self.rotated(x, k, ["Kcur", "Kcur_rope"], l);
        let v = self.affine(x, v, at("Vcur", l));
        let shape = self.nodes.info(q);
        let nothing = ValueShape { width: 0, ..shape };
        let cache = CacheLayer {
            group: 0,
            layer: l % CACHE_LAYERS,
        };
        let write = Op::KvWrite { k, v, cache };
        self.nodes.push(write, nothing, None);
        let attention = Op::Attention {
            q,
            cache,
            scores: Scores {
                causal: false,
                blocks: !self.h.sees_all(l),
                ..Scores::plain(1.0 / (self.h.head_dim() as f32).sqrt())
            },
            sinks: None,
        };
        self.nodes.push(attention, shape, at("kqv_out", l))
    }

    /// Appends the projection and RoPE of queries or keys.
    fn rotated(&mut self, x: ValueId, w: Affine, taps: [&'static str; 2], l: usize) -> ValueId {
        let x = self.affine(x, w, at(taps[0], l));
        let (head_dim, shape) = (self.h.head_dim(), self.nodes.info(x));
        let rope = Op::Rope {
            x,
            head_dim,
            rope: 0,
        };
        self.nodes.push(rope, shape, at(taps[1], l))
    }

    /// Appends the feed-forward block; the last sum has the name `result`.
    fn feed_forward(
        &mut self,
        x: ValueId,
        w: &FeedForward,
        feature: Feature,
        layer: Option<usize>,
        result: Option<Named>,
    ) -> ValueId {
        let named = |name| Some(Named { name, layer });
        let gate = w
            .gate
            .map(|gate| self.shown(x, gate, [named("ffn_gate"), named("ffn_gate_b")]));
        let up = self.shown(x, w.up, [named("ffn_up"), named("ffn_up_b")]);
        let x = match gate {
            Some(gate) => self.gated(gate, up, feature, layer),
            None => self.featured(up, feature, layer),
        };
        self.shown(x, w.down, [named("ffn_down"), result])
    }

    /// Appends product and bias, each with a name.
    fn shown(&mut self, x: ValueId, w: Affine, taps: [Option<Named>; 2]) -> ValueId {
        let y = self.nodes.matmul(x, w.w, taps[0]);
        self.nodes.bias(y, w.bias, taps[1])
    }

    fn gated(
        &mut self,
        gate: ValueId,
        up: ValueId,
        feature: Feature,
        layer: Option<usize>,
    ) -> ValueId {
        let (act, name) = match feature {
            Feature::Gelu => (Activation::Gelu, "ffn_geglu"),
            Feature::Silu => (Activation::Silu, "ffn_swiglu"),
            Feature::QuickGelu => unreachable!("refused for gated blocks"),
        };
        let shape = self.nodes.info(up);
        let op = Op::Gate { gate, up, act };
        self.nodes.push(op, shape, Some(Named { name, layer }))
    }

    fn featured(&mut self, x: ValueId, feature: Feature, layer: Option<usize>) -> ValueId {
        let named = |name| Some(Named { name, layer });
        match feature {
            Feature::Gelu => self.nodes.unary(x, Function::Gelu, named("ffn_gelu")),
            Feature::Silu => self.nodes.unary(x, Function::Silu, named("ffn_silu")),
            Feature::QuickGelu => {
                let scaled = self.nodes.scale(x, QUICK, None);
                let share = self.nodes.unary(scaled, Function::Sigmoid, None);
                self.nodes.mul(x, share, named("ffn_gelu_quick"))
            }
        }
    }

    /// Appends the projector on the last block's result: norm, then merge.
    fn project(&mut self, x: ValueId, w: &Projection) -> ValueId {
        let x = self.norm(x, w.norm, self.h.n_block);
        let x = self.nodes.merge(x);
        self.feed_forward(x, &w.ffn, Feature::Gelu, None, None)
    }

    /// Appends the projector on another block's result (deepstack): merge, then norm.
    fn deepstack(&mut self, x: ValueId, w: &Projection, l: usize) -> ValueId {
        let x = self.nodes.merge(x);
        let x = self.norm(x, w.norm, l);
        self.feed_forward(x, &w.ffn, Feature::Gelu, Some(l), None)
    }

    fn side_by_side(&mut self, main: ValueId, deep: &[ValueId]) -> ValueId {
        let width = self.h.n_projected;
        let parts = deep.iter().enumerate();
        parts.fold(main, |all, (i, part)| {
            let each = [(1 + i) * width, width];
            self.nodes.concat(all, *part, each, None)
        })
    }
}

const _: () = assert!(MERGED_ROWS == 4, "a cell is two by two patches");
