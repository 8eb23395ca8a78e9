//! A model's structure as a few facts, and the weights one token uses.

use octavo_kernels::TopGroups;
use serde::{Serialize, Serializer};

use super::Model;
use super::arch::QkNorm;
use super::blocks::Block;
use super::graph::Norm;
use super::hparams::{Factors, Gating, Pooling};
use super::weights::{Attention, Layer, Recurrence};
use crate::graph::Op;

/// A model's structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Structure {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Layers.
    pub layers: usize,
    /// Attention is causal. Otherwise it is bidirectional, and the model returns a row for each
    /// token instead of logits.
    pub causal: bool,
    /// Positions have learned embeddings.
    pub embedded_positions: bool,
    /// Pooling of a text's rows into one vector, if the file states it.
    pub pooling: Option<Pooling>,
    /// Width between the two products after the last norm, if there are any.
    pub dense_width: Option<usize>,
    /// Attention and the feed-forward block read the same input, in parallel.
    pub parallel: bool,
    /// `RMS` or `layer`.
    pub norm: &'static str,
    /// Attention's input is normed.
    pub norm_before: bool,
    /// Attention's result is normed, or, with `normed_sums`, the sum it is added to.
    pub norm_after: bool,
    /// Norms apply to the residual sums instead of the results.
    pub normed_sums: bool,
    /// Query heads per KV head; none where layers differ.
    pub gqa_ratio: Option<usize>,
    /// Queries and keys are normed.
    pub qk_norm: bool,
    /// Unit of these norms: `head`, or `row` for all heads together.
    pub qk_norm_of: Option<&'static str>,
    /// These norms come after RoPE.
    pub qk_norm_after_rope: bool,
    /// Q, K or V have biases.
    pub qkv_bias: bool,
    /// Q, K and V are one tensor.
    pub fused_qkv: bool,
    /// Gate and up projections are one tensor.
    pub fused_gate: bool,
    /// Activation of the gate or, without a gate, of the product.
    pub activation: &'static str,
    /// Feed-forward blocks have a gate.
    pub gated: bool,
    /// Layers with a single feed-forward block for all tokens.
    pub dense_layers: Vec<usize>,
    /// Experts of the other layers.
    pub experts: Option<ExpertStructure>,
    /// Layers with sliding-window attention.
    pub windows: Option<Windows>,
    /// Soft cap on attention's scores.
    pub score_cap: Option<f32>,
    /// Soft cap on logits.
    pub logit_cap: Option<f32>,
    /// Queries are scaled by a factor that grows with their position.
    pub queries_scaled_by_position: bool,
    /// Heads have attention sinks.
    pub sinks: bool,
    /// Attention's result is multiplied with a gate that the query projection yields.
    pub gated_attention: bool,
    /// Recurrent layers.
    pub recurrent: Option<RecurrentStructure>,
    /// Scale of attention scores in the first layer.
    pub score_scale: f32,
    /// Factor on token embeddings.
    pub embedding_factor: f32,
    /// Factor on the results of blocks.
    pub residual_factor: f32,
    /// Factor on the results of attention alone.
    pub attention_factor: f32,
    /// Factor on logits.
    pub logit_factor: f32,
    /// RoPE pairing: `norm` or `neox`.
    pub rope_pairing: &'static str,
    /// `none`, `linear`, `longrope` or `yarn`.
    pub rope_scaling: &'static str,
    /// The file carries divisors of the rotary angles.
    pub rope_freqs: bool,
    /// Layers that read another layer's keys and values.
    pub layers_without_keys: Vec<usize>,
    /// Width of the per-layer input of each token; 0 if there is none.
    pub width_per_layer: usize,
    /// Layers without RoPE.
    pub unturned_layers: Vec<usize>,
    /// The output matrix is the token embedding.
    pub tied_output: bool,
    /// The output has a bias.
    pub output_bias: bool,
    /// Parameters in all weights.
    pub parameters: u64,
    /// Parameters that one token uses.
    pub active_parameters: u64,
    /// Bytes of the active parameters: weights read per token during decode.
    pub active_bytes: u64,
}

/// Layers with experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertStructure {
    /// Experts per layer.
    pub count: usize,
    /// Experts used per token.
    pub used: usize,
    /// Feed-forward width of each expert.
    pub width: usize,
    /// Total feed-forward width of the shared experts; 0 if there are none.
    pub shared_width: usize,
    /// The shared experts' result is multiplied with the sigmoid of a score.
    pub shared_gate: bool,
    /// Function that turns router scores into weights.
    #[serde(serialize_with = "gating_name")]
    pub gating: Gating,
    /// A bias is added to the scores when experts are chosen.
    pub selection_bias: bool,
    /// The weights of a token are normalized to sum 1.
    pub normalized: bool,
    /// Factor on the weights, after that.
    pub scale: f32,
    /// Number of expert groups, and of groups chosen per token.
    #[serde(serialize_with = "group_counts")]
    pub groups: Option<TopGroups>,
    /// Indices of these layers.
    pub layers: Vec<usize>,
}

/// Recurrent layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecurrentStructure {
    /// Name of their kind.
    pub kind: &'static str,
    /// Kernel of their convolution, in tokens.
    pub kernel: usize,
    /// Number of value heads.
    pub heads: usize,
    /// Number of key heads.
    pub key_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Bytes of a sequence's state, over all layers.
    pub state_bytes: u64,
    /// Indices of these layers.
    pub layers: Vec<usize>,
}

/// Layers with sliding-window attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// Window in positions, a token's own included.
    pub size: usize,
    /// Indices of these layers.
    pub layers: Vec<usize>,
    /// Index in [`Hparams::ropes`](super::Hparams::ropes) of their rotary embedding, if they have
    /// one.
    #[serde(skip)]
    pub rope: Option<usize>,
}

impl Gating {
    /// Returns a description in words.
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

/// The weights one token uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of these; vectors are F32.
    pub bytes: u64,
}

impl Active {
    fn vector(&mut self, n: usize) {
        self.parameters += n as u64;
        self.bytes += 4 * n as u64;
    }
}

impl Model {
    /// Describes the model's structure.
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
        let norm_width = q_norm.map(|norm| w.vector(norm.ones.unwrap_or(norm.weight)).len());
        let Factors {
            embedding,
            residual,
            attention,
            logits,
            logit_cap,
        } = h.factors;
        let active = self.active();
        Structure {
            architecture: h.arch.name(),
            layers: h.n_layer(),
            causal: h.is_causal(),
            embedded_positions: w.positions.is_some(),
            pooling: h.pooling,
            dense_width: h.dense,
            parallel: h.block == Block::Parallel,
            norm: match spec.norm {
                Norm::Rms | Norm::BiasedRms => "RMS",
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
            activation: h.feature().name(),
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
            attention_factor: attention,
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
                Recurrence::KimiDelta(_) => "gated delta net with decay by key",
                Recurrence::Mamba1(_) => "Mamba",
                Recurrence::Mamba2(_) => "Mamba 2",
                Recurrence::Plamo2(_) => "PLaMo 2's Mamba",
                Recurrence::TimeMix(_) => "RWKV 7",
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

    /// Returns the query heads per KV head, if all layers have the same ratio.
    fn gqa_ratio(&self) -> Option<usize> {
        let attending = self.hparams.layers.iter().filter(|l| l.attends());
        let mut ratios = attending.map(|l| l.n_head / l.n_head_kv);
        let first = ratios.next()?;
        ratios.all(|ratio| ratio == first).then_some(first)
    }

    /// Counts the parameters in all weights; a tied output counts once.
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

    /// Counts the weights one token uses: its row of the embedding, its experts, and everything
    /// that all tokens share.
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
                Op::Embed { table, .. } | Op::EmbedPositions { table } => {
                    let matrix = self.weights.matrix(table);
                    active.bytes += matrix.row_bytes() as u64;
                    // a tied output is counted as a product, with the embedding's row in it
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
