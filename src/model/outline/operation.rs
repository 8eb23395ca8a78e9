//! Names, weights and parameters of operations.

use octavo_kernels::{Activation, CacheLayer, Function, KeyHeads, Recurrence, Scores};

use super::{Parameter, Reader, Setting, Weight};
use crate::graph::{Node, Op, ValueId};
use crate::hparams::ScalingKind;
use crate::weights::{VecId, WeightId};

/// Returns the name of an operation; functions of single values have their own.
pub(super) fn name(op: &Op) -> &'static str {
    match op {
        Op::Embed { .. } => "embed",
        Op::Constant { .. } => "constant",
        Op::EmbedPositions { .. } => "embed_positions",
        Op::AddEmbeddings { .. } => "add_embeddings",
        Op::Input => "input",
        Op::RmsNorm { .. } => "rms_norm",
        Op::LayerNorm { .. } => "layer_norm",
        Op::MatMul { .. } => "matmul",
        Op::AddBias { .. } => "add_bias",
        Op::Rope { .. } => "rope",
        Op::Hadamard { .. } => "hadamard",
        Op::KvWrite { .. } => "kv_write",
        Op::Attention { .. } => "attention",
        Op::SelectKeys { .. } => "select_keys",
        Op::Gate { .. } => "gate",
        Op::Unary { f, .. } => function_name(*f),
        Op::ScaleByPosition { .. } => "scale_by_position",
        Op::Add { .. } => "add",
        Op::Mul { .. } => "mul",
        Op::MulVector { .. } => "mul_vector",
        Op::SelectRows { .. } => "select_rows",
        Op::Merge { .. } => "merge",
        Op::Slice { .. } => "slice",
        Op::Concat { .. } => "concat",
        Op::CausalConv { .. } => "causal_conv",
        Op::LinearAttention { .. } => "linear_attention",
        Op::SelectiveScan { .. } => "selective_scan",
        Op::Wkv7 { .. } => "wkv7",
        Op::Softmax { .. } => "softmax",
        Op::TopK { .. } => "top_k",
        Op::Gather { .. } => "gather",
        Op::Normalize { .. } => "normalize",
        Op::ScaleRows { .. } => "scale_rows",
        Op::ExpertMatMul { .. } => "expert_matmul",
        Op::ExpertBias { .. } => "expert_bias",
        Op::ExpertSum { .. } => "expert_sum",
        Op::AllGather { .. } => "all_gather",
        Op::LoraDown { .. } => "lora_down",
        Op::LoraUp { .. } => "lora_up",
    }
}

fn function_name(f: Function) -> &'static str {
    match f {
        Function::SoftCap(_) => "soft_cap",
        Function::Scale(_) => "scale",
        Function::Gelu => "gelu",
        Function::Clamp(..) => "clamp",
        Function::SquaredRelu => "squared_relu",
        Function::Sigmoid => "sigmoid",
        Function::Silu => "silu",
        Function::Softplus => "softplus",
        Function::Exp => "exp",
        Function::Xielu(_) => "xielu",
    }
}

fn activation_name(act: Activation) -> &'static str {
    match act {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::SwigluOai => "swiglu_oai",
    }
}

fn count(name: &'static str, value: usize) -> Parameter {
    let value = Setting::Count(value);
    Parameter { name, value }
}

fn counts(name: &'static str, values: &[usize]) -> Parameter {
    let value = Setting::Counts(values.to_vec());
    Parameter { name, value }
}

fn number(name: &'static str, value: f32) -> Parameter {
    let value = Setting::Number(value);
    Parameter { name, value }
}

fn word(name: &'static str, value: &'static str) -> Parameter {
    let value = Setting::Word(value);
    Parameter { name, value }
}

fn flag(name: &'static str, value: bool) -> Parameter {
    let value = Setting::Flag(value);
    Parameter { name, value }
}

impl Reader<'_> {
    fn width(&self, value: ValueId) -> usize {
        self.network.graph().values[value.index()].width
    }

    /// Returns the weights that an operation reads.
    pub(super) fn weights(&self, op: &Op) -> Vec<Weight> {
        match *op {
            Op::Embed { table, .. } | Op::EmbedPositions { table } => vec![self.matrix(table, 1)],
            Op::MatMul { w, .. } => vec![self.matrix(w, 1)],
            Op::ExpertMatMul { w, experts, .. } => vec![self.matrix(w, experts)],
            Op::Rope { rope, .. } => self.divisors(rope),
            Op::CausalConv { x, weight, .. } => vec![self.vector(weight, self.width(x))],
            Op::SelectiveScan { x, a, .. } => vec![self.vector(a, self.width(x))],
            Op::ExpertBias { x, bias, ids } => {
                let each = self.width(x) / self.width(ids);
                vec![self.vector(bias, each)]
            }
            op => op
                .vector()
                .map(|id| self.vector(*id, 0))
                .into_iter()
                .collect(),
        }
    }

    fn matrix(&self, id: WeightId, experts: usize) -> Weight {
        let m = self.network.tensors().matrix(id);
        let mut shape = vec![m.cols as usize, m.rows as usize / experts];
        if experts > 1 {
            shape.push(experts);
        }
        Weight {
            name: m.name.clone(),
            ty: Some(m.ty.name()),
            shape,
            first_row: self.first_rows.of_matrix(id),
        }
    }

    /// Describes a vector; with `cols`, as rows of that width.
    fn vector(&self, id: VecId, cols: usize) -> Weight {
        let vector = &self.network.tensors().vectors[id.0 as usize];
        let len = vector.data.len();
        Weight {
            name: vector.name.clone(),
            ty: (!vector.is_made).then_some("F32"),
            shape: match len.checked_div(cols) {
                Some(rows) => vec![cols, rows],
                None => vec![len],
            },
            first_row: self.first_rows.of_vector(id),
        }
    }

    /// Returns the divisors of a table's angles.
    fn divisors(&self, rope: usize) -> Vec<Weight> {
        let Some(angles) = &self.angles else {
            return Vec::new();
        };
        let all = angles.divisors;
        let used = [all.all, all.short, all.long].into_iter().flatten();
        let used = used.filter(|_| angles.ropes[rope].divided);
        used.map(|id| self.vector(id, 0)).collect()
    }

    /// Returns the parameters of a node's operation.
    pub(super) fn parameters(&self, node: &Node) -> Vec<Parameter> {
        match node.op {
            Op::RmsNorm { x, weight, eps } | Op::LayerNorm { x, weight, eps } => {
                let of = self.network.tensors().vector(weight).len();
                let parts = (of < self.width(x)).then(|| count("group", of));
                parts.into_iter().chain([number("eps", eps)]).collect()
            }
            Op::Rope { head_dim, rope, .. } => self.rope(head_dim, rope),
            Op::Attention {
                q, cache, scores, ..
            } => self.attention(q, cache, scores),
            Op::SelectKeys { weights, n, .. } => {
                vec![count("heads", self.width(weights)), count("n", n)]
            }
            Op::Gate { act, .. } => vec![word("activation", activation_name(act))],
            Op::Unary { f, .. } => of_function(f),
            Op::ScaleByPosition {
                rate, step, offset, ..
            } => {
                let offset = (offset > 0).then(|| count("offset", offset));
                let all = [number("rate", rate), count("step", step)];
                all.into_iter().chain(offset).collect()
            }
            Op::AddEmbeddings { from, .. } => vec![count("from", from)],
            Op::Hadamard { order, .. } => vec![count("order", order)],
            Op::Slice {
                x,
                each,
                from,
                width,
            } => {
                let parts = (each < self.width(x)).then(|| count("each", each));
                let range = [count("from", from), count("width", width)];
                parts.into_iter().chain(range).collect()
            }
            Op::Concat { each, .. } => vec![counts("each", &each)],
            Op::CausalConv { x, weight, .. } => {
                let len = self.network.tensors().vector(weight).len();
                vec![count("tokens", len / self.width(x))]
            }
            Op::LinearAttention { how, q, rate, .. } => self.linear_attention(how, q, rate),
            Op::SelectiveScan { b, .. } => vec![count("state", self.width(b))],
            Op::Wkv7 { r, key_dim, .. } => vec![
                count("heads", self.width(r) / key_dim),
                count("key_dim", key_dim),
            ],
            Op::TopK { n, groups, .. } => {
                let groups = groups.map(|g| [count("groups", g.count), count("used", g.used)]);
                let groups = groups.into_iter().flatten();
                [count("n", n)].into_iter().chain(groups).collect()
            }
            Op::Normalize { least, .. } => vec![number("least", least)],
            Op::Embed { .. }
            | Op::Constant { .. }
            | Op::EmbedPositions { .. }
            | Op::Input
            | Op::MatMul { .. }
            | Op::AddBias { .. }
            | Op::KvWrite { .. }
            | Op::Add { .. }
            | Op::Mul { .. }
            | Op::MulVector { .. }
            | Op::SelectRows { .. }
            | Op::Merge { .. }
            | Op::Softmax { .. }
            | Op::Gather { .. }
            | Op::ScaleRows { .. }
            | Op::ExpertMatMul { .. }
            | Op::ExpertBias { .. }
            | Op::ExpertSum { .. }
            | Op::AllGather { .. }
            | Op::LoraDown { .. }
            | Op::LoraUp { .. } => Vec::new(),
        }
    }

    fn rope(&self, head_dim: usize, rope: usize) -> Vec<Parameter> {
        let table = &self.network.ropes()[rope];
        let mut all = Vec::new();
        let settings = self.angles.as_ref().map(|angles| &angles.ropes[rope]);
        if let Some(settings) = settings {
            all.push(number("base", settings.freq_base.value));
        }
        all.push(count("dims", table.n_rot()));
        if table.n_rot() < head_dim {
            all.push(count("head_dim", head_dim));
        }
        all.push(word("pairing", table.pairing.name()));
        let scaled = settings.filter(|settings| settings.scaling.value != ScalingKind::None);
        if let Some(settings) = scaled {
            all.push(word("scaling", settings.scaling.value.name()));
            all.push(number("factor", settings.factor.value));
            if settings.scaling.value != ScalingKind::Linear {
                all.push(count("original_context", settings.original_context.value));
            }
        }
        if table.magnitude != 1.0 {
            all.push(number("magnitude", table.magnitude as f32));
        }
        if !table.axes.is_empty() {
            let pairs = |axis| table.axes.iter().filter(|a| **a == axis).count();
            all.push(counts("pairs_of_axes", &[0, 1, 2].map(pairs)));
        }
        all
    }

    fn attention(&self, q: ValueId, cache: CacheLayer, scores: Scores) -> Vec<Parameter> {
        let group = self.network.caches()[cache.group];
        let mut all = vec![
            count("heads", self.width(q) / group.head_dim),
            count("kv_heads", group.n_head_kv),
            count("head_dim", group.head_dim),
            number("scale", scores.scale),
        ];
        all.extend(scores.cap.map(|cap| number("cap", cap)));
        all.extend(scores.window.map(|window| count("window", window)));
        if scores.chunked {
            all.push(flag("chunked", true));
        }
        all.extend(scores.alibi.map(|alibi| number("alibi", alibi.max_bias)));
        all.push(flag("causal", scores.causal));
        if scores.blocks {
            all.push(flag("blocks", true));
        }
        if scores.images {
            all.push(flag("images", true));
        }
        all
    }

    fn linear_attention(&self, how: Recurrence, q: ValueId, rate: ValueId) -> Vec<Parameter> {
        let heads = match how.heads {
            KeyHeads::Grouped => "grouped",
            KeyHeads::Tiled => "tiled",
        };
        vec![
            count("heads", self.width(rate)),
            count("key_heads", self.width(q) / how.key_dim),
            count("key_dim", how.key_dim),
            word("keys", heads),
            flag("delta_rule", how.delta),
            flag("decay_by_key", how.decay_by_key),
            number("scale", how.scale),
        ]
    }
}

/// Returns the parameters of a function.
fn of_function(f: Function) -> Vec<Parameter> {
    match f {
        Function::SoftCap(cap) => vec![number("cap", cap)],
        Function::Scale(factor) => vec![number("factor", factor)],
        Function::Clamp(low, high) => vec![number("low", low), number("high", high)],
        Function::Xielu(by) => vec![
            number("positive", by.positive),
            number("negative", by.negative),
            number("linear", by.linear),
            number("least", by.least),
        ],
        Function::Gelu
        | Function::SquaredRelu
        | Function::Sigmoid
        | Function::Silu
        | Function::Softplus
        | Function::Exp => Vec::new(),
    }
}
