//! Models whose layers are mostly gated delta nets instead of attention: Qwen3-Next and Qwen 3.5.

use gguf_rs_lite::View;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::Rule;
use super::super::order::{Order, Parts, Turns};
use super::mixtures::{COUNT, SHARED_WIDTH, USED, WIDTH};
use super::names::{self, RMS_EPS};
use super::rules::gathered;
use super::{Cut, Is, Key, LLAMA, ModelType, Only, Windows, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        name: "qwen3_next",
        arch: "qwen3next",
        pre: &["qwen2"],
        only: &[
            only("norm_topk_prob", Is::True(true)),
            only("decoder_sparse_step", Is::Number(1.0)),
            only("mlp_only_layers", Is::Nothing),
        ],
        extra: keys,
        // llama.cpp has no names for multi-token prediction here
        skipped: &["mtp.", "model.mtp."],
        cuts: &[
            ("linear_attn.in_proj_qkvz", "attn_qkv", Cut::Ordered),
            ("linear_attn.in_proj_qkvz", "attn_gate", Cut::Ordered),
            FUSED_GATE,
            FUSED_UP,
        ],
        order: heads_come_apart,
        ahead: &[],
        ..MIXTURE
    },
    ModelType {
        name: "qwen3_5_moe",
        ..MIXTURE
    },
    ModelType {
        name: "qwen3_5_moe_text",
        ..MIXTURE
    },
    ModelType {
        name: "qwen3_5",
        ..DENSE
    },
    ModelType {
        name: "qwen3_5_text",
        ..DENSE
    },
];

const DENSE: ModelType = ModelType {
    arch: "qwen35",
    pre: &["qwen35"],
    keys: &[RMS_EPS],
    only: QWEN_3_5,
    rotary: Some(0.25),
    windows: Windows::Refused(Some("use_sliding_window")),
    extra: qwen35_keys,
    awq: false,
    skipped: &["model.visual.", "visual."],
    renamed: &[
        ("linear_attn.A_log", "linear_attn.A.log"),
        ("linear_attn.dt_bias", "linear_attn.dt.bias"),
        (
            "mlp.experts.gate_up_proj",
            "mlp.experts.gate_up_proj.weight",
        ),
        ("mlp.experts.down_proj", "mlp.experts.down_proj.weight"),
    ],
    modules: MODULES,
    order: value_heads_take_turns,
    norm_plus: 1.0,
    // the only norm that multiplies by its weight as it is
    plain_norms: &["linear_attn.norm.weight"],
    ahead: &[
        ("fc", "eh_proj"),
        ("pre_fc_norm_embedding", "enorm"),
        ("pre_fc_norm_hidden", "hnorm"),
        ("norm", "shared_head.norm"),
    ],
    ..LLAMA
};

const MIXTURE: ModelType = ModelType {
    arch: "qwen35moe",
    keys: MIXTURE_KEYS,
    // configurations of mixtures give no width but that of experts
    n_ff: |config| config.optional_count("intermediate_size"),
    cuts: &[FUSED_GATE, FUSED_UP],
    experts: names::EXPERTS,
    ..DENSE
};

const MIXTURE_KEYS: &[Key] = &[RMS_EPS, COUNT, USED, WIDTH, SHARED_WIDTH];

const QWEN_3_5: &[Only] = &[
    only("norm_topk_prob", Is::True(true)),
    only("attn_output_gate", Is::True(true)),
    only("mlp_only_layers", Is::Nothing),
    only("mtp_use_dedicated_embeddings", Is::False(false)),
];

const FUSED_GATE: (&str, &str, Cut) = names::FUSED_EXPERTS[0];
const FUSED_UP: (&str, &str, Cut) = names::FUSED_EXPERTS[1];

const MODULES: &[(&str, &str)] = &[
    ("eh_proj", "nextn.eh_proj"),
    ("enorm", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("shared_head.norm", "nextn.shared_head_norm"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A", "ssm_a"),
    ("linear_attn.dt", "ssm_dt"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

/// Sizes of a gated delta net's heads.
struct Heads {
    keys: usize,
    key_dim: usize,
    /// Value heads per key head.
    values: usize,
    value_dim: usize,
}

impl Heads {
    fn read(config: &Config) -> Result<Heads, Error> {
        const VALUES: &str = "linear_num_value_heads";
        let keys = config.count("linear_num_key_heads")?;
        let values = config.count(VALUES)?;
        if !values.is_multiple_of(keys) {
            let expected = format!("a multiple of linear_num_key_heads, {keys}");
            return Err(config.bad(VALUES, expected, values));
        }
        Ok(Heads {
            keys,
            key_dim: config.count("linear_key_head_dim")?,
            values: values / keys,
            value_dim: config.count("linear_value_head_dim")?,
        })
    }

    /// Returns the number of values in all value heads.
    fn inner(&self) -> usize {
        self.keys
            .saturating_mul(self.values)
            .saturating_mul(self.value_dim)
    }
}

/// Separates what Qwen3-Next fuses for each key head: its query, key, values and gates.
fn heads_come_apart(config: &Config, name: &str) -> Result<Rule, Error> {
    let heads = Heads::read(config)?;
    let values = heads.values.saturating_mul(heads.value_dim);
    let before = heads.key_dim.saturating_mul(2).saturating_add(values);
    let (start, lens) = if name.ends_with(".attn_qkv") {
        (0, [heads.key_dim, heads.key_dim, values])
    } else if name.ends_with(".attn_gate") {
        (before, [values, 0, 0])
    } else {
        return Ok(Rule::Same);
    };
    Ok(gathered(Parts {
        of: before.saturating_add(values),
        heads: heads.keys,
        start,
        lens,
    }))
}

/// Interleaves value heads, which Qwen 3.5 groups by key head and GGUF alternates, in every tensor
/// with something for each of them.
fn value_heads_take_turns(config: &Config, name: &str) -> Result<Rule, Error> {
    let heads = Heads::read(config)?;
    if heads.values == 1 {
        return Ok(Rule::Same);
    }
    let turns = |before: usize, width: usize| {
        let all = heads.keys.saturating_mul(heads.values);
        let order = Order::Turns(Turns {
            before,
            keys: heads.keys,
            values: heads.values,
            width,
        });
        (order, all.saturating_mul(width).saturating_add(before))
    };
    let rows = |(order, from)| Rule::Rows {
        order,
        from,
        left: from,
    };
    let queries_and_keys = heads.keys.saturating_mul(heads.key_dim).saturating_mul(2);
    Ok(match name.rsplit_once('.').map_or(name, |n| n.1) {
        "attn_qkv" | "ssm_conv1d" => rows(turns(queries_and_keys, heads.value_dim)),
        "attn_gate" => rows(turns(0, heads.value_dim)),
        "ssm_alpha" | "ssm_beta" | "ssm_a" | "ssm_dt" => rows(turns(0, 1)),
        "ssm_out" => {
            let (order, columns) = turns(0, heads.value_dim);
            Rule::Columns { order, columns }
        }
        _ => Rule::Same,
    })
}

/// Sets the sizes of delta nets, and the period of layers that are none.
fn keys(config: &Config, view: &mut View) -> Result<(), Error> {
    let heads = Heads::read(config)?;
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    const INTERVAL: &str = "full_attention_interval";
    let interval = config.optional_count(INTERVAL)?.unwrap_or(4);
    for (key, value) in [
        ("ssm.conv_kernel", config.count("linear_conv_kernel_dim")?),
        ("ssm.state_size", heads.key_dim),
        ("ssm.group_count", heads.keys),
        (
            "ssm.time_step_rank",
            heads.keys.saturating_mul(heads.values),
        ),
        ("ssm.inner_size", heads.inner()),
        (INTERVAL, interval),
    ] {
        view.set(&config.key(key), narrow(value));
    }
    const TYPES: &str = "layer_types";
    let linear = config.flags(TYPES, |v| match v.as_str() {
        Some("linear_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    })?;
    let expected = format!("linear_attention for layers but every {interval}th");
    config.every(TYPES, linear, interval, &expected)
}

/// Sets the keys of Qwen 3.5: the axes by which pairs are rotated, which are equal for text, and
/// the layers for multi-token prediction after the last one.
fn qwen35_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    keys(config, view)?;
    let sections = config.axes()?.unwrap_or(vec![11, 11, 10, 0]);
    let ahead = config.whole("mtp_num_hidden_layers")?.unwrap_or(0);
    let layers = config.count("num_hidden_layers")?.saturating_add(ahead);
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    view.set(&config.key("rope.dimension_sections"), sections)
        .set(&config.key("block_count"), narrow(layers));
    if ahead > 0 {
        view.set(&config.key("nextn_predict_layers"), narrow(ahead));
    }
    Ok(())
}
