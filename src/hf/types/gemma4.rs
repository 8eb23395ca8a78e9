//! Gemma 4: layers of two kinds; those without a window have heads of other sizes.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::names::{RMS_EPS, SLIDING_BASE};
use super::{Cut, Is, Key, Kind, LLAMA, ModelType, Windows, key, only};

pub(super) const ALL: &[ModelType] = &[
    GEMMA4,
    ModelType {
        name: "gemma4_text",
        ..GEMMA4
    },
];

const GEMMA4: ModelType = ModelType {
    name: "gemma4",
    arch: "gemma4",
    keys: KEYS,
    only: &[only("attn_logit_softcapping", Is::Nothing)],
    activations: &["gelu_pytorch_tanh"],
    scalings: &["proportional"],
    windows: Windows::Listed,
    extra: keys,
    tied: true,
    awq: false,
    skipped: &[
        "model.vision_tower.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.embed_audio.",
    ],
    renamed: &[
        ("layer_scalar", "layer_scalar.weight"),
        ("router.scale", "router.proj.scale"),
        ("router.per_expert_scale", "experts.down_proj.scale"),
        ("experts.gate_up_proj", "experts.gate_up_proj.weight"),
        ("experts.down_proj", "experts.down_proj.weight"),
    ],
    ends: &[
        ("model.embed_tokens", "token_embd"),
        ("model.embed_tokens_per_layer", "per_layer_token_embd"),
        ("model.per_layer_model_projection", "per_layer_model_proj"),
        ("model.per_layer_projection_norm", "per_layer_proj_norm"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ],
    modules: MODULES,
    // the converter keeps them in one tensor; llama.cpp can run them separately too, as here
    cuts: &[
        ("experts.gate_up_proj", "ffn_gate_exps", Cut::FirstHalf),
        ("experts.gate_up_proj", "ffn_up_exps", Cut::SecondHalf),
    ],
    ..LLAMA
};

const KEYS: &[Key] = &[
    RMS_EPS,
    key(
        "final_logit_softcapping",
        &["final_logit_softcapping"],
        Kind::Number,
    )
    .optional(),
    key("rope.freq_base_swa", &[SLIDING_BASE], Kind::Number),
    key(
        "attention.shared_kv_layers",
        &["num_kv_shared_layers"],
        Kind::CountOrNone,
    )
    .optional(),
    key("expert_count", &["num_experts"], Kind::Count).optional(),
    key("expert_used_count", &["top_k_experts"], Kind::Count).optional(),
    key("expert_feed_forward_length", WIDTH, Kind::Count).optional(),
];
const WIDTH: &[&str] = &["expert_intermediate_size", "moe_intermediate_size"];

const MODULES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("layer_scalar", "layer_output_scale"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("router.proj", "ffn_gate_inp"),
    ("experts.down_proj", "ffn_down_exps"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
];

/// Sets the keys of layers without a window, and those that may differ by layer.
fn keys(config: &Config, view: &mut View) -> Result<(), Error> {
    causal_for_text(config)?;
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    // lists have this type in files
    let listed = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let global = global_head_dim(config)?;
    for (key, value) in [
        ("attention.key_length", global),
        ("attention.value_length", global),
        ("rope.dimension_count", global),
        ("attention.key_length_swa", config.head_dim),
        ("attention.value_length_swa", config.head_dim),
        ("rope.dimension_count_swa", config.head_dim),
        (
            "embedding_length_per_layer_input",
            config.whole("hidden_size_per_layer_input")?.unwrap_or(0),
        ),
    ] {
        view.set(&config.key(key), narrow(value));
    }
    let heads_kv = without_window(config, "num_global_key_value_heads", "num_key_value_heads")?;
    if let Some(heads_kv) = heads_kv {
        let of = |windowed: bool| if windowed { config.heads_kv } else { heads_kv };
        let windowed = config.windowed_by_type()?.unwrap_or_default();
        let all: Vec<i32> = windowed.into_iter().map(|w| listed(of(w))).collect();
        view.set(&config.key("attention.head_count_kv"), all);
    }
    if config.flag("use_double_wide_mlp")?.unwrap_or(false) {
        let layers = config.count("num_hidden_layers")?;
        let shared = config.whole("num_kv_shared_layers")?.unwrap_or(0);
        let n_ff = config.count("intermediate_size")?;
        let twice = n_ff.saturating_mul(2);
        let own = layers.saturating_sub(shared);
        let widths = (0..layers).map(|l| listed(if l < own { n_ff } else { twice }));
        view.set(
            &config.key("feed_forward_length"),
            widths.collect::<Vec<i32>>(),
        );
    }
    Ok(())
}

/// Returns the number of values per head in layers without a window.
pub(in super::super) fn global_head_dim(config: &Config) -> Result<usize, Error> {
    const KEY: &str = "global_head_dim";
    let dim = without_window(config, KEY, "head_dim")?;
    config.must(KEY, "a positive number", dim)
}

/// Returns a count that all layers without a window share: the setting `own`, or `usual` in
/// `per_layer_config`, where transformers 5 writes what differs from the other layers.
fn without_window(config: &Config, own: &str, usual: &str) -> Result<Option<usize>, Error> {
    if let Some(count) = config.optional_count(own)? {
        return Ok(Some(count));
    }
    let mut found = None;
    let windowed = config.windowed_by_type()?.unwrap_or_default();
    for (layer, _) in windowed
        .into_iter()
        .enumerate()
        .filter(|(_, windowed)| !windowed)
    {
        let key = format!("per_layer_config.{layer}.{usual}");
        let count = config.optional_count(&key)?;
        let first = *found.get_or_insert(count);
        if count != first {
            let shown = |n: Option<usize>| n.map_or("nothing".to_owned(), |n| n.to_string());
            return Err(config.bad(&key, shown(first), shown(count)));
        }
    }
    Ok(found.flatten())
}

/// Checks that text is causal; only tokens of an image may attend to each other.
fn causal_for_text(config: &Config) -> Result<(), Error> {
    const KEY: &str = "use_bidirectional_attention";
    match config.get(KEY) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(value) if value == "vision" => Ok(()),
        Some(value) => Err(config.bad(KEY, "nothing, false or vision", value)),
    }
}
