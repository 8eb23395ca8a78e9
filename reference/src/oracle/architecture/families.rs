//! Architectures from which others derive.

use super::super::math::Activation;
use super::super::rope::RopePairs;
use super::{
    Architecture, Embedded, Experts, Gating, MaxBias, Names, Norm, NormKind, QkNorm, Recurrent,
    Rotated, Scales, ScoreScale, Sections, SharedWidth, Sinks, Up, WeightsNorm, WindowLength,
    WindowRope, Windows,
};

pub(super) const fn norm(tensor: &'static str, tap: &'static str) -> Option<Norm> {
    Some(Norm {
        tensor,
        tap,
        numbered: true,
        bare: false,
    })
}

pub(super) const fn unnumbered(tensor: &'static str, tap: &'static str) -> Option<Norm> {
    Some(Norm {
        tensor,
        tap,
        numbered: false,
        bare: false,
    })
}

pub(super) const fn bare(tensor: &'static str, tap: &'static str) -> Option<Norm> {
    Some(Norm {
        tensor,
        tap,
        numbered: true,
        bare: true,
    })
}

/// The base of all others.
pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    norm: NormKind::Rms,
    causal: true,
    embedded: None,
    attn_norm: norm("attn_norm", "attn_norm"),
    first_unnormed: false,
    attn_post_norm: None,
    ffn_norm: norm("ffn_norm", "ffn_norm"),
    ffn_post_norm: None,
    sum_norms: None,
    one_of_both: false,
    parallel: false,
    keyed_parallel: false,
    clamped: false,
    alibi: MaxBias::None,
    embedding_norm: None,
    sub_norms: false,
    fused_shared: false,
    latent: false,
    indexer: None,
    names_latent: true,
    recurrent: None,
    feeds_forward: true,
    output_norm: Some("output_norm"),
    rope_pairs: RopePairs::Adjacent,
    whole_rotation: false,
    sections: Sections::None,
    deepstack: false,
    rotated: Rotated::All,
    usual_ramp: false,
    long_factors: false,
    qk_norm: QkNorm::None,
    windows: None,
    score_scale: ScoreScale::Width,
    normed_values: false,
    shared_layers: false,
    score_cap: None,
    logit_cap: None,
    sinks: Sinks::None,
    gate: None,
    value_scale: false,
    half_rotation: false,
    limited: false,
    unrotated_temperature: None,
    up: Up::Gated,
    activation: Activation::Silu,
    experts: None,
    output_scale: false,
    scales: Scales::None,
    names: Names {
        embedding: "inp_embd",
        attn_out: Some("attn_out"),
        residual: Some("ffn_inp"),
        ffn_out: Some("ffn_out"),
        scaled_embedding: None,
        query_gate: None,
        scaled_query: None,
        qk_normed: ["Qcur_normed", "Kcur_normed"],
        rotated: [Some("Qcur"), Some("Kcur")],
        output_norm: "result_norm",
        unbiased_logits: None,
    },
};

/// Softmax over all experts, each as wide as a dense block.
pub(super) const MIXTRAL: Experts = Experts {
    required: false,
    gating: Gating::Softmax,
    keyed_gating: false,
    keyed_scale: false,
    weights_norm: WeightsNorm::Always,
    dense_width: true,
    selection_bias: false,
    shared_gate: None,
    shared_tap: "ffn_shexp",
    shared_width: SharedWidth::Counted,
    latent: false,
    beside_dense: false,
    where_routed: false,
    weighs_inputs: false,
    early: false,
    sums: ["ffn_moe_out", "ffn_out"],
    named_norm: true,
};

/// The same with a separate expert width.
pub(super) const NARROW: Experts = Experts {
    required: true,
    dense_width: false,
    ..MIXTRAL
};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope_pairs: RopePairs::Halves,
    names: UNNAMED_ATTN_OUT,
    ..LLAMA
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    qk_norm: QkNorm::Head,
    ..QWEN2
};

/// Qwen 3 with images.
pub(super) const QWEN3_VL: Architecture = Architecture {
    name: "qwen3vl",
    whole_rotation: true,
    sections: Sections::Interleaved,
    deepstack: true,
    ..QWEN3
};

/// LayerNorm, biases everywhere, no gates.
pub(super) const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    norm: NormKind::Layer,
    up: Up::Plain,
    activation: Activation::Gelu,
    ..QWEN2
};

pub(super) const GEMMA: Architecture = Architecture {
    name: "gemma",
    activation: Activation::Gelu,
    scales: Scales::Embedding,
    names: Names {
        residual: Some("sa_out"),
        scaled_embedding: Some("inp_scaled"),
        scaled_query: Some("Qcur_scaled"),
        ..UNNAMED_ATTN_OUT
    },
    ..QWEN2
};

/// Norms before and after both blocks; windows in every second layer.
pub(super) const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    attn_post_norm: norm("post_attention_norm", "attn_post_norm"),
    ffn_post_norm: unnumbered("post_ffw_norm", "ffn_post_norm"),
    windows: Some(Windows {
        length: WindowLength::Default(4096),
        period: 2,
        dense_first: false,
        only_of: None,
        rope: WindowRope::Based,
        own_heads: false,
    }),
    score_scale: ScoreScale::WideAt(46),
    score_cap: Some(50.0),
    logit_cap: Some(30.0),
    names: Names {
        scaled_query: None,
        ..GEMMA.names
    },
    ..GEMMA
};

pub(super) const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    ffn_post_norm: norm("post_ffw_norm", "ffn_post_norm"),
    qk_norm: QkNorm::Head,
    windows: Some(Windows {
        length: WindowLength::Optional,
        period: 6,
        dense_first: false,
        only_of: None,
        rope: WindowRope::Local(10_000.0),
        own_heads: false,
    }),
    score_scale: ScoreScale::WideAt(62),
    score_cap: None,
    logit_cap: None,
    ..GEMMA2
};

/// Norms after both blocks only.
pub(super) const OLMO2: Architecture = Architecture {
    name: "olmo2",
    attn_norm: None,
    ffn_norm: None,
    attn_post_norm: norm("post_attention_norm", "attn_post_norm"),
    ffn_post_norm: unnumbered("post_ffw_norm", "ffn_post_norm"),
    qk_norm: QkNorm::Whole,
    windows: Some(Windows {
        length: WindowLength::Optional,
        period: 4,
        dense_first: false,
        only_of: None,
        rope: WindowRope::Plain,
        own_heads: false,
    }),
    ..QWEN2
};

/// Norms of the residual sums, biases everywhere; rows instead of logits.
pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    causal: false,
    embedded: Some(Embedded {
        types: true,
        positions: true,
    }),
    attn_norm: None,
    ffn_norm: None,
    sum_norms: Some(["attn_output_norm", "layer_output_norm"]),
    output_norm: None,
    rotated: Rotated::Never,
    names: Names {
        attn_out: Some("kqv_out"),
        ..LLAMA.names
    },
    ..STARCODER2
};

/// Llama's block with bidirectional attention.
pub(super) const EUROBERT: Architecture = Architecture {
    name: "eurobert",
    causal: false,
    rope_pairs: RopePairs::Halves,
    names: Names {
        attn_out: Some("kqv_out"),
        output_norm: "result_embd",
        ..LLAMA.names
    },
    ..LLAMA
};

pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    rotated: Rotated::IfFinetuned,
    scales: Scales::Granite {
        divisor_required: true,
    },
    experts: Some(MIXTRAL),
    ..LLAMA
};

pub(super) const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    norm: NormKind::Layer,
    ffn_norm: None,
    parallel: true,
    qk_norm: QkNorm::EachHeadFrom(64),
    scales: Scales::Logits,
    names: Names {
        qk_normed: ["Qcur", "Kcur"],
        ..PARALLEL
    },
    ..LLAMA
};

pub(super) const FALCON: Architecture = Architecture {
    name: "falcon",
    ffn_norm: None,
    parallel: true,
    whole_rotation: true,
    names: PARALLEL,
    ..STARCODER2
};

/// Gated delta nets, and gated attention.
pub(super) const QWEN35: Architecture = Architecture {
    name: "qwen35",
    ffn_norm: norm("post_attention_norm", "attn_post_norm"),
    recurrent: Some(Recurrent::DeltaNet { grouped: false }),
    sections: Sections::Interleaved,
    names: Names {
        embedding: "model.input_embed",
        attn_out: Some("attn_output"),
        residual: Some("attn_residual"),
        query_gate: Some("gate_reshaped"),
        ..UNNAMED_ATTN_OUT
    },
    ..QWEN3
};

pub(super) const QWEN35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    experts: Some(Experts {
        shared_width: SharedWidth::Dense,
        shared_gate: Some([
            "shared_expert_gate",
            "shared_expert_gate_sigmoid",
            "ffn_shexp_gated",
        ]),
        ..NARROW
    }),
    ..QWEN35
};

/// Short convolutions, and attention in some layers.
pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    attn_norm: norm("attn_norm", "model.layers.{}.operator_norm"),
    ffn_norm: norm("ffn_norm", "model.layers.{}.ffn_out"),
    recurrent: Some(Recurrent::ShortConv),
    output_norm: Some("token_embd_norm"),
    windows: Some(Windows {
        length: WindowLength::Optional,
        period: 0,
        dense_first: false,
        only_of: None,
        rope: WindowRope::Same,
        own_heads: false,
    }),
    names: Names {
        embedding: "model.embed_tokens",
        attn_out: Some("model.layers.{}.self_attn.out_proj"),
        residual: None,
        ffn_out: None,
        qk_normed: [
            "model.layers.{}.self_attn.q_layernorm",
            "model.layers.{}.self_attn.k_layernorm",
        ],
        rotated: [None; 2],
        ..LLAMA.names
    },
    ..QWEN3
};

pub(super) const UNNAMED_ATTN_OUT: Names = Names {
    attn_out: None,
    ..LLAMA.names
};

pub(super) const PARALLEL: Names = Names {
    residual: None,
    ..UNNAMED_ATTN_OUT
};

/// Latent attention, and experts in all but the first layers.
pub(super) const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    latent: true,
    experts: Some(Experts {
        keyed_gating: true,
        keyed_scale: true,
        weights_norm: WeightsNorm::Keyed,
        ..NARROW
    }),
    names: UNNAMED_ATTN_OUT,
    ..LLAMA
};

/// Experts chosen by sigmoids plus a bias, as keys say.
pub(super) const SIGMOID: Experts = Experts {
    gating: Gating::Sigmoid,
    keyed_gating: true,
    keyed_scale: true,
    weights_norm: WeightsNorm::Keyed,
    ..NARROW
};
