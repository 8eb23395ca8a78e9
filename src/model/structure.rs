//! What a model is made of, in a few facts, and what of it a token uses.

use octavo_kernels::TopGroups;
use serde::{Serialize, Serializer};

use super::arch::QkNorm;
use super::blocks::Block;
use super::graph::Norm;
use super::hparams::{Factors, Gating, Pooling};
use super::weights::{Attention, Layer, Recurrence};
use super::{Model, Op};

/// A model's structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Structure {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Layers.
    pub layers: usize,
    /// Tokens see those before them alone. Otherwise they see all of their text, and the model
    /// gives a row for each token in place of logits.
    pub causal: bool,
    /// Positions have embeddings.
    pub embedded_positions: bool,
    /// How the file says that the rows of a text become one vector.
    pub pooling: Option<Pooling>,
    /// Width between the two products behind the last norm, if there are any.
    pub dense_width: Option<usize>,
    /// Attention and the feed-forward block read the same input, beside each other.
    pub parallel: bool,
    /// `RMS` or `layer`.
    pub norm: &'static str,
    /// What goes into attention is normed.
    pub norm_before: bool,
    /// What attention adds is normed, or, with `normed_sums`, what it is added to.
    pub norm_after: bool,
    /// Sums are normed, and not what is added.
    pub normed_sums: bool,
    /// Query heads per key head; none where layers differ.
    pub gqa_ratio: Option<usize>,
    /// Queries and keys are normalised.
    pub qk_norm: bool,
    /// As what: `head`, or `row` for all heads together.
    pub qk_norm_of: Option<&'static str>,
    /// They are so after they turned.
    pub qk_norm_after_rope: bool,
    /// Q, K or V have biases.
    pub qkv_bias: bool,
    /// Q, K and V are one tensor.
    pub fused_qkv: bool,
    /// The gate and what it gates are one tensor.
    pub fused_gate: bool,
    /// What feed-forward blocks put their gate through, or without a gate their product.
    pub activation: &'static str,
    /// Feed-forward blocks have a gate.
    pub gated: bool,
    /// Layers with one feed-forward block for all tokens.
    pub dense_layers: Vec<usize>,
    /// Experts of the other layers.
    pub experts: Option<ExpertStructure>,
    /// Attention in windows of the latest positions.
    pub windows: Option<Windows>,
    /// Soft cap on attention's scores.
    pub score_cap: Option<f32>,
    /// Soft cap on logits.
    pub logit_cap: Option<f32>,
    /// Queries are multiplied with a factor that grows with their position.
    pub queries_scaled_by_position: bool,
    /// Heads have sinks.
    pub sinks: bool,
    /// Attention's result goes through a gate that comes with the query.
    pub gated_attention: bool,
    /// Layers that go from token to token with a state.
    pub recurrent: Option<RecurrentStructure>,
    /// Of the first scores.
    pub score_scale: f32,
    /// Of token embeddings.
    pub embedding_factor: f32,
    /// Of what blocks add.
    pub residual_factor: f32,
    /// Of logits.
    pub logit_factor: f32,
    /// Which dimensions turn together: `norm` or `neox`.
    pub rope_pairing: &'static str,
    /// `none`, `linear`, `longrope` or `yarn`.
    pub rope_scaling: &'static str,
    /// The file carries divisors of the rotary angles.
    pub rope_freqs: bool,
    /// Layers that read another's keys and values.
    pub layers_without_keys: Vec<usize>,
    /// Width of what every layer gets of a token beside its input; 0 if it gets nothing.
    pub width_per_layer: usize,
    /// Layers whose queries and keys do not turn.
    pub unturned_layers: Vec<usize>,
    /// The output matrix is the token embedding.
    pub tied_output: bool,
    /// The output has a bias.
    pub output_bias: bool,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Numbers that one token uses.
    pub active_parameters: u64,
    /// Bytes that they take: what generating a token reads of the weights.
    pub active_bytes: u64,
}

/// Layers of experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertStructure {
    /// How many a layer has.
    pub count: usize,
    /// How many a token is sent to.
    pub used: usize,
    /// Feed-forward width of each.
    pub width: usize,
    /// Feed-forward width of those that see every token, together; 0 if there are none.
    pub shared_width: usize,
    /// Their result is multiplied with a sigmoid of its own.
    pub shared_gate: bool,
    /// How scores become weights.
    #[serde(serialize_with = "gating_name")]
    pub gating: Gating,
    /// A bias decides with the scores which experts are chosen.
    pub selection_bias: bool,
    /// The weights of a token are divided by their sum.
    pub normalized: bool,
    /// Then they are multiplied with it.
    pub scale: f32,
    /// Groups of experts, and how many of them are chosen from.
    #[serde(serialize_with = "group_counts")]
    pub groups: Option<TopGroups>,
    /// The layers.
    pub layers: Vec<usize>,
}

/// Layers that go from token to token with a state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecurrentStructure {
    /// What they are.
    pub kind: &'static str,
    /// Tokens that their convolution sees.
    pub kernel: usize,
    /// Heads of values.
    pub heads: usize,
    /// Heads of keys.
    pub key_heads: usize,
    /// Values of a key.
    pub key_dim: usize,
    /// Values of a head.
    pub value_dim: usize,
    /// Bytes of a sequence's state, of all layers.
    pub state_bytes: u64,
    /// Which layers.
    pub layers: Vec<usize>,
}

/// Layers that attend to the latest positions alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// How many positions, a token's own included.
    pub size: usize,
    /// The layers.
    pub layers: Vec<usize>,
    /// Which of [`Hparams::ropes`](super::Hparams::ropes) turns them, if they turn.
    #[serde(skip)]
    pub rope: Option<usize>,
}

impl Gating {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
            Gating::SoftmaxOfChosen => "softmax of the chosen",
        }
    }
}

fn gating_name<S: Serializer>(gating: &Gating, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(gating.name())
}

fn group_counts<S: Serializer>(groups: &Option<TopGroups>, to: S) -> Result<S::Ok, S::Error> {
    groups
        .map(|groups| [groups.count, groups.used])
        .serialize(to)
}

/// What one token uses of a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Numbers.
    pub parameters: u64,
    /// Their bytes: vectors are F32.
    pub bytes: u64,
}

impl Active {
    fn vector(&mut self, n: usize) {
        self.parameters += n as u64;
        self.bytes += 4 * n as u64;
    }
}

impl Model {
    /// What the model is made of.
    pub fn structure(&self) -> Structure {
        let (h, w) = (&self.hparams, &self.weights);
        let spec = h.arch.spec();
        let any = |f: &dyn Fn(&Layer) -> bool| w.layers.iter().any(f);
        let first = &w.layers[0];
        let attending = || w.layers.iter().filter_map(|l| l.attention.as_ref());
        let attends = |f: &dyn Fn(&Attention) -> bool| attending().any(f);
        let heads = h.layers.iter().find(|layer| layer.attends());
        let heads = heads.unwrap_or(&h.layers[0]);
        let q_norm = attending().next().and_then(|a| a.q_norm);
        let norm_width = q_norm.map(|norm| w.vector(norm.weight).len());
        let Factors {
            embedding,
            residual,
            logits,
            logit_cap,
        } = h.factors;
        let active = self.active();
        Structure {
            architecture: h.arch.name(),
            layers: h.n_layer(),
            causal: spec.causal,
            embedded_positions: w.positions.is_some(),
            pooling: h.pooling,
            dense_width: h.dense,
            parallel: spec.block == Block::Parallel,
            norm: match spec.norm {
                Norm::Rms => "RMS",
                Norm::Layer => "layer",
            },
            norm_before: first.attn_norm.is_some(),
            norm_after: first.attn_post_norm.is_some(),
            normed_sums: spec.block == Block::NormedSums,
            gqa_ratio: self.gqa_ratio(),
            qk_norm: attends(&|a| a.q_norm.is_some()),
            qk_norm_of: norm_width.map(|n| match n == heads.head_dim {
                true => "head",
                false => "row",
            }),
            qk_norm_after_rope: q_norm.is_some() && spec.qk_norm == QkNorm::AfterRope,
            qkv_bias: attends(&|a| a.bq.is_some() || a.bk.is_some() || a.bv.is_some()),
            fused_qkv: attends(&|a| a.wk.is_some_and(|wk| w.matrix(wk).row_start > 0)),
            fused_gate: any(&|l| {
                let dense = l.ffn.dense();
                dense.is_some_and(|ffn| ffn.gate.is_some() && w.matrix(ffn.up).row_start > 0)
            }),
            activation: spec.feature.name(),
            gated: any(&|l| l.ffn.dense().is_none_or(|ffn| ffn.gate.is_some())),
            dense_layers: self.layers_where(|l| w.layers[l].ffn.dense().is_some()),
            experts: self.expert_structure(),
            windows: self.windows(),
            score_cap: heads.scores.cap,
            logit_cap,
            queries_scaled_by_position: h.temperature.is_some(),
            sinks: attends(&|a| a.sinks.is_some()),
            gated_attention: attends(&|a| a.gated),
            recurrent: self.recurrent_structure(),
            score_scale: heads.scores.scale,
            embedding_factor: embedding,
            residual_factor: residual,
            logit_factor: logits,
            rope_pairing: self.ropes[0].pairing.name(),
            rope_scaling: h.ropes[0].scaling.value.name(),
            rope_freqs: w.rope_divisors.all.is_some(),
            layers_without_keys: self.layers_where(|l| h.layers[l].kv_layer != l),
            width_per_layer: h.n_embd_per_layer,
            unturned_layers: self
                .layers_where(|l| h.layers[l].attends() && h.layers[l].rope.is_none()),
            tied_output: w.is_tied(),
            output_bias: w.output_bias.is_some(),
            parameters: self.parameters(),
            active_parameters: active.parameters,
            active_bytes: active.bytes,
        }
    }

    fn layers_where(&self, is: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.hparams.n_layer()).filter(|l| is(*l)).collect()
    }

    fn expert_structure(&self) -> Option<ExpertStructure> {
        let rules = self.hparams.experts?;
        let some = self.weights.layers.iter().find_map(|l| l.ffn.experts())?;
        Some(ExpertStructure {
            count: rules.count,
            used: rules.used,
            width: rules.n_ff,
            shared_width: rules.shared_n_ff,
            shared_gate: some.shared_gate.is_some(),
            gating: rules.gating,
            selection_bias: some.selection_bias.is_some(),
            normalized: rules.normalized,
            scale: rules.scale,
            groups: rules.groups,
            layers: self.layers_where(|l| self.weights.layers[l].ffn.experts().is_some()),
        })
    }

    fn recurrent_structure(&self) -> Option<RecurrentStructure> {
        let sizes = self.hparams.recurrent?;
        let some = self
            .weights
            .layers
            .iter()
            .find_map(|l| l.recurrence.as_ref())?;
        Some(RecurrentStructure {
            kind: match some {
                Recurrence::DeltaNet(_) => "gated delta net",
                Recurrence::Mamba2(_) => "Mamba 2",
                Recurrence::ShortConv(_) => "short convolution",
            },
            kernel: sizes.kernel,
            heads: sizes.heads,
            key_heads: sizes.groups,
            key_dim: sizes.state_size,
            value_dim: sizes.value_dim(),
            state_bytes: self.hparams.state_bytes(),
            layers: self.layers_where(|l| self.hparams.layers[l].recurs()),
        })
    }

    fn windows(&self) -> Option<Windows> {
        let window = |l: usize| self.hparams.layers[l].scores.window;
        let layers = self.layers_where(|l| window(l).is_some());
        let first = *layers.first()?;
        Some(Windows {
            size: window(first)?,
            layers,
            rope: self.hparams.layers[first].rope,
        })
    }

    /// Query heads per key head, if it is the same in all layers.
    fn gqa_ratio(&self) -> Option<usize> {
        let attending = self.hparams.layers.iter().filter(|l| l.attends());
        let mut ratios = attending.map(|l| l.n_head / l.n_head_kv);
        let first = ratios.next()?;
        ratios.all(|ratio| ratio == first).then_some(first)
    }

    /// Numbers in all weights; a tied output is counted once.
    fn parameters(&self) -> u64 {
        let matrices: u64 = self
            .weights
            .tensors
            .matrices
            .iter()
            .map(|m| m.rows * m.cols)
            .sum();
        let vectors: u64 = self
            .weights
            .tensors
            .vectors
            .iter()
            .filter(|v| !v.is_made)
            .map(|v| v.data.len() as u64)
            .sum();
        matrices + vectors
    }

    /// What one token uses: its row of the embedding, its experts, and everything that all tokens
    /// share.
    pub fn active(&self) -> Active {
        let mut active = Active::default();
        for node in &self.graph.nodes {
            match node.op {
                Op::MatMul { w, .. } => {
                    let matrix = self.weights.matrix(w);
                    active.parameters += matrix.rows * matrix.cols;
                    active.bytes += matrix.n_bytes() as u64;
                }
                Op::ExpertMatMul {
                    w, ids, experts, ..
                } => {
                    let (matrix, experts) = (self.weights.matrix(w), experts as u64);
                    let used = self.graph.values[ids.index()].width as u64;
                    active.parameters += matrix.rows / experts * used * matrix.cols;
                    active.bytes += matrix.n_bytes() as u64 / experts * used;
                }
                Op::ExpertBias { x, .. } => {
                    active.vector(self.graph.values[x.index()].width);
                }
                Op::Embed { table } | Op::EmbedPositions { table } => {
                    let matrix = self.weights.matrix(table);
                    active.bytes += matrix.row_bytes() as u64;
                    // a tied output has the row among its own
                    if !self.weights.is_tied() {
                        active.parameters += matrix.cols;
                    }
                }
                op => {
                    let vector = op
                        .vector()
                        .map(|id| &self.weights.tensors.vectors[id.0 as usize]);
                    if let Some(vector) = vector.filter(|vector| !vector.is_made) {
                        active.vector(vector.data.len());
                    }
                }
            }
        }
        active
    }
}
