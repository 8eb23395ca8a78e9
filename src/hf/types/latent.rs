//! DeepSeek V2 and V3, and GLM 4.7 Flash: multi-head latent attention (MLA), and experts in all
//! layers but the first; DeepSeek V3.2 and GLM 5, which have indexers too.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::{OfHeads, Rule};
use super::mixtures::{
    CORRECTION, LEADING_DENSE, ROUTED_COUNT, ROUTING, SHARED_COUNT, USED, WIDTH,
};
use super::names::{self, RMS_EPS};
use super::{Cut, Is, Key, Kind, LLAMA, ModelType, Only, key, only};

pub(super) const ALL: &[ModelType] = &[
    DEEPSEEK,
    ModelType {
        name: "deepseek_v2",
        pre: &["deepseek-llm", "deepseek-coder"],
        extra: |config, view| keys(config, "softmax", view),
        ..DEEPSEEK
    },
    ModelType {
        name: "glm4_moe_lite",
        pre: &["glm4"],
        ..DEEPSEEK
    },
    INDEXED,
    ModelType {
        name: "glm_moe_dsa",
        arch: "glm-dsa",
        pre: &["glm4"],
        only: &[
            MLA[0],
            MLA[1],
            MLA[2],
            only("indexer_rope_interleave", Is::True(true)),
        ],
        extra: |config, view| {
            indexed_keys(config, view)?;
            let own = |kind: &Value| match kind.as_str()? {
                "full" => Some(true),
                "shared" => Some(false),
                _ => None,
            };
            if let Some(own) = config.flags("indexer_types", own)? {
                view.set(&config.key("attention.indexer.types"), own);
            }
            Ok(())
        },
        ..INDEXED
    },
];

const INDEXED: ModelType = ModelType {
    name: "deepseek_v32",
    arch: "deepseek32",
    extra: indexed_keys,
    modules: &INDEXED_MODULES,
    ..DEEPSEEK
};

const DEEPSEEK: ModelType = ModelType {
    name: "deepseek_v3",
    arch: "deepseek2",
    pre: &["deepseek-v3", "deepseek-r1-qwen"],
    // the width of what is rotated, which all heads share
    attribute_map: &[("qk_rope_head_dim", "head_dim")],
    keys: KEYS,
    only: &MLA,
    heads_kv: |_, _| Ok(1),
    scalings: &["yarn"],
    extra: |config, view| keys(config, "sigmoid", view),
    awq: false,
    drops_ahead: true,
    renamed: &[CORRECTION, FUSED[0], FUSED[1]],
    modules: MODULES,
    cuts: &[
        ("self_attn.kv_b_proj", "attn_k_b", Cut::Ordered),
        ("self_attn.kv_b_proj", "attn_v_b", Cut::Ordered),
        names::FUSED_EXPERTS[0],
        names::FUSED_EXPERTS[1],
    ],
    experts: names::EXPERTS,
    order: heads_come_apart,
    biases: &[],
    ..LLAMA
};

const MLA: [Only; 3] = [
    only("attention_bias", Is::False(false)),
    only("rope_interleave", Is::True(true)),
    only("moe_layer_freq", Is::Number(1.0)),
];

const FUSED: [(&str, &str); 2] = [names::FUSED_NAMES[0], names::FUSED_NAMES[1]];

const KEYS: &[Key] = &[
    RMS_EPS,
    key("attention.q_lora_rank", &["q_lora_rank"], Kind::Count).optional(),
    key("attention.kv_lora_rank", &["kv_lora_rank"], Kind::Count),
    ROUTED_COUNT,
    USED,
    WIDTH,
    SHARED_COUNT,
    LEADING_DENSE,
    ROUTING[0],
    ROUTING[1],
    ROUTING[2],
    ROUTING[3],
];

const MODULES: &[(&str, &str)] = INDEXED_MODULES.split_at(18).0;

const INDEXED_MODULES: [(&str, &str); 22] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.e_score_correction", "exp_probs_b"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("self_attn.indexer.wq_b", "indexer.attn_q_b"),
    ("self_attn.indexer.wk", "indexer.attn_k"),
    ("self_attn.indexer.k_norm", "indexer.k_norm"),
    ("self_attn.indexer.weights_proj", "indexer.proj"),
];

/// Separates the keys and values of each head, which are fused; the matrices of keys are
/// transposed, so that queries can be multiplied by them.
fn heads_come_apart(config: &Config, name: &str) -> Result<Rule, Error> {
    let keys = config.count("qk_nope_head_dim")?;
    let values = config.count("v_head_dim")?;
    let part = |start: usize, take: usize, transposed: bool| {
        Rule::OfHeads(OfHeads {
            heads: config.heads,
            of: keys.saturating_add(values),
            start,
            take,
            transposed,
        })
    };
    Ok(match name.rsplit_once('.').map_or(name, |n| n.1) {
        "attn_k_b" => part(0, keys, true),
        "attn_v_b" => part(keys, values, false),
        _ => Rule::Same,
    })
}

/// Sets the keys of indexers beside those of [`keys`].
fn indexed_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    keys(config, "sigmoid", view)?;
    for (key, setting) in [
        ("head_count", "index_n_heads"),
        ("key_length", "index_head_dim"),
        ("top_k", "index_topk"),
    ] {
        let value = u32::try_from(config.count(setting)?).unwrap_or(u32::MAX);
        view.set(&config.key(&format!("attention.indexer.{key}")), value);
    }
    Ok(())
}

/// Sets the widths of heads, before and after the weights are absorbed, the function on router
/// scores (`usual` if no setting names it), and the scale of scores under YaRN.
fn keys(config: &Config, usual: &str, view: &mut View) -> Result<(), Error> {
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (rank, rotated) = (config.count("kv_lora_rank")?, config.head_dim);
    let plain = config.count("qk_nope_head_dim")?;
    for (key, value) in [
        ("attention.key_length", rank.saturating_add(rotated)),
        ("attention.value_length", rank),
        ("attention.key_length_mla", plain.saturating_add(rotated)),
        ("attention.value_length_mla", config.count("v_head_dim")?),
    ] {
        view.set(&config.key(key), narrow(value));
    }
    const SCORES: &str = "scoring_func";
    let function = config.string(SCORES)?;
    let number = match function.as_deref().unwrap_or(usual) {
        "softmax" => 1_u32,
        "sigmoid" => 2,
        other => return Err(config.bad(SCORES, "softmax or sigmoid", other)),
    };
    view.set(&config.key("expert_gating_func"), number);
    let Some((group, _)) = config.scaling()? else {
        return Ok(());
    };
    let path = |name: &str| format!("{group}.{name}");
    let Some(multiplier) = config.double(&path("mscale_all_dim"))? else {
        return Ok(());
    };
    // the magnitude of what is rotated cancels only if both are equal
    config.number_is(&path("mscale"), multiplier)?;
    view.set(
        &config.key("rope.scaling.yarn_log_multiplier"),
        (0.1 * multiplier) as f32,
    );
    Ok(())
}
