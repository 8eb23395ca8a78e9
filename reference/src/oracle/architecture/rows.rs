//! One entry per architecture: its differences from its family.

use super::super::math::Activation;
use super::super::rope::RopePairs;
use super::families::{
    BERT, COMMAND_R, DEEPSEEK2, EUROBERT, FALCON, GEMMA, GEMMA2, GEMMA3, GRANITE, LFM2, LLAMA,
    MIXTRAL, NARROW, OLMO2, PARALLEL, QWEN2, QWEN3, QWEN3_VL, QWEN35, QWEN35_MOE, STARCODER2,
    UNNAMED_ATTN_OUT, bare, norm, unnumbered,
};
use super::{
    Architecture, Embedded, Experts, Gating, Names, NormKind, QkNorm, Recurrent, Rotated, Scales,
    ScoreScale, Sections, SharedWidth, Sinks, Up, WeightsNorm, WindowLength, WindowRope, Windows,
};

/// Their differences from their families.
pub(super) const ARCHITECTURES: &[Architecture] = &[
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
            dense_first: false,
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
        name: "gemma-embedding",
        causal: false,
        ffn_post_norm: unnumbered("post_ffw_norm", "ffn_post_norm"),
        score_scale: ScoreScale::Width,
        ..GEMMA3
    },
    Architecture {
        name: "gemma4",
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 6,
            dense_first: false,
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
            rotated: [Some("Qcur_pos"), Some("Kcur_pos")],
            ..GEMMA2.names
        },
        ..GEMMA3
    },
    BERT,
    Architecture {
        name: "nomic-bert",
        embedded: Some(Embedded {
            types: true,
            positions: false,
        }),
        rotated: Rotated::All,
        up: Up::Gated,
        activation: Activation::Silu,
        ..BERT
    },
    Architecture {
        name: "jina-bert-v3",
        embedded: Some(Embedded {
            types: true,
            positions: false,
        }),
        rotated: Rotated::All,
        ..BERT
    },
    EUROBERT,
    Architecture {
        name: "neo-bert",
        output_norm: Some("enc.output_norm"),
        rope_pairs: RopePairs::Adjacent,
        up: Up::Fused,
        ..EUROBERT
    },
    Architecture {
        name: "modern-bert",
        norm: NormKind::Layer,
        embedded: Some(Embedded {
            types: false,
            positions: false,
        }),
        first_unnormed: true,
        up: Up::Fused,
        activation: Activation::Gelu,
        windows: Some(Windows {
            length: WindowLength::Optional,
            period: 3,
            dense_first: true,
            only_of: None,
            rope: WindowRope::Local(10_000.0),
            own_heads: false,
        }),
        names: Names {
            output_norm: "final_norm_out",
            ..EUROBERT.names
        },
        ..EUROBERT
    },
    STARCODER2,
    Architecture {
        name: "nemotron",
        activation: Activation::ReluSquared,
        names: Names {
            ffn_out: None,
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
            dense_first: false,
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
            shared_width: SharedWidth::Dense,
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
    Architecture {
        name: "qwen2vl",
        whole_rotation: true,
        sections: Sections::Blocks,
        ..QWEN2
    },
    QWEN3_VL,
    Architecture {
        name: "qwen3vlmoe",
        experts: Some(NARROW),
        ..QWEN3_VL
    },
    LFM2,
    Architecture {
        name: "lfm2moe",
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            keyed_gating: true,
            selection_bias: true,
            ..NARROW
        }),
        ..LFM2
    },
    Architecture {
        name: "mamba2",
        recurrent: Some(Recurrent::Mamba2),
        feeds_forward: false,
        names: PARALLEL,
        ..LLAMA
    },
    Architecture {
        name: "falcon-h1",
        recurrent: Some(Recurrent::Mamba2Beside),
        ffn_norm: bare("ffn_norm", "ffn_norm"),
        rope_pairs: RopePairs::Halves,
        names: Names {
            rotated: [Some("Qcur-post-rope"), Some("Kcur-post-rope")],
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "granitehybrid",
        recurrent: Some(Recurrent::Mamba2),
        scales: Scales::Granite {
            divisor_required: false,
        },
        ..GRANITE
    },
    QWEN35,
    QWEN35_MOE,
    Architecture {
        name: "qwen3next",
        recurrent: Some(Recurrent::DeltaNet { grouped: true }),
        sections: Sections::None,
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
            keyed_scale: true,
            weights_norm: WeightsNorm::Keyed,
            selection_bias: true,
            shared_tap: "ffn_shexp_out",
            ..NARROW
        }),
        ..QWEN2
    },
    DEEPSEEK2,
    Architecture {
        name: "gpt-oss",
        rope_pairs: RopePairs::Halves,
        ffn_norm: norm("post_attention_norm", "attn_post_norm"),
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 2,
            dense_first: false,
            only_of: None,
            rope: WindowRope::Based,
            own_heads: false,
        }),
        sinks: Sinks::All,
        activation: Activation::SiluClamped,
        experts: Some(Experts {
            gating: Gating::SoftmaxOfChosen,
            weights_norm: WeightsNorm::Never,
            ..NARROW
        }),
        ..LLAMA
    },
];
