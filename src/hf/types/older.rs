//! Older models without experts: GPT-NeoX, OLMo 1, StableLM and EXAONE 3.

use super::dense::GELU;
use super::names::{self, LAYER_NORM, biases};
use super::rules;
use super::{Is, Kind, LLAMA, ModelType, key, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        name: "olmo",
        arch: "olmo",
        pre: &["olmo"],
        keys: &[key("attention.clamp_kqv", &["clip_qkv"], Kind::Number).optional()],
        extra: |config, view| {
            view.set(&config.key("attention.layer_norm_epsilon"), 1e-5_f32);
            Ok(())
        },
        order: rules::turned,
        biases: &[names::ATTENTION_BIAS],
        ..LLAMA
    },
    ModelType {
        name: "gpt_neox",
        arch: "gptneox",
        pre: &["olmo"],
        attribute_map: &[("rotary_emb_base", "rope_theta")],
        keys: LAYER_NORM,
        activations: GELU,
        rotary: Some(0.25),
        extra: |config, view| {
            let parallel = config.flag("use_parallel_residual")?.unwrap_or(true);
            view.set(&config.key("use_parallel_residual"), parallel);
            Ok(())
        },
        awq: false,
        derived: &[
            "rotary_emb.inv_freq",
            ".attention.bias",
            ".attention.masked_bias",
        ],
        ends: names::GPT_NEOX_ENDS,
        layers: "gpt_neox.layers.",
        modules: names::GPT_NEOX,
        // each head is a group of its own
        order: rules::falcon_groups,
        biases: &[biases("attention_bias", true, GPT_NEOX_BIASES)],
        ..LLAMA
    },
    ModelType {
        name: "stablelm",
        arch: "stablelm",
        pre: &["stablelm2"],
        keys: LAYER_NORM,
        only: &[
            only("use_parallel_residual", Is::False(false)),
            only("qk_layernorm", Is::False(false)),
        ],
        rotary: Some(0.25),
        extra: |config, view| {
            view.set(&config.key("use_parallel_residual"), false);
            Ok(())
        },
        biases: &[biases("use_qkv_bias", false, names::QKV)],
        ..LLAMA
    },
    ModelType {
        name: "exaone",
        arch: "exaone",
        pre: &["exaone"],
        attribute_map: &[
            ("num_layers", "num_hidden_layers"),
            ("activation_function", "hidden_act"),
            ("layer_norm_epsilon", "rms_norm_eps"),
        ],
        awq: false,
        ends: names::EXAONE_ENDS,
        layers: "transformer.h.",
        modules: names::EXAONE,
        biases: &[],
        ..LLAMA
    },
];

const GPT_NEOX_BIASES: &[&str] = &["attention.query_key_value", "attention.dense"];
