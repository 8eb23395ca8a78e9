//! What tells one architecture from another: facts that the shared blocks follow.

mod families;
mod rows;

pub(super) use rows::ARCHITECTURES;

use super::math::Activation;
use super::rope::RopePairs;

/// One architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    pub(super) norm: NormKind,
    /// Tokens see those before them, and the last rows become logits. Otherwise they see all of
    /// their text, and the rows are what the model gives.
    pub(super) causal: bool,
    /// What is added to the embeddings of tokens before all is normed.
    pub(super) embedded: Option<Embedded>,
    /// Before attention; without it attention reads the residual stream itself.
    pub(super) attn_norm: Option<Norm>,
    /// After attention, before the residual is added.
    pub(super) attn_post_norm: Option<Norm>,
    /// Before the feed-forward block.
    pub(super) ffn_norm: Option<Norm>,
    /// After it, before the residual is added.
    pub(super) ffn_post_norm: Option<Norm>,
    /// Tensors that norm the stream after attention was added to it, and after the feed-forward
    /// block was.
    pub(super) sum_norms: Option<[&'static str; 2]>,
    /// Attention and feed-forward read the same norm, and the stream gains both.
    pub(super) parallel: bool,
    /// Keys and values are made from one narrow row that all heads share.
    pub(super) latent: bool,
    /// What some layers have that keep a state in place of keys and values.
    pub(super) recurrent: Option<Recurrent>,
    /// Layers have a feed-forward block.
    pub(super) feeds_forward: bool,
    /// The norm behind the last layer.
    pub(super) output_norm: Option<&'static str>,
    pub(super) rope_pairs: RopePairs,
    /// Every dimension of a head has to turn.
    pub(super) whole_rotation: bool,
    /// How `rope.dimension_sections` shares out the pairs among the axes of pictures. Architectures
    /// that do take images.
    pub(super) sections: Sections,
    /// Images may have more rows, for the first layers' ends: `n_deepstack_layers` says how many.
    pub(super) deepstack: bool,
    pub(super) rotated: Rotated,
    /// `rope_factors_long` and `_short` apply whatever `rope.scaling.type` says.
    pub(super) long_factors: bool,
    pub(super) qk_norm: QkNorm,
    /// In which layers attention sees the latest keys only, if in any.
    pub(super) windows: Option<Windows>,
    pub(super) score_scale: ScoreScale,
    /// Values are normed too, by no weights; without `attn_v` they are what keys are made from.
    pub(super) normed_values: bool,
    /// The last layers may have no keys and values of their own, and each token may have an
    /// embedding for each layer: keys say so.
    pub(super) shared_layers: bool,
    /// Scores are capped: the default of `attn_logit_softcapping`.
    pub(super) score_cap: Option<f64>,
    /// The default of `final_logit_softcapping`.
    pub(super) logit_cap: Option<f64>,
    /// A score for each head that takes part in the softmax but has no value.
    pub(super) sinks: bool,
    pub(super) up: Up,
    pub(super) activation: Activation,
    pub(super) experts: Option<Experts>,
    /// `layer_output_scale` multiplies what leaves a layer, where the file has it.
    pub(super) output_scale: bool,
    pub(super) scales: Scales,
    pub(super) names: Names,
}

/// How llama.cpp names values that not all architectures show, or not by one name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The embeddings as they are in the file.
    pub(super) embedding: &'static str,
    /// The projected attention.
    pub(super) attn_out: Option<&'static str>,
    /// The stream between attention and feed-forward.
    pub(super) residual: Option<&'static str>,
    /// The feed-forward block's result has a name.
    pub(super) ffn_out: bool,
    /// The embeddings after their scale, if they show before it.
    pub(super) scaled_embedding: Option<&'static str>,
    /// A gate for what attention makes comes with the queries, and has this name.
    pub(super) query_gate: Option<&'static str>,
    /// Queries are scaled before attention, and then named so.
    pub(super) scaled_query: Option<&'static str>,
    /// Queries and keys after their norm.
    pub(super) qk_normed: [&'static str; 2],
    /// And after their rotation.
    pub(super) rotated: Option<[&'static str; 2]>,
    /// Logits before their bias.
    pub(super) unbiased_logits: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// Divided by the root mean square.
    Rms,
    /// Mean taken off, divided by the standard deviation, with a bias where the file has one.
    Layer,
}

impl NormKind {
    /// The key of what is added to the mean square or the variance.
    pub(super) fn epsilon_key(self) -> &'static str {
        match self {
            Self::Rms => "attention.layer_norm_rms_epsilon",
            Self::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// The first type of tokens is added to each token's embedding, and what its position has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Embedded {
    pub(super) positions: bool,
}

/// A norm of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub(super) tensor: &'static str,
    pub(super) tap: &'static str,
    /// llama.cpp's name says which layer.
    pub(super) numbered: bool,
    /// The tensor's name does not end in `.weight`.
    pub(super) bare: bool,
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorm {
    None,
    /// Each head, by the same weights.
    Head,
    /// As `Head`, in files that have the weights.
    HeadIfPresent,
    /// As `Head`, after the rotation.
    HeadAfterRotation,
    /// Each head by weights of its own, in models of so many layers or more.
    EachHeadFrom(usize),
    /// All heads together.
    Whole,
}

/// Layers that keep a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurrent {
    /// A gated delta net, in three of four layers if no key says otherwise. Heads of values that
    /// share one of keys follow each other, or lie as many apart as there are heads of keys.
    DeltaNet { grouped: bool },
    /// A short convolution between gates, in layers without heads for keys.
    ShortConv,
    /// Mamba 2, in layers without heads for keys.
    Mamba2,
    /// Mamba 2 beside attention, in every layer.
    Mamba2Beside,
}

/// Which pairs turn by which axis of a picture: by time, by height, by width, or by a fourth
/// number that is 0 in texts and pictures alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sections {
    /// One position for all.
    None,
    /// The axes take pairs in turn, as long as they have some left; the rest is the fourth's.
    Interleaved,
    /// The axes' pairs follow each other.
    Blocks,
}

/// What scores are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScoreScale {
    /// The root of a head's width divides them, if `attention.scale` says nothing.
    Width,
    /// In models of so many layers it is the width that a head would have without
    /// `attention.key_length`: llama.cpp knows the largest Gemmas by it.
    WideAt(usize),
    One,
}

/// The layers in which queries and keys are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotated {
    All,
    /// Not in each fourth.
    ThreeOfFour,
    /// Where some layers have windows, only those.
    Windowed,
    /// In none if `rope.scaling.finetuned` is false.
    IfFinetuned,
    Never,
}

/// Layers with a sliding window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub(super) length: WindowLength,
    /// Of each so many layers the last has no window, if no key says otherwise.
    pub(super) period: usize,
    /// Only models of so many layers have windows.
    pub(super) only_of: Option<usize>,
    pub(super) rope: WindowRope,
    /// Heads of windowed layers have widths of their own, and they alone ignore `rope_freqs`.
    pub(super) own_heads: bool,
}

/// Where the number of keys in a window comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum WindowLength {
    /// From the key.
    Required,
    /// From the key; without it, or if it is 0, there are no windows.
    Optional,
    /// From the key, or else this.
    Default(usize),
}

/// The rotation in windowed layers.
#[derive(Debug, Clone, Copy)]
pub(super) enum WindowRope {
    /// That of the others.
    Same,
    /// The same, but for `rope.freq_base_swa` if it is there.
    Based,
    /// `rope.freq_base_swa` or else this base, not scaled.
    Local(f64),
    /// The base of the others, not scaled and of magnitude 1.
    Plain,
}

/// What the feed-forward block multiplies its input by first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Up {
    /// `ffn_gate` and `ffn_up`.
    Gated,
    /// `ffn_up`, whose rows are those of a gate and then those that it gates.
    Fused,
    /// `ffn_up`, not gated.
    Plain,
}

/// Factors that the formulas of llama do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    None,
    /// Embeddings by the root of their width.
    Embedding,
    /// Logits by `logit_scale`.
    Logits,
    /// Embeddings and both branches by keys; logits divided by `logit_scale`, which may have to be
    /// there.
    Granite {
        divisor_required: bool,
    },
    /// As Granite, with defaults for all three.
    MiniCpm,
}

/// Mixtures of experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts {
    /// Every file has them.
    pub(super) required: bool,
    pub(super) gating: Gating,
    /// `expert_gating_func` may say otherwise.
    pub(super) keyed_gating: bool,
    /// `expert_weights_scale` may say what weights are multiplied by.
    pub(super) keyed_scale: bool,
    pub(super) weights_norm: WeightsNorm,
    /// An expert is as wide as a dense block; otherwise `expert_feed_forward_length` says how wide.
    pub(super) dense_width: bool,
    /// `exp_probs_b` has to be there.
    pub(super) selection_bias: bool,
    /// There is a shared expert whose result a gate scales: names of the gate, of its sigmoid and
    /// of the scaled result.
    pub(super) shared_gate: Option<[&'static str; 3]>,
    /// llama.cpp's name for the shared expert's result.
    pub(super) shared_tap: &'static str,
    /// They stand beside a dense block, and the router reads a norm of its own.
    pub(super) beside_dense: bool,
}

/// What becomes of the router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gating {
    Softmax,
    Sigmoid,
    /// Softmax over the chosen ones only.
    SoftmaxOfChosen,
}

/// Whether the weights of the chosen experts are made to add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightsNorm {
    Always,
    Never,
    /// If `expert_weights_norm` says so.
    Keyed,
}
