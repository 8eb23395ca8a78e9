//! Differences between architectures, as data that the shared blocks follow.

mod combined;
mod families;
mod rows;

use super::math::Activation;
use super::rope::RopePairs;

/// Returns every architecture that the oracle implements.
pub(super) fn all() -> impl Iterator<Item = &'static Architecture> {
    rows::ARCHITECTURES.iter().chain(combined::COMBINED)
}

/// One architecture.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    pub(super) norm: NormKind,
    /// Causal attention, and the last rows become logits. Otherwise attention is bidirectional, and
    /// the rows are the output.
    pub(super) causal: bool,
    /// Embeddings added to those of tokens, before the norm.
    pub(super) embedded: Option<Embedded>,
    /// Norm before attention; without it attention reads the residual stream itself.
    pub(super) attn_norm: Option<Norm>,
    /// Whether the first layer may lack that norm.
    pub(super) first_unnormed: bool,
    /// Norm after attention, before the residual is added.
    pub(super) attn_post_norm: Option<Norm>,
    /// Norm before the feed-forward block.
    pub(super) ffn_norm: Option<Norm>,
    /// Norm after it, before the residual is added.
    pub(super) ffn_post_norm: Option<Norm>,
    /// Tensors that norm the stream after attention has been added, and after the feed-forward
    /// block has.
    pub(super) sum_norms: Option<[&'static str; 2]>,
    /// A layer is attention, a recurrence or a feed-forward block: the last where
    /// `feed_forward_length` is not 0.
    pub(super) one_of_both: bool,
    /// Attention and feed-forward read the same norm, or norms of the same stream, and both are
    /// added to that.
    pub(super) parallel: bool,
    /// `use_parallel_residual` states whether they do so.
    pub(super) keyed_parallel: bool,
    /// `attention.clamp_kqv` limits queries, keys and values.
    pub(super) clamped: bool,
    /// Scores fall with distance.
    pub(super) alibi: MaxBias,
    /// Token embeddings are normed; whether llama.cpp names the result.
    pub(super) embedding_norm: Option<bool>,
    /// Norms before the last projections of both blocks.
    pub(super) sub_norms: bool,
    /// A shared expert's gate and up projections are one tensor.
    pub(super) fused_shared: bool,
    /// Whether the parts of its queries and keys are named.
    pub(super) names_latent: bool,
    /// Multi-head latent attention (MLA): keys and values come from one latent row that all heads
    /// share.
    pub(super) latent: bool,
    /// Indexers choose the keys that attention sees.
    pub(super) indexer: Option<IndexerFacts>,
    /// Kind of recurrent layers, if any.
    pub(super) recurrent: Option<Recurrent>,
    /// Whether layers have a feed-forward block.
    pub(super) feeds_forward: bool,
    /// Tensor of the norm after the last layer.
    pub(super) output_norm: Option<&'static str>,
    pub(super) rope_pairs: RopePairs,
    /// Every dimension of a head must be rotated.
    pub(super) whole_rotation: bool,
    /// M-RoPE: the distribution of pairs to image axes by `rope.dimension_sections`. Architectures
    /// that have it take images.
    pub(super) sections: Sections,
    /// Image rows may have additional parts for the first layers (deepstack); `n_deepstack_layers`
    /// states for how many.
    pub(super) deepstack: bool,
    pub(super) rotated: Rotated,
    /// YaRN's ramp is from 32 to 1 rotations, whatever the file says.
    pub(super) usual_ramp: bool,
    /// `rope_factors_long` and `_short` apply for any `rope.scaling.type`.
    pub(super) long_factors: bool,
    pub(super) qk_norm: QkNorm,
    /// Layers with a sliding window, if any.
    pub(super) windows: Option<Windows>,
    pub(super) score_scale: ScoreScale,
    /// Values are normed too, without weights; without `attn_v` they are the product that keys come
    /// from.
    pub(super) normed_values: bool,
    /// Depending on keys, the last layers have no keys and values of their own, and each token has
    /// an embedding for each layer.
    pub(super) shared_layers: bool,
    /// Cap on scores: the default of `attn_logit_softcapping`.
    pub(super) score_cap: Option<f64>,
    /// Default of `final_logit_softcapping`.
    pub(super) logit_cap: Option<f64>,
    /// Attention sinks: a score for each head that takes part in the softmax but has no value.
    pub(super) sinks: Sinks,
    /// Gate of attention's result, by a matrix of its own.
    pub(super) gate: Option<ResultGate>,
    /// `attention.value_scale` multiplies attention's result.
    pub(super) value_scale: bool,
    /// Layers without a window rotate only half of the dimensions.
    pub(super) half_rotation: bool,
    /// `swiglu_clamp_exp` and `swiglu_clamp_shexp` limit gated products.
    pub(super) limited: bool,
    /// Scale of unrotated queries by position: strength and length, counted from position 1.
    pub(super) unrotated_temperature: Option<(f64, usize)>,
    pub(super) up: Up,
    pub(super) activation: Activation,
    pub(super) experts: Option<Experts>,
    /// `layer_output_scale` multiplies a layer's output, where the file has it.
    pub(super) output_scale: bool,
    pub(super) scales: Scales,
    pub(super) names: Names,
}

/// llama.cpp's names of values that only some architectures name, or name differently.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// Embeddings as stored in the file.
    pub(super) embedding: &'static str,
    /// Attention after the output projection.
    pub(super) attn_out: Option<&'static str>,
    /// Stream between attention and feed-forward.
    pub(super) residual: Option<&'static str>,
    /// The feed-forward block's result, if it is named.
    pub(super) ffn_out: Option<&'static str>,
    /// Embeddings after their scale, if both are named.
    pub(super) scaled_embedding: Option<&'static str>,
    /// Gate of attention's result, for architectures whose query projection yields one.
    pub(super) query_gate: Option<&'static str>,
    /// Scaled queries, for architectures that scale queries before attention.
    pub(super) scaled_query: Option<&'static str>,
    /// Queries and keys after their norm.
    pub(super) qk_normed: [&'static str; 2],
    /// Queries and keys after RoPE, if they are named.
    pub(super) rotated: [Option<&'static str>; 2],
    /// Norm after the last layer.
    pub(super) output_norm: &'static str,
    /// Logits before their bias.
    pub(super) unbiased_logits: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// RMS norm: divides by the root mean square.
    Rms,
    /// The same, with a bias.
    BiasedRms,
    /// LayerNorm without weights.
    BareLayer,
    /// LayerNorm: subtracts the mean, divides by the standard deviation, with a bias where the file
    /// has one.
    Layer,
}

impl NormKind {
    /// Returns the key of epsilon, which is added to the mean square or the variance.
    pub(super) fn epsilon_key(self) -> &'static str {
        match self {
            Self::Rms | Self::BiasedRms => "attention.layer_norm_rms_epsilon",
            Self::Layer | Self::BareLayer => "attention.layer_norm_epsilon",
        }
    }
}

/// The largest bias of scores that fall with distance (ALiBi).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MaxBias {
    None,
    Constant(f64),
    /// `attention.max_alibi_bias`; none without it, or if it is 0.
    Keyed,
}

/// Facts of indexers that are in no key.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexerFacts {
    pub(super) pairs: RopePairs,
    /// Epsilon of the norm of keys.
    pub(super) eps: f64,
    /// `attention.indexer.types` is read: layers may use an earlier one's choice.
    pub(super) shared: bool,
}

/// Embeddings added to each token's before the norm: that of the first token type, and of its
/// position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Embedded {
    pub(super) types: bool,
    pub(super) positions: bool,
}

/// Layers with attention sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sinks {
    None,
    All,
    /// Those whose tensors the file has.
    Present,
}

/// Gate of attention's result: the sigmoid of a product with the layer's normed input.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultGate {
    /// One gate for each head, in files that have it; otherwise one for each value, which is
    /// required.
    pub(super) by_head: bool,
    /// The result before it, the gate, its sigmoid, and the result after it.
    pub(super) taps: [&'static str; 4],
}

/// A norm of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub(super) tensor: &'static str,
    /// Name of the result; empty if llama.cpp does not name it.
    pub(super) tap: &'static str,
    /// Whether llama.cpp's name has the layer's number.
    pub(super) numbered: bool,
    /// Whether the tensor's name lacks `.weight`.
    pub(super) bare: bool,
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorm {
    None,
    /// Each head, with shared weights.
    Head,
    /// As `Head`, if the file has the weights.
    HeadIfPresent,
    /// As `Head`, after RoPE.
    HeadAfterRotation,
    /// Each head with weights of its own.
    EachHead,
    /// Each head with weights of its own, in models of this many layers or more.
    EachHeadFrom(usize),
    /// All heads together.
    Whole,
    /// Each rotated head, after RoPE and without weights, unless there are this many experts.
    UnweightedUnlessExperts(usize),
}

/// Kinds of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurrent {
    /// Gated delta net, by default in three of four layers. If `grouped`, value heads that share a
    /// key head are consecutive; otherwise they are as far apart as there are key heads.
    DeltaNet { grouped: bool },
    /// Gated delta net with a decay for each dimension of keys, in layers without KV heads.
    KimiDelta,
    /// Short convolution between gates, in layers without KV heads.
    ShortConv,
    /// Mamba 1, in layers without KV heads; whether its inputs have norms with weights, instead of
    /// norms without any if `ssm.dt_b_c_rms` is true.
    Mamba1 { normed: bool },
    /// PLaMo 2's Mamba, in layers without KV heads.
    Plamo2,
    /// RWKV 7, in all layers.
    Rwkv7,
    /// Mamba 2, in layers without KV heads.
    Mamba2,
    /// Mamba 2 parallel to attention, in every layer.
    Mamba2Beside,
}

/// M-RoPE axis of each pair: time, height, width, or a fourth number that is 0 in texts and images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sections {
    /// One position for all pairs.
    None,
    /// Pairs go to the axes in turn, as long as these have some left; the rest belongs to the
    /// fourth.
    Interleaved,
    /// The axes' pairs are consecutive.
    Blocks,
}

/// Factor on scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScoreScale {
    /// `attention.scale`, or else `1 / sqrt(head_dim)`.
    Width,
    /// In models of this many layers, 1 over the root of the head width without
    /// `attention.key_length`: llama.cpp recognizes the largest Gemmas by their layers.
    WideAt(usize),
    One,
}

/// Layers with RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rotated {
    All,
    /// All but every fourth.
    ThreeOfFour,
    /// Only those with windows, if there are any.
    Windowed,
    /// Those that `attention.rope_pattern` marks, or all.
    Flagged,
    /// All but the first of every four, if there are windows and not just four layers.
    AfterFirstOfFour,
    /// None if `rope.scaling.finetuned` is false.
    IfFinetuned,
    Never,
}

/// Layers with a sliding window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub(super) length: WindowLength,
    /// Default period: the last layer of each period has no window.
    pub(super) period: usize,
    /// Of each period, the first layer has no window instead.
    pub(super) dense_first: bool,
    /// Number of layers of the only models with windows.
    pub(super) only_of: Option<usize>,
    pub(super) rope: WindowRope,
    /// Heads of windowed layers have their own widths, and only they ignore `rope_freqs`.
    pub(super) own_heads: bool,
}

/// Source of the window length in keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum WindowLength {
    /// A required key.
    Required,
    /// An optional key; without it, or if it is 0, there are no windows.
    Optional,
    /// A key with this default.
    Default(usize),
    /// This length, if the key is there and not 0.
    IfKeyed(usize),
    /// Always this length, from each multiple of it on.
    Chunks(usize),
}

/// RoPE of windowed layers.
#[derive(Debug, Clone, Copy)]
pub(super) enum WindowRope {
    /// The same as in other layers.
    Same,
    /// The same, except for `rope.freq_base_swa` if set.
    Based,
    /// `rope.freq_base_swa` or this default base, without scaling.
    Local(f64),
    /// The same, also without `rope_freqs`.
    Undivided(f64),
    /// The base of other layers, without scaling and with magnitude 1.
    Plain,
}

/// First projections of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Up {
    /// `ffn_gate` and `ffn_up`.
    Gated,
    /// `ffn_up`, with the gate's rows and then those of up.
    Fused,
    /// `ffn_up`, ungated.
    Plain,
}

/// Factors that LLaMA does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    None,
    /// Embeddings times the root of their width.
    Embedding,
    /// Logits times `logit_scale`.
    Logits,
    /// Embeddings and both branches times keys; logits divided by `logit_scale`, which may be
    /// required.
    Granite {
        divisor_required: bool,
    },
    /// As Granite, with defaults for all three.
    MiniCpm,
}

/// Mixtures of experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts {
    /// Whether every file has them.
    pub(super) required: bool,
    pub(super) gating: Gating,
    /// `expert_gating_func` is read.
    pub(super) keyed_gating: bool,
    /// `expert_weights_scale` is read, a factor on the weights.
    pub(super) keyed_scale: bool,
    pub(super) weights_norm: WeightsNorm,
    /// An expert is as wide as a dense block; otherwise `expert_feed_forward_length` states the
    /// width.
    pub(super) dense_width: bool,
    /// `exp_probs_b` is required.
    pub(super) selection_bias: bool,
    /// Names of the shared expert's gate, of its sigmoid and of the gated result, where the expert
    /// has a gate.
    pub(super) shared_gate: Option<[&'static str; 3]>,
    /// llama.cpp's name for the shared expert's result.
    pub(super) shared_tap: &'static str,
    pub(super) shared_width: SharedWidth,
    /// `moe_latent_size` is read: experts read and yield as many values, by projections before and
    /// after them.
    pub(super) latent: bool,
    /// They run beside a dense block, and the router has a norm of its own.
    pub(super) beside_dense: bool,
    /// Layers have them if the file has their router.
    pub(super) where_routed: bool,
    /// Logits choose them, and weights multiply their inputs.
    pub(super) weighs_inputs: bool,
    /// The router reads the layer's input.
    pub(super) early: bool,
    /// llama.cpp's name for their sum, and for that with the shared expert's result.
    pub(super) sums: [&'static str; 2],
    /// Whether the norm before them has a name.
    pub(super) named_norm: bool,
}

/// Width of the shared experts without `expert_shared_feed_forward_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedWidth {
    /// `expert_shared_count` experts; none without this key.
    Counted,
    /// That of a dense block.
    Dense,
    /// That of one expert.
    Expert,
    /// That of one expert; with or without the key, times `expert_shared_count`.
    TimesCount,
}

/// Function applied to the router's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gating {
    Softmax,
    Sigmoid,
    /// Softmax over the chosen experts only.
    SoftmaxOfChosen,
}

/// Whether the weights of the chosen experts are normalized to sum 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightsNorm {
    Always,
    Never,
    /// As `expert_weights_norm` says.
    Keyed,
}
