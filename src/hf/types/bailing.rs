//! Ling and Ring 2: mixtures whose settings have one of two names.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::settings::Settings;
use super::mixtures::{COUNT, LEADING_DENSE, MIXTURE, ROUTING, USED, WIDTH};
use super::names::{RMS_EPS, biases};
use super::{Is, Kind, ModelType, key, only};

pub(super) const ALL: &[ModelType] = &[
    LING,
    ModelType {
        // the first models of the family have this name too
        name: "bailing_moe",
        when: is_second,
        ..LING
    },
];

const LING: ModelType = ModelType {
    name: "bailing_moe_v2",
    arch: "bailingmoe2",
    pre: &["bailingmoe2"],
    keys: &[
        RMS_EPS,
        COUNT,
        USED,
        WIDTH,
        key(
            "expert_shared_count",
            &["num_shared_experts"],
            Kind::CountOrNone,
        ),
        LEADING_DENSE,
        ROUTING[0],
        ROUTING[1],
        ROUTING[2],
        ROUTING[3],
    ],
    only: &[
        only("use_qk_norm", Is::True(true)),
        only("moe_router_enable_expert_bias", Is::True(true)),
        only("norm_head", Is::False(false)),
        only("score_function", Is::Text("sigmoid")),
    ],
    rotary: Some(0.5),
    extra: scores_and_shared_width,
    drops_ahead: true,
    renamed: &[("expert_bias", "expert_bias.bias")],
    ends: &[
        ("model.word_embeddings", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ],
    modules: &[
        ("input_layernorm", "attn_norm"),
        ("attention.query_key_value", "attn_qkv"),
        ("attention.query_layernorm", "attn_q_norm"),
        ("attention.key_layernorm", "attn_k_norm"),
        ("attention.dense", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate", "ffn_gate_inp"),
        ("mlp.gate.expert_bias", "exp_probs_b"),
        ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ],
    cuts: &[],
    biases: &[
        biases("use_qkv_bias", false, &["attention.query_key_value"]),
        biases("use_bias", false, &["attention.dense"]),
    ],
    ..MIXTURE
};

/// Returns whether the settings are those of the second generation.
fn is_second(settings: &Settings) -> bool {
    let classes = settings.get("architectures").and_then(Value::as_array);
    let is_v2 = |class: &Value| class == "BailingMoeV2ForCausalLM";
    classes.is_some_and(|classes| classes.iter().any(is_v2))
}

/// Sets the sigmoid as the function on router scores, and the width of the shared expert, which is
/// that of as many experts unless a setting says otherwise.
fn scores_and_shared_width(config: &Config, view: &mut View) -> Result<(), Error> {
    let shared = config.whole("num_shared_experts")?.unwrap_or(0);
    let all = config
        .count("moe_intermediate_size")?
        .saturating_mul(shared);
    let width = config.optional_count("moe_shared_expert_intermediate_size")?;
    let width = u32::try_from(width.unwrap_or(all)).unwrap_or(u32::MAX);
    view.set(&config.key("expert_gating_func"), 2_u32)
        .set(&config.key("expert_shared_feed_forward_length"), width);
    Ok(())
}
