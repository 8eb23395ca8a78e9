//! LFM 2: short convolutions in most layers, attention in the others.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::mixtures::{COUNT, USED, WIDTH};
use super::names::expert;
use super::{Is, Key, Kind, LLAMA, ModelType, key, only};

pub(super) const ALL: &[ModelType] = &[
    LFM2,
    ModelType {
        name: "lfm2_moe",
        arch: "lfm2moe",
        keys: &[
            CONV_EPS,
            KERNEL,
            COUNT,
            USED,
            WIDTH,
            key(
                "leading_dense_block_count",
                &["num_dense_layers"],
                Kind::CountOrNone,
            ),
        ],
        only: &[
            only("conv_bias", Is::False(false)),
            only("use_expert_bias", Is::True(true)),
            only("norm_topk_prob", Is::True(true)),
            only("routed_scaling_factor", Is::Number(1.0)),
        ],
        n_ff: LLAMA.n_ff,
        extra: |config, view| {
            view.set(&config.key("expert_gating_func"), 2_u32);
            keys_by_layer(config, view)
        },
        renamed: &[("expert_bias", "expert.bias")],
        experts: &[
            expert("feed_forward.experts.", "w1", "ffn_gate_exps"),
            expert("feed_forward.experts.", "w2", "ffn_down_exps"),
            expert("feed_forward.experts.", "w3", "ffn_up_exps"),
        ],
        ..LFM2
    },
];

const LFM2: ModelType = ModelType {
    name: "lfm2",
    arch: "lfm2",
    pre: &["lfm2"],
    attribute_map: &[
        ("tie_embedding", "tie_word_embeddings"),
        ("theta", "rope_theta"),
        ("block_ff_dim", "intermediate_size"),
    ],
    keys: &[CONV_EPS, KERNEL],
    only: &[only("conv_bias", Is::False(false))],
    n_ff: lfm2_width,
    scalings: &[],
    extra: keys_by_layer,
    tied: true,
    awq: false,
    ends: &[
        ("model.embed_tokens", "token_embd"),
        ("model.embedding_norm", "token_embd_norm"),
        ("lm_head", "output"),
    ],
    modules: &[
        ("operator_norm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("self_attn.out_proj", "attn_output"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.conv", "shortconv.conv"),
        ("conv.out_proj", "shortconv.out_proj"),
        ("ffn_norm", "ffn_norm"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
        ("feed_forward.gate", "ffn_gate_inp"),
        ("feed_forward.expert", "exp_probs_b"),
    ],
    biases: &[],
    ..LLAMA
};

/// Epsilon of LFM 2's norms.
const CONV_EPS: Key = key(
    "attention.layer_norm_rms_epsilon",
    &["norm_eps"],
    Kind::Number,
);
const KERNEL: Key = key("shortconv.l_cache", &["conv_L_cache"], Kind::Count);

/// Returns the width of LFM 2's feed-forward blocks, which older settings give before it is
/// adjusted.
fn lfm2_width(config: &Config) -> Result<Option<usize>, Error> {
    let width = config.count("intermediate_size")?;
    if !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(Some(width));
    }
    let factor = config.double("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = config.optional_count("block_multiple_of")?.unwrap_or(256);
    let adjusted = (factor * (2 * width / 3) as f64) as usize;
    Ok(Some(adjusted.div_ceil(multiple).saturating_mul(multiple)))
}

/// Sets the number of KV heads of each layer, which is 0 in layers without attention.
pub(super) fn keys_by_layer(config: &Config, view: &mut View) -> Result<(), Error> {
    const TYPES: &str = "layer_types";
    const LIST: &str = "full_attn_idxs";
    let layers = config.count("num_hidden_layers")?;
    let by_type = config.flags(TYPES, |v| match v.as_str() {
        Some("full_attention" | "attention") => Some(true),
        Some("conv" | "mamba" | "linear_attention") => Some(false),
        _ => None,
    })?;
    let attends = match by_type {
        Some(flags) if flags.len() == layers => flags,
        Some(flags) => {
            let expected = format!("a kind for each of {layers} layers");
            return Err(config.bad(TYPES, expected, flags.len()));
        }
        None => {
            let list = config.typed(LIST, "numbers of layers", layer_numbers)?;
            let list = config.must(TYPES, "a kind for each layer", list)?;
            (0..layers).map(|layer| list.contains(&layer)).collect()
        }
    };
    // lists have this type in files
    let heads_kv = i32::try_from(config.heads_kv).unwrap_or(i32::MAX);
    let of = |attends: bool| if attends { heads_kv } else { 0 };
    let all: Vec<i32> = attends.into_iter().map(of).collect();
    view.set(&config.key("attention.head_count_kv"), all);
    Ok(())
}

fn layer_numbers(value: &Value) -> Option<Vec<usize>> {
    let number = |v: &Value| usize::try_from(v.as_u64()?).ok();
    value.as_array()?.iter().map(number).collect()
}
