//! More entries like those of `rows.rs`, of architectures that combine parts of others.

use super::super::math::Activation;
use super::super::rope::RopePairs;
use super::families::{
    DEEPSEEK2, GRANITE, LLAMA, MIXTRAL, NARROW, PARALLEL, QWEN2, QWEN3, SIGMOID, STARCODER2,
    UNNAMED_ATTN_OUT, bare, norm,
};
use super::{
    Architecture, Embedded, Experts, Gating, IndexerFacts, MaxBias, Names, NormKind, QkNorm,
    Recurrent, ResultGate, Rotated, Scales, SharedWidth, Sinks, Up, WeightsNorm, WindowLength,
    WindowRope, Windows,
};

/// Their differences from their families.
pub(super) const COMBINED: &[Architecture] = &[
    NEMOTRON_H,
    Architecture {
        name: "apertus",
        whole_rotation: true,
        up: Up::Plain,
        activation: Activation::Xielu,
        names: Names {
            ffn_out: Some("ffn_down"),
            rotated: [Some("Qcur_pos"), Some("Kcur_pos")],
            ..LLAMA.names
        },
        ..QWEN3
    },
    Architecture {
        name: "bitnet",
        sub_norms: true,
        names: Names {
            ffn_out: Some("ffn_down"),
            ..LLAMA.names
        },
        ..QWEN2
    },
    Architecture {
        name: "bloom",
        alibi: MaxBias::Constant(8.0),
        embedding_norm: Some(true),
        rotated: Rotated::Never,
        ..STARCODER2
    },
    Architecture {
        name: "mpt",
        alibi: MaxBias::Keyed,
        clamped: true,
        rotated: Rotated::Never,
        ..STARCODER2
    },
    Architecture {
        name: "mamba",
        recurrent: Some(Recurrent::Mamba1 { normed: false }),
        feeds_forward: false,
        names: PARALLEL,
        ..LLAMA
    },
    Architecture {
        name: "jamba",
        recurrent: Some(Recurrent::Mamba1 { normed: true }),
        rotated: Rotated::Never,
        experts: Some(Experts {
            weights_norm: WeightsNorm::Never,
            where_routed: true,
            ..MIXTRAL
        }),
        names: Names {
            attn_out: Some("ffn_inp"),
            residual: None,
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "plamo2",
        attn_norm: norm("attn_norm", ""),
        attn_post_norm: bare("post_attention_norm", "attn_post_norm"),
        ffn_norm: norm("ffn_norm", "ffn_pre_norm"),
        ffn_post_norm: bare("post_ffw_norm", "ffn_post_norm"),
        recurrent: Some(Recurrent::Plamo2),
        qk_norm: QkNorm::EachHead,
        up: Up::Fused,
        names: Names {
            embedding: "embedding_output",
            residual: Some("attn_residual"),
            rotated: [None; 2],
            ..LLAMA.names
        },
        ..QWEN2
    },
    Architecture {
        name: "rwkv7",
        norm: NormKind::Layer,
        embedding_norm: Some(false),
        recurrent: Some(Recurrent::Rwkv7),
        ffn_norm: norm("attn_norm_2", "ffn_norm"),
        names: Names {
            ffn_out: None,
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "afmoe",
        attn_post_norm: norm("post_attention_norm", "attn_post_norm"),
        ffn_post_norm: norm("post_ffw_norm", "ffn_post_norm"),
        rotated: Rotated::ThreeOfFour,
        windows: Some(Windows {
            length: WindowLength::Optional,
            rope: WindowRope::Based,
            ..FLAGGED
        }),
        gate: Some(ResultGate {
            by_head: false,
            taps: ["attn_out", "attn_gate_proj", "attn_gate_sig", "attn_gated"],
        }),
        scales: Scales::Embedding,
        experts: Some(Experts {
            selection_bias: true,
            ..SIGMOID
        }),
        names: Names {
            attn_out: Some("attn_o_proj"),
            rotated: [Some("Qcur_rope"), Some("Kcur_rope")],
            scaled_embedding: Some("inp_embd_scaled"),
            ..LLAMA.names
        },
        ..QWEN3
    },
    Architecture {
        name: "granite_swa",
        whole_rotation: true,
        rotated: Rotated::Flagged,
        windows: Some(Windows {
            rope: WindowRope::Same,
            ..FLAGGED
        }),
        sinks: Sinks::All,
        fused_shared: true,
        ..GRANITE
    },
    Architecture {
        name: "phimoe",
        norm: NormKind::BiasedRms,
        long_factors: true,
        experts: Some(Experts {
            required: true,
            ..MIXTRAL
        }),
        names: Names {
            scaled_query: Some("Qcur"),
            unbiased_logits: Some("result_output_no_bias"),
            ..PARALLEL
        },
        ..QWEN2
    },
    Architecture {
        name: "gptneox",
        keyed_parallel: true,
        ..STARCODER2
    },
    Architecture {
        name: "gpt2",
        embedded: Some(Embedded {
            types: false,
            positions: true,
        }),
        rotated: Rotated::Never,
        names: Names {
            scaled_embedding: Some("inpL"),
            ..UNNAMED_ATTN_OUT
        },
        ..STARCODER2
    },
    Architecture {
        name: "stablelm",
        norm: NormKind::Layer,
        ..QWEN2
    },
    Architecture {
        name: "olmo",
        norm: NormKind::BareLayer,
        whole_rotation: true,
        clamped: true,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "baichuan",
        whole_rotation: true,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "kimi-linear",
        rotated: Rotated::Never,
        names_latent: false,
        recurrent: Some(Recurrent::KimiDelta),
        experts: Some(Experts {
            keyed_gating: true,
            keyed_scale: true,
            selection_bias: true,
            ..NARROW
        }),
        names: Names {
            embedding: "model.embed_tokens",
            attn_out: Some("mla_out"),
            ..LLAMA.names
        },
        ..DEEPSEEK2
    },
    Architecture {
        name: "mimo2",
        windows: Some(FLAGGED),
        sinks: Sinks::Present,
        value_scale: true,
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            where_routed: true,
            ..NARROW
        }),
        names: LLAMA.names,
        ..QWEN2
    },
    Architecture {
        name: "step35",
        windows: Some(FLAGGED),
        half_rotation: true,
        limited: true,
        qk_norm: QkNorm::HeadIfPresent,
        gate: Some(ResultGate {
            by_head: true,
            taps: [
                "attn_out",
                "attn_gate",
                "attn_gate_sigmoid",
                "attn_gated_3d",
            ],
        }),
        experts: Some(Experts {
            where_routed: true,
            shared_tap: "ffn_shared_out",
            ..SIGMOID
        }),
        names: Names {
            attn_out: Some("attn_proj"),
            rotated: [Some("Qcur_pos"), Some("Kcur_pos")],
            ..LLAMA.names
        },
        ..QWEN2
    },
    Architecture {
        name: "llama4",
        whole_rotation: true,
        rotated: Rotated::ThreeOfFour,
        windows: Some(Windows {
            length: WindowLength::Chunks(8192),
            rope: WindowRope::Based,
            ..FLAGGED
        }),
        qk_norm: QkNorm::UnweightedUnlessExperts(128),
        unrotated_temperature: Some((0.1, 8192)),
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            weights_norm: WeightsNorm::Never,
            shared_width: SharedWidth::Expert,
            shared_tap: "ffn_moe_shexp",
            weighs_inputs: true,
            sums: ["ffn_moe_out", "ffn_moe_out_merged"],
            named_norm: false,
            ..NARROW
        }),
        ..LLAMA
    },
    Architecture {
        name: "smallthinker",
        whole_rotation: true,
        rotated: Rotated::AfterFirstOfFour,
        windows: Some(Windows {
            length: WindowLength::IfKeyed(4096),
            dense_first: true,
            rope: WindowRope::Based,
            ..FLAGGED
        }),
        activation: Activation::Relu,
        experts: Some(Experts {
            keyed_gating: true,
            early: true,
            sums: ["ffn_out", "ffn_out"],
            ..NARROW
        }),
        ..QWEN2
    },
    Architecture {
        name: "nemotron_h_moe",
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            keyed_scale: true,
            weights_norm: WeightsNorm::Keyed,
            selection_bias: true,
            latent: true,
            sums: ["ffn_moe_out", "l_out"],
            ..NARROW
        }),
        ..NEMOTRON_H
    },
    Architecture {
        name: "minimax-m2",
        qk_norm: QkNorm::Whole,
        experts: Some(Experts {
            required: true,
            keyed_gating: true,
            selection_bias: true,
            ..MIXTRAL
        }),
        ..QWEN2
    },
    Architecture {
        name: "olmoe",
        whole_rotation: true,
        qk_norm: QkNorm::Whole,
        experts: Some(Experts {
            required: true,
            weights_norm: WeightsNorm::Never,
            ..MIXTRAL
        }),
        ..QWEN2
    },
    Architecture {
        name: "deepseek32",
        usual_ramp: true,
        indexer: Some(IndexerFacts {
            pairs: RopePairs::Halves,
            eps: 1e-6,
            shared: false,
        }),
        ..DEEPSEEK2
    },
    Architecture {
        name: "glm-dsa",
        usual_ramp: true,
        indexer: Some(IndexerFacts {
            pairs: RopePairs::Adjacent,
            eps: 0.0,
            shared: true,
        }),
        experts: Some(SIGMOID),
        ..DEEPSEEK2
    },
    Architecture {
        name: "mistral4",
        usual_ramp: true,
        ..DEEPSEEK2
    },
    Architecture {
        name: "bailingmoe2",
        qk_norm: QkNorm::Head,
        experts: Some(Experts {
            shared_width: SharedWidth::TimesCount,
            ..SIGMOID
        }),
        names: Names {
            residual: Some("sa_out"),
            ..UNNAMED_ATTN_OUT
        },
        ..QWEN2
    },
    Architecture {
        name: "hunyuan-moe",
        rope_pairs: RopePairs::Halves,
        whole_rotation: true,
        qk_norm: QkNorm::HeadAfterRotation,
        experts: Some(Experts {
            required: true,
            shared_tap: "ffn_mlp",
            shared_width: SharedWidth::Dense,
            ..MIXTRAL
        }),
        names: Names {
            qk_normed: ["Qcur_norm", "Kcur_norm"],
            rotated: [Some("Qcur"), None],
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "dots1",
        whole_rotation: true,
        experts: Some(SIGMOID),
        ..QWEN3
    },
    Architecture {
        name: "exaone-moe",
        whole_rotation: true,
        rotated: Rotated::Windowed,
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 4,
            dense_first: false,
            only_of: None,
            rope: WindowRope::Same,
            own_heads: false,
        }),
        experts: Some(Experts {
            shared_width: SharedWidth::Expert,
            ..SIGMOID
        }),
        names: LLAMA.names,
        ..QWEN3
    },
    Architecture {
        name: "deepseek",
        whole_rotation: true,
        experts: Some(Experts {
            keyed_scale: true,
            weights_norm: WeightsNorm::Never,
            ..NARROW
        }),
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "internlm2",
        whole_rotation: true,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "exaone",
        whole_rotation: true,
        ..QWEN2
    },
    Architecture {
        name: "arcee",
        whole_rotation: true,
        up: Up::Plain,
        activation: Activation::ReluSquared,
        ..LLAMA
    },
    Architecture {
        name: "chatglm",
        up: Up::Fused,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
];

/// Windows in layers that flags mark, which rotate by a base of their own.
const FLAGGED: Windows = Windows {
    length: WindowLength::Required,
    period: 4,
    dense_first: false,
    only_of: None,
    rope: WindowRope::Undivided(10_000.0),
    own_heads: false,
};

/// Layers of one thing each: Mamba 2, attention, or an ungated block.
const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    one_of_both: true,
    recurrent: Some(Recurrent::Mamba2),
    rotated: Rotated::Never,
    up: Up::Plain,
    activation: Activation::ReluSquared,
    names: Names {
        ffn_out: Some("l_out"),
        ..LLAMA.names
    },
    ..LLAMA
};
