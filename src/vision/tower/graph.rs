//! Builds the graph of a vision encoder: patches are the input of a step, position embeddings are
//! rows that come with a step, and the result is one row per image token.

use octavo_kernels::{Activation, CacheLayer, Function, RowSet, Scores, ValueShape};
use octavo_model::graph::{Named, Nodes, at};
use octavo_model::weights::NormWeights;
use octavo_model::{CacheGroup, Graph, Op, Tensors, ValueId, VecId};

use super::arch::{Rotation, Spec};
use super::hparams::{Feature, Hparams};
use super::step::Step;
use super::weights::{Affine, Block, FeedForward, Weights};

/// Cache layers used alternately by blocks: some patches may already be in the next block while
/// others still attend in this one.
const CACHE_LAYERS: usize = 2;
/// Factor on quick GELU's argument.
const QUICK: f32 = 1.702;

/// Returns the cache group whose layers blocks use alternately; none without blocks.
pub(super) fn caches(h: &Hparams) -> Vec<CacheGroup> {
    let group = CacheGroup {
        n_layer: CACHE_LAYERS.min(h.n_block),
        n_head_kv: h.n_head_kv,
        head_dim: h.head_dim(),
        window: None,
    };
    if h.n_block > 0 {
        vec![group]
    } else {
        Vec::new()
    }
}

pub(super) fn build(h: &Hparams, w: &Weights, tensors: &Tensors) -> Graph {
    let mut b = Builder {
        h,
        spec: h.projector.spec(),
        nodes: Nodes::new(tensors),
    };
    let shape = ValueShape {
        width: h.patch_values(),
        rows: RowSet::All,
    };
    let patches = b.nodes.push(Op::Input, shape, None);
    let mut x = b.steps(patches, &w.embed);
    let first_layer = b.nodes.nodes.len();
    let (mut layers, mut deep) = (Vec::new(), Vec::new());
    for (l, block) in w.blocks.iter().enumerate() {
        x = b.block(x, block, l);
        layers.push(x);
        if !block.deepstack.is_empty() {
            deep.push(b.steps(x, &block.deepstack));
        }
    }
    let main = b.steps(x, &w.project);
    let output = b.side_by_side(main, &deep);
    Graph {
        nodes: b.nodes.nodes,
        values: b.nodes.values,
        states: Vec::new(),
        n_layer: h.n_block,
        first_layer,
        borrows_cache: false,
        input: h.patch_values(),
        embedding_input_width: w.positions.as_ref().map_or(0, |_| h.n_embd),
        layers,
        hidden: output,
        kept: None,
        logits: output,
    }
}

struct Builder<'a> {
    h: &'a Hparams,
    spec: &'static Spec,
    nodes: Nodes<'a>,
}

impl Builder<'_> {
    fn steps(&mut self, x: ValueId, steps: &[Step]) -> ValueId {
        steps.iter().fold(x, |x, step| self.step(x, step))
    }

    fn step(&mut self, x: ValueId, step: &Step) -> ValueId {
        let merged = self.h.merge * self.h.merge;
        match *step {
            Step::Patches(ref kernels) => {
                let parts = kernels.iter().map(|w| self.nodes.matmul(x, *w, None));
                let parts: Vec<ValueId> = parts.collect();
                let (first, others) = parts.split_first().expect("kernels of a frame");
                let add = |sum, part: &ValueId| self.nodes.add(sum, *part, None);
                others.iter().fold(*first, add)
            }
            Step::Positions(tap) => {
                let shape = self.nodes.info(x);
                self.nodes
                    .push(Op::AddEmbeddings { x, from: 0 }, shape, tap)
            }
            Step::Norm(norm, kind, eps, layer) => self.nodes.norm(x, kind, norm, eps, layer),
            Step::Affine(affine, taps) => self.product(x, affine, taps),
            Step::Product(w, tap) => self.nodes.matmul(x, w, tap),
            Step::Bias(bias, tap) => self.nodes.bias(x, Some(bias), tap),
            Step::MulVector(by, tap) => self.nodes.mul_vector(x, by, tap),
            Step::Scale(factor, tap) => self.nodes.scale(x, factor, tap),
            Step::Gelu(tap) => self.nodes.unary(x, Function::Gelu, tap),
            Step::Merge(tap) => self.nodes.merge(x, merged, tap),
            Step::Average(tap) => {
                let all = self.nodes.merge(x, merged, None);
                let parts = self.parts(all, merged);
                let add = |sum, part: &ValueId| self.nodes.add(sum, *part, None);
                let sum = parts[1..].iter().fold(parts[0], add);
                self.nodes.scale(sum, 1.0 / merged as f32, tap)
            }
            Step::ByChannel => {
                let parts = self.parts(x, merged);
                let mut joined = (parts[0], 1);
                for part in &parts[1..] {
                    let each = [joined.1, 1];
                    joined = (self.nodes.concat(joined.0, *part, each, None), joined.1 + 1);
                }
                joined.0
            }
        }
    }

    /// Cuts rows into equal parts.
    fn parts(&mut self, x: ValueId, n: usize) -> Vec<ValueId> {
        if n == 1 {
            return vec![x];
        }
        let width = self.nodes.info(x).width / n;
        (0..n)
            .map(|i| self.nodes.part(x, i * width, width))
            .collect()
    }

    fn block(&mut self, x: ValueId, w: &Block, l: usize) -> ValueId {
        let h = self.norm(x, w.attn_norm, l);
        let mixed = self.attention(h, w, l);
        let out = self.affine(mixed, w.out, at("attn_out", l));
        let out = self.optionally_scaled(out, w.attn_scale, at("attn_out_scaled", l));
        let out = self.optional_norm(out, w.attn_post_norm, l);
        let x = self.nodes.add(out, x, at("ffn_inp", l));
        let h = self.norm(x, w.ffn_norm, l);
        let out = self.feed_forward(h, &w.ffn, l);
        let out = self.optional_norm(out, w.ffn_post_norm, l);
        let out = self.optionally_scaled(out, w.ffn_scale, at("ffn_out_scaled", l));
        let x = self.nodes.add(out, x, at("layer_out", l));
        match w.out_scale {
            Some(scale) => {
                let scaled = Function::Scale(scale);
                self.nodes.unary(x, scaled, at("layer_out_scaled", l))
            }
            None => x,
        }
    }

    fn norm(&mut self, x: ValueId, norm: NormWeights, l: usize) -> ValueId {
        let kind = self.spec.norm;
        self.nodes.norm(x, kind, norm, self.h.norm_eps, Some(l))
    }

    fn optional_norm(&mut self, x: ValueId, norm: Option<NormWeights>, l: usize) -> ValueId {
        norm.map_or(x, |norm| self.norm(x, norm, l))
    }

    fn optionally_scaled(&mut self, x: ValueId, by: Option<VecId>, tap: Option<Named>) -> ValueId {
        by.map_or(x, |by| self.nodes.mul_vector(x, by, tap))
    }

    fn attention(&mut self, x: ValueId, w: &Block, l: usize) -> ValueId {
        let [q, k, v] = w.qkv;
        let [q_tap, k_tap] = self.spec.taps.rotated;
        let q = self.rotated(x, q, w.q_norm, ["Qcur", q_tap], l);
        let k = self.rotated(x, k, w.k_norm, ["Kcur", k_tap], l);
        let v = self.affine(x, v, at("Vcur", l));
        let v = self.optional_norm(v, w.v_norm, l);
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
            seen: None,
            cache,
            scores: Scores {
                causal: false,
                blocks: !self.h.sees_all(l),
                ..Scores::plain((self.spec.scale)(self.h.head_dim()))
            },
            sinks: None,
        };
        self.nodes.push(attention, shape, at("kqv_out", l))
    }

    /// Appends the projection, norm and RoPE of queries or keys.
    fn rotated(
        &mut self,
        x: ValueId,
        w: Affine,
        norm: Option<NormWeights>,
        taps: [&'static str; 2],
        l: usize,
    ) -> ValueId {
        let x = self.affine(x, w, at(taps[0], l));
        let x = self.optional_norm(x, norm, l);
        let head_dim = self.h.head_dim();
        match self.spec.rotation {
            Rotation::None => x,
            Rotation::Whole(_) => self.rope(x, head_dim, 0, at(taps[1], l)),
            Rotation::Halves(_) => {
                let half = head_dim / 2;
                let halves = [0, 1].map(|i| {
                    let part = self.nodes.slice(x, head_dim, i * half, half);
                    self.rope(part, half, i, None)
                });
                self.nodes
                    .concat(halves[0], halves[1], [half; 2], at(taps[1], l))
            }
        }
    }

    fn rope(&mut self, x: ValueId, head_dim: usize, rope: usize, tap: Option<Named>) -> ValueId {
        let shape = self.nodes.info(x);
        self.nodes.push(Op::Rope { x, head_dim, rope }, shape, tap)
    }

    /// Appends the feed-forward block.
    fn feed_forward(&mut self, x: ValueId, w: &FeedForward, l: usize) -> ValueId {
        // llama.cpp names biased results apart from products
        let taps = |w: Affine, names: [&'static str; 2]| match w.bias {
            Some(_) => names.map(|name| at(name, l)),
            None => [None, at(names[0], l)],
        };
        let gate = w.gate.map(|gate| {
            let taps = taps(gate, ["ffn_gate", "ffn_gate_b"]);
            self.product(x, gate, taps)
        });
        let up = self.product(x, w.up, taps(w.up, ["ffn_up", "ffn_up_b"]));
        let x = match gate {
            Some(gate) => self.gated(gate, up, l),
            None => self.featured(up, l),
        };
        let down = at("ffn_down", l).filter(|_| w.down.bias.is_some());
        self.product(x, w.down, [down, at("ffn_out", l)])
    }

    /// Appends product and bias, where only the result has a name.
    fn affine(&mut self, x: ValueId, w: Affine, tap: Option<Named>) -> ValueId {
        self.product(x, w, [None, tap])
    }

    /// Appends product and bias, within the matrix's bounds. The names are those of the product, if
    /// anything follows, and of the result.
    fn product(&mut self, x: ValueId, w: Affine, [product, result]: [Option<Named>; 2]) -> ValueId {
        let clamped = |b: &mut Self, x, bounds: Option<[f32; 2]>, tap| match bounds {
            Some([low, high]) => b.nodes.unary(x, Function::Clamp(low, high), tap),
            None => x,
        };
        let x = clamped(self, x, w.input, None);
        let (biased, bounded) = (w.bias.is_some(), w.output.is_some());
        let named = if biased || bounded { product } else { result };
        let y = self.nodes.matmul(x, w.w, named);
        let y = self.nodes.bias(y, w.bias, result.filter(|_| !bounded));
        clamped(self, y, w.output, result)
    }

    fn gated(&mut self, gate: ValueId, up: ValueId, l: usize) -> ValueId {
        let (act, name) = match self.h.feature {
            Feature::Gelu => (Activation::Gelu, "ffn_geglu"),
            Feature::Silu => (Activation::Silu, "ffn_swiglu"),
            Feature::QuickGelu => {
                let gate = self.quick_gelu(gate, None);
                return self.nodes.mul(gate, up, at("ffn_geglu_quick", l));
            }
        };
        let shape = self.nodes.info(up);
        self.nodes
            .push(Op::Gate { gate, up, act }, shape, at(name, l))
    }

    fn featured(&mut self, x: ValueId, l: usize) -> ValueId {
        match self.h.feature {
            Feature::Gelu => self.nodes.unary(x, Function::Gelu, at("ffn_gelu", l)),
            Feature::Silu => self.nodes.unary(x, Function::Silu, at("ffn_silu", l)),
            Feature::QuickGelu => self.quick_gelu(x, at("ffn_gelu_quick", l)),
        }
    }

    fn quick_gelu(&mut self, x: ValueId, tap: Option<Named>) -> ValueId {
        let scaled = self.nodes.scale(x, QUICK, None);
        let share = self.nodes.unary(scaled, Function::Sigmoid, None);
        self.nodes.mul(x, share, tap)
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
