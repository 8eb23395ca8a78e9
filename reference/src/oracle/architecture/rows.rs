//! A row of facts for each architecture: what differs from llama.

use super::super::math::Activation;
use super::super::rope::RopePairs;
use super::{
    Architecture, Experts, Gating, Names, Norm, NormKind, QkNorm, Recurrent, Rotated, Scales,
    ScoreScale, Up, WeightsNorm, WindowLength, WindowRope, Windows,
};

const fn norm(tensor: &'static str, tap: &'static str) -> Option<Norm> {
    Some(Norm {
        tensor,
        tap,
        numbered: true,
    })
}

const fn unnumbered(tensor: &'static str, tap: &'static str) -> Option<Norm> {
    Some(Norm {
        tensor,
        tap,
        numbered: false,
    })
}

/// The row that the others differ from.
const LLAMA: Architecture = Architecture {
    name: "llama",
    norm: NormKind::Rms,
    attn_norm: norm("attn_norm", "attn_norm"),
    attn_post_norm: None,
    ffn_norm: norm("ffn_norm", "ffn_norm"),
    ffn_post_norm: None,
    parallel: false,
    latent: false,
    recurrent: None,
    rope_pairs: RopePairs::Adjacent,
    whole_rotation: false,
    sections: false,
    rotated: Rotated::All,
    long_factors: false,
    qk_norm: QkNorm::None,
    windows: None,
    score_scale: ScoreScale::Width,
    normed_values: false,
    shared_layers: false,
    score_cap: None,
    logit_cap: None,
    sinks: false,
    up: Up::Gated,
    activation: Activation::Silu,
    experts: None,
    output_scale: false,
    scales: Scales::None,
    names: Names {
        embedding: "inp_embd",
        attn_out: Some("attn_out"),
        residual: Some("ffn_inp"),
        ffn_out: true,
        scaled_embedding: None,
        query_gate: None,
        scaled_query: None,
        qk_normed: ["Qcur_normed", "Kcur_normed"],
        rotated: Some(["Qcur", "Kcur"]),
        unbiased_logits: None,
    },
};

/// Softmax over all experts, as wide as a dense block.
const MIXTRAL: Experts = Experts {
    required: false,
    gating: Gating::Softmax,
    keyed_gating: false,
    weights_norm: WeightsNorm::Always,
    dense_width: true,
    selection_bias: false,
    shared_gate: None,
    shared_tap: "ffn_shexp",
    beside_dense: false,
};

/// The same with a width of their own.
const NARROW: Experts = Experts {
    required: true,
    dense_width: false,
    ..MIXTRAL
};

const QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope_pairs: RopePairs::Halves,
    names: UNNAMED_ATTN_OUT,
    ..LLAMA
};

const QWEN3: Architecture = Architecture {
    name: "qwen3",
    qk_norm: QkNorm::Head,
    ..QWEN2
};

/// LayerNorm, biases everywhere, and nothing gated.
const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    norm: NormKind::Layer,
    up: Up::Plain,
    activation: Activation::Gelu,
    ..QWEN2
};

const GEMMA: Architecture = Architecture {
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
const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    attn_post_norm: norm("post_attention_norm", "attn_post_norm"),
    ffn_post_norm: unnumbered("post_ffw_norm", "ffn_post_norm"),
    windows: Some(Windows {
        length: WindowLength::Default(4096),
        period: 2,
        only_of: None,
        rope: WindowRope::Same,
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

const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    ffn_post_norm: norm("post_ffw_norm", "ffn_post_norm"),
    qk_norm: QkNorm::Head,
    windows: Some(Windows {
        length: WindowLength::Optional,
        period: 6,
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
const OLMO2: Architecture = Architecture {
    name: "olmo2",
    attn_norm: None,
    ffn_norm: None,
    attn_post_norm: norm("post_attention_norm", "attn_post_norm"),
    ffn_post_norm: unnumbered("post_ffw_norm", "ffn_post_norm"),
    qk_norm: QkNorm::Whole,
    windows: Some(Windows {
        length: WindowLength::Optional,
        period: 4,
        only_of: None,
        rope: WindowRope::Plain,
        own_heads: false,
    }),
    ..QWEN2
};

const GRANITE: Architecture = Architecture {
    name: "granite",
    rotated: Rotated::IfFinetuned,
    scales: Scales::Granite,
    experts: Some(MIXTRAL),
    ..LLAMA
};

const COMMAND_R: Architecture = Architecture {
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

const FALCON: Architecture = Architecture {
    name: "falcon",
    ffn_norm: None,
    parallel: true,
    whole_rotation: true,
    names: PARALLEL,
    ..STARCODER2
};

/// Delta nets, and attention that a gate scales.
const QWEN35: Architecture = Architecture {
    name: "qwen35",
    ffn_norm: norm("post_attention_norm", "attn_post_norm"),
    recurrent: Some(Recurrent::DeltaNet { grouped: false }),
    sections: true,
    names: Names {
        embedding: "model.input_embed",
        attn_out: Some("attn_output"),
        residual: Some("attn_residual"),
        query_gate: Some("gate_reshaped"),
        ..UNNAMED_ATTN_OUT
    },
    ..QWEN3
};

const QWEN35_MOE: Architecture = Architecture {
    name: "qwen35moe",
    experts: Some(Experts {
        shared_gate: Some([
            "shared_expert_gate",
            "shared_expert_gate_sigmoid",
            "ffn_shexp_gated",
        ]),
        ..NARROW
    }),
    ..QWEN35
};

const UNNAMED_ATTN_OUT: Names = Names {
    attn_out: None,
    ..LLAMA.names
};

const PARALLEL: Names = Names {
    residual: None,
    ..UNNAMED_ATTN_OUT
};

/// The architectures that the oracle defines.
pub(in super::super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        whole_rotation: true,
        experts: Some(MIXTRAL),
        ..LLAMA
    },
    QWEN2,
    QWEN3,
    Architecture {
        name: "mistral3",
        experts: Some(MIXTRAL),
        ..LLAMA
    },
    Architecture {
        name: "smollm3",
        rotated: Rotated::ThreeOfFour,
        ..LLAMA
    },
    GRANITE,
    Architecture {
        name: "minicpm",
        scales: Scales::MiniCpm,
        ..LLAMA
    },
    Architecture {
        name: "ernie4_5",
        rope_pairs: RopePairs::Adjacent,
        ..QWEN2
    },
    Architecture {
        name: "seed_oss",
        rope_pairs: RopePairs::Halves,
        ffn_norm: norm("post_attention_norm", "attn_post_norm"),
        ..LLAMA
    },
    Architecture {
        name: "hunyuan-dense",
        rope_pairs: RopePairs::Halves,
        qk_norm: QkNorm::HeadAfterRotation,
        names: Names {
            qk_normed: ["Qcur_norm", "Kcur_norm"],
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "glm4",
        attn_post_norm: norm("post_attention_norm", "post_attn_norm"),
        ffn_post_norm: norm("post_ffw_norm", "post_mlp_norm"),
        up: Up::Fused,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "phi3",
        up: Up::Fused,
        long_factors: true,
        names: Names {
            scaled_query: Some("Qcur"),
            unbiased_logits: Some("result_output_no_bias"),
            ..PARALLEL
        },
        ..QWEN2
    },
    OLMO2,
    Architecture {
        name: "exaone4",
        rotated: Rotated::Windowed,
        qk_norm: QkNorm::Head,
        windows: Some(Windows {
            length: WindowLength::Default(4096),
            period: 4,
            only_of: Some(64),
            rope: WindowRope::Same,
            own_heads: false,
        }),
        names: LLAMA.names,
        ..OLMO2
    },
    GEMMA,
    GEMMA2,
    GEMMA3,
    Architecture {
        name: "gemma4",
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 6,
            only_of: None,
            rope: WindowRope::Local(10_000.0),
            own_heads: true,
        }),
        score_scale: ScoreScale::One,
        normed_values: true,
        shared_layers: true,
        experts: Some(Experts {
            required: false,
            beside_dense: true,
            ..NARROW
        }),
        output_scale: true,
        names: Names {
            residual: Some("attn_out"),
            rotated: Some(["Qcur_pos", "Kcur_pos"]),
            ..GEMMA2.names
        },
        ..GEMMA3
    },
    STARCODER2,
    Architecture {
        name: "nemotron",
        activation: Activation::ReluSquared,
        names: Names {
            ffn_out: false,
            ..UNNAMED_ATTN_OUT
        },
        ..STARCODER2
    },
    FALCON,
    Architecture {
        name: "phi2",
        whole_rotation: false,
        names: Names {
            unbiased_logits: Some("result_output_no_bias"),
            ..PARALLEL
        },
        ..FALCON
    },
    COMMAND_R,
    Architecture {
        name: "cohere2",
        rotated: Rotated::Windowed,
        qk_norm: QkNorm::None,
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 4,
            only_of: None,
            rope: WindowRope::Same,
            own_heads: false,
        }),
        ..COMMAND_R
    },
    Architecture {
        name: "qwen2moe",
        experts: Some(Experts {
            weights_norm: WeightsNorm::Never,
            shared_gate: Some(["ffn_shexp_gate_inp", "ffn_shexp_gate", "ffn_shexp_out"]),
            ..NARROW
        }),
        ..QWEN2
    },
    Architecture {
        name: "qwen3moe",
        experts: Some(NARROW),
        ..QWEN3
    },
    QWEN35,
    QWEN35_MOE,
    Architecture {
        name: "qwen3next",
        recurrent: Some(Recurrent::DeltaNet { grouped: true }),
        sections: false,
        names: Names {
            embedding: "model.embed_tokens",
            query_gate: Some("gate"),
            ..QWEN35.names
        },
        ..QWEN35_MOE
    },
    Architecture {
        name: "granitemoe",
        rotated: Rotated::All,
        experts: Some(Experts {
            required: true,
            ..MIXTRAL
        }),
        ..GRANITE
    },
    Architecture {
        name: "ernie4_5-moe",
        experts: Some(NARROW),
        ..LLAMA
    },
    Architecture {
        name: "glm4moe",
        ffn_norm: norm("post_attention_norm", "post_attn_norm"),
        qk_norm: QkNorm::HeadIfPresent,
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            keyed_gating: true,
            weights_norm: WeightsNorm::Keyed,
            selection_bias: true,
            shared_tap: "ffn_shexp_out",
            ..NARROW
        }),
        ..QWEN2
    },
    Architecture {
        name: "deepseek2",
        latent: true,
        experts: Some(Experts {
            keyed_gating: true,
            weights_norm: WeightsNorm::Keyed,
            ..NARROW
        }),
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "gpt-oss",
        rope_pairs: RopePairs::Halves,
        ffn_norm: norm("post_attention_norm", "attn_post_norm"),
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 2,
            only_of: None,
            rope: WindowRope::Same,
            own_heads: false,
        }),
        sinks: true,
        activation: Activation::SiluClamped,
        experts: Some(Experts {
            gating: Gating::SoftmaxOfChosen,
            weights_norm: WeightsNorm::Never,
            ..NARROW
        }),
        ..LLAMA
    },
];
