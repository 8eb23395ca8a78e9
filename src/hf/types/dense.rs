//! Models without experts.

use super::names::{self, LAYER_NORM, LAYER_NORM_EPS, RMS_EPS, biases};
use super::rules;
use super::{Is, Key, Kind, LLAMA, ModelType, Windows, key, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        order: rules::turned,
        ..LLAMA
    },
    ModelType {
        name: "mistral",
        order: rules::turned,
        ..LLAMA
    },
    ModelType {
        name: "qwen2",
        arch: "qwen2",
        windows: Windows::Refused(Some("use_sliding_window")),
        biases: &[names::QWEN2_BIAS],
        ..LLAMA
    },
    ModelType {
        name: "qwen3",
        arch: "qwen3",
        windows: Windows::Refused(Some("use_sliding_window")),
        ..LLAMA
    },
    ModelType {
        name: "smollm3",
        arch: "smollm3",
        pre: &["smaug-bpe"],
        windows: Windows::Refused(Some("use_sliding_window")),
        extra: rules::no_rope_every_fourth,
        tied: true,
        order: rules::turned,
        ..LLAMA
    },
    ModelType {
        name: "granite",
        arch: "granite",
        pre: &["refact"],
        keys: &GRANITE_FIVE,
        order: rules::turned,
        ..LLAMA
    },
    ModelType {
        name: "olmo2",
        arch: "olmo2",
        pre: &["dbrx"],
        modules: names::POST_NORMED,
        ..LLAMA
    },
    ModelType {
        name: "olmo3",
        arch: "olmo2",
        pre: &["dbrx"],
        windows: Windows::Marked(4),
        extra: |config, _| match config.rope_base()? {
            Some(base) => config.number_is(names::SLIDING_BASE, base.into()),
            None => Ok(()),
        },
        modules: names::POST_NORMED,
        ..LLAMA
    },
    ModelType {
        name: "glm4",
        arch: "glm4",
        pre: &["glm4", "chatglm-bpe"],
        rotary: Some(0.5),
        modules: names::GLM4,
        biases: &[names::QKV_BIAS],
        ..LLAMA
    },
    ModelType {
        name: "phi3",
        arch: "phi3",
        pre: &["dbrx", "gpt-4o"],
        rotary: Some(1.0),
        scalings: &["longrope", "su"],
        windows: Windows::Reported,
        extra: rules::phi3_scaling,
        modules: names::PHI3,
        biases: &[biases("attention_bias", false, PHI3_BIASES)],
        ..LLAMA
    },
    ModelType {
        name: "gemma",
        arch: "gemma",
        ..GEMMA
    },
    ModelType {
        name: "gemma2",
        arch: "gemma2",
        keys: &[
            RMS_EPS,
            key(
                "attn_logit_softcapping",
                &["attn_logit_softcapping"],
                Kind::Number,
            ),
            key(
                "final_logit_softcapping",
                &["final_logit_softcapping"],
                Kind::Number,
            ),
        ],
        windows: Windows::Every(2),
        extra: |config, _| rules::scores_by_width(config, 46),
        modules: names::GEMMA,
        ..GEMMA
    },
    ModelType {
        name: "gemma3_text",
        ..GEMMA3
    },
    ModelType {
        name: "gemma3",
        ..GEMMA3
    },
    ModelType {
        name: "seed_oss",
        arch: "seed_oss",
        pre: &["seed-coder"],
        modules: names::SEED_OSS,
        biases: &[
            names::QKV_BIAS,
            biases("attention_out_bias", false, &["self_attn.o_proj"]),
            names::MLP_BIAS,
        ],
        ..LLAMA
    },
    ModelType {
        name: "ernie4_5",
        arch: "ernie4_5",
        tied: true,
        biases: &[
            biases("use_bias", false, names::QKVO),
            biases("use_bias", false, names::GATED),
        ],
        ..LLAMA
    },
    ModelType {
        name: "starcoder2",
        arch: "starcoder2",
        pre: &["starcoder"],
        keys: LAYER_NORM,
        activations: GELU,
        windows: Windows::Reported,
        tied: true,
        awq: false,
        modules: names::STARCODER2,
        biases: &[
            biases("use_bias", true, names::QKVO),
            biases("use_bias", true, &["mlp.c_fc", "mlp.c_proj"]),
        ],
        ..LLAMA
    },
    ModelType {
        name: "hunyuan_v1_dense",
        arch: "hunyuan-dense",
        pre: &["hunyuan-dense"],
        only: &[
            only("use_qk_norm", Is::True(true)),
            only("use_cla", Is::False(false)),
        ],
        scalings: &["dynamic"],
        extra: rules::hunyuan_base,
        modules: names::HUNYUAN,
        biases: &[names::QKV_BIAS],
        ..LLAMA
    },
    ModelType {
        name: "nemotron",
        arch: "nemotron",
        pre: &["llama-bpe"],
        keys: LAYER_NORM,
        activations: &["relu2"],
        rotary: Some(0.5),
        scalings: &["linear"],
        awq: false,
        norm_plus: 1.0,
        biases: &[
            names::ATTENTION_BIAS,
            biases("mlp_bias", false, &["mlp.up_proj", "mlp.down_proj"]),
        ],
        ..LLAMA
    },
    ModelType {
        name: "falcon",
        arch: "falcon",
        pre: &["falcon"],
        defaults: &[("max_position_embeddings", 2048.0)],
        keys: &[LAYER_NORM_EPS],
        only: &[
            only("alibi", Is::False(false)),
            only("bias", Is::False(false)),
            only("parallel_attn", Is::True(true)),
        ],
        activations: GELU,
        heads_kv: rules::falcon_heads_kv,
        n_ff: |config| match config.optional_count("ffn_hidden_size")? {
            Some(n_ff) => Ok(Some(n_ff)),
            None => Ok(Some(config.count("hidden_size")?.saturating_mul(4))),
        },
        tied: true,
        awq: false,
        ends: names::FALCON_ENDS,
        layers: "transformer.h.",
        modules: names::FALCON,
        order: rules::falcon_groups,
        biases: &[],
        ..LLAMA
    },
    ModelType {
        name: "phi",
        arch: "phi2",
        pre: &["phi-2"],
        keys: LAYER_NORM,
        only: &[only("qk_layernorm", Is::False(false))],
        activations: GELU,
        rotary: Some(0.5),
        awq: false,
        ends: names::PHI_ENDS,
        modules: names::PHI,
        biases: &[],
        ..LLAMA
    },
    ModelType {
        name: "cohere",
        arch: "command-r",
        pre: &["command-r"],
        keys: &[
            LAYER_NORM_EPS,
            LOGIT_SCALE,
            // models were trained for more than max_position_embeddings says
            key(
                "context_length",
                &["model_max_length", "max_position_embeddings"],
                Kind::Count,
            ),
        ],
        only: &[only("use_qk_norm", Is::False(false))],
        ..COHERE
    },
    ModelType {
        name: "cohere2",
        arch: "cohere2",
        pre: &["command-r"],
        keys: &[LAYER_NORM_EPS, LOGIT_SCALE],
        rotary: Some(1.0),
        windows: Windows::Every(4),
        ..COHERE
    },
    ModelType {
        name: "exaone4",
        arch: "exaone4",
        pre: &["exaone4"],
        windows: Windows::Marked(4),
        extra: rules::exaone4_windows,
        modules: names::POST_NORMED,
        ..LLAMA
    },
    ModelType {
        name: "minicpm",
        arch: "minicpm",
        keys: &[
            RMS_EPS,
            key("embedding_scale", &["scale_emb"], Kind::Number),
        ],
        only: &[
            only("num_experts", Is::Number(0.0)),
            only("sparse_config", Is::Nothing),
        ],
        scalings: &["linear", "yarn", "longrope"],
        extra: rules::minicpm_scales,
        tied: true,
        order: rules::turned,
        ..LLAMA
    },
    ModelType {
        name: "arcee",
        arch: "arcee",
        pre: &["llama-bpe"],
        activations: &["relu2"],
        awq: false,
        order: rules::turned,
        biases: &[
            names::ATTENTION_BIAS,
            biases("mlp_bias", false, &["mlp.up_proj", "mlp.down_proj"]),
        ],
        ..LLAMA
    },
    ModelType {
        name: "mistral3",
        ..MISTRAL3
    },
    ModelType {
        name: "ministral3",
        ..MISTRAL3
    },
];

pub(super) const GELU: &[&str] = &["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"];

const PHI3_BIASES: &[&str] = &["self_attn.qkv_proj", "self_attn.o_proj"];

/// Prefixes of the vision encoder's tensors.
pub(super) const VISION: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

pub(super) const GRANITE_FIVE: [Key; 5] = [
    RMS_EPS,
    key("attention.scale", &["attention_multiplier"], Kind::Number).optional(),
    key("embedding_scale", &["embedding_multiplier"], Kind::Number).optional(),
    key("residual_scale", &["residual_multiplier"], Kind::Number).optional(),
    key("logit_scale", &["logits_scaling"], Kind::Number),
];

/// Common settings of Gemma's folders. Old ones say `gelu`, which transformers takes for its
/// approximation by tanh.
const GEMMA: ModelType = ModelType {
    activations: &["gelu_pytorch_tanh", "gelu"],
    tied: true,
    norm_plus: 1.0,
    ..LLAMA
};

/// Defaults are those of transformers: configurations of released models leave out most of them.
pub(super) const GEMMA3: ModelType = ModelType {
    arch: "gemma3",
    defaults: &[
        ("vocab_size", 262_208.0),
        ("max_position_embeddings", 131_072.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e6),
        ("rope_local_base_freq", 10_000.0),
        ("sliding_window", 4096.0),
        ("query_pre_attn_scalar", 256.0),
    ],
    keys: &[
        RMS_EPS,
        key(
            "final_logit_softcapping",
            &["final_logit_softcapping"],
            Kind::Number,
        )
        .optional(),
        key("rope.freq_base_swa", LOCAL_BASE, Kind::Number),
    ],
    only: &[
        only("attn_logit_softcapping", Is::Nothing),
        only("use_bidirectional_attention", Is::False(false)),
    ],
    windows: Windows::Every(6),
    extra: |config, _| rules::scores_by_width(config, 62),
    skipped: VISION,
    modules: names::GEMMA,
    ..GEMMA
};
const LOCAL_BASE: &[&str] = &[names::SLIDING_BASE, "rope_local_base_freq"];

const COHERE: ModelType = ModelType {
    // neither scales positions, and the files say so
    scalings: &[],
    extra: |config, view| {
        view.set(&config.key("rope.scaling.type"), "none");
        Ok(())
    },
    tied: true,
    ..LLAMA
};
const LOGIT_SCALE: Key = key("logit_scale", &["logit_scale"], Kind::Number);

const MISTRAL3: ModelType = ModelType {
    arch: "mistral3",
    pre: &["tekken"],
    keys: &[
        RMS_EPS,
        key(
            "rope.scaling.yarn_log_multiplier",
            LOG_MULTIPLIER,
            Kind::Number,
        )
        .optional(),
        key("attention.temperature_scale", TEMPERATURE, Kind::Number).optional(),
    ],
    // the magnitude is that of mscale, 1, divided by that of mscale_all_dim
    only: &[
        only("rope_parameters.mscale", Is::Number(1.0)),
        only("rope_scaling.mscale", Is::Number(1.0)),
    ],
    skipped: VISION,
    order: rules::turned,
    ..LLAMA
};
const LOG_MULTIPLIER: &[&str] = &[
    "rope_parameters.mscale_all_dim",
    "rope_scaling.mscale_all_dim",
];
const TEMPERATURE: &[&str] = &[
    "rope_parameters.llama_4_scaling_beta",
    "rope_scaling.llama_4_scaling_beta",
];
