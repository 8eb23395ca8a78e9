//! Mamba 2, and Falcon H1 with attention beside it.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::Rule;
use super::super::rows::Factors;
use super::names::{self, RMS_EPS};
use super::{Is, Key, Kind, LLAMA, ModelType, Only, key, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        name: "mamba2",
        arch: "mamba2",
        pre: &["olmo"],
        // the state is of any length
        defaults: &[("max_position_embeddings", 1_048_576.0)],
        keys: &[EPS, SSM_KERNEL, SSM_STATE, SSM_GROUPS, SSM_HEADS],
        only: &[
            only("use_bias", Is::False(false)),
            only("use_conv_bias", Is::True(true)),
            only("rms_norm", Is::True(true)),
        ],
        attention: false,
        rope: false,
        n_ff: |_| Ok(Some(0)),
        extra: |config, view| set_inner(config, "num_heads", "head_dim", view),
        awq: false,
        // Mamba Codestral's names
        prefix: "model.",
        renamed: &[
            ("mixer.dt_bias", "mixer.dt.bias"),
            ("mixer.A_log", "mixer.A.log"),
            ("mixer.D", "mixer.D.bare"),
        ],
        ends: &[
            ("backbone.embeddings", "token_embd"),
            ("backbone.norm_f", "output_norm"),
            ("lm_head", "output"),
        ],
        layers: "backbone.layers.",
        modules: &[
            ("norm", "attn_norm"),
            ("mixer.in_proj", "ssm_in"),
            ("mixer.conv1d", "ssm_conv1d"),
            ("mixer.dt", "ssm_dt"),
            ("mixer.A", "ssm_a"),
            ("mixer.D", "ssm_d"),
            ("mixer.norm", "ssm_norm"),
            ("mixer.out_proj", "ssm_out"),
        ],
        order: |config, name| mamba_shapes(config, name, ["num_heads", "n_groups"]),
        biases: &[],
        ..LLAMA
    },
    ModelType {
        name: "falcon_h1",
        arch: "falcon-h1",
        pre: &["falcon-h1"],
        keys: &[RMS_EPS, SSM_KERNEL, SSM_STATE, SSM_GROUPS, SSM_HEADS],
        only: FALCON_H1_ONLY,
        scalings: &[],
        extra: falcon_h1_keys,
        awq: false,
        renamed: &[
            ("pre_ff_layernorm.weight", "pre_ff_layernorm.bare"),
            RENAMED[0],
            RENAMED[1],
            RENAMED[2],
        ],
        ends: names::PHI_ENDS,
        modules: FALCON_H1,
        order: |config, name| mamba_shapes(config, name, MAMBA),
        factors: falcon_h1_factors,
        biases: &[],
        ..LLAMA
    },
];

/// Vectors of Mamba 2 beside attention whose names do not follow the module scheme.
pub(super) const RENAMED: [(&str, &str); 3] = [
    ("mamba.dt_bias", "mamba.dt.bias"),
    ("mamba.A_log", "mamba.A.log"),
    ("mamba.D", "mamba.D.bare"),
];

/// Epsilon of Mamba 2's norms.
const EPS: Key = key(
    "attention.layer_norm_rms_epsilon",
    &["layer_norm_epsilon", "rms_norm_eps"],
    Kind::Number,
);
pub(super) const SSM_KERNEL: Key = key(
    "ssm.conv_kernel",
    &["mamba_d_conv", "conv_kernel"],
    Kind::Count,
);
pub(super) const SSM_STATE: Key = key(
    "ssm.state_size",
    &["mamba_d_state", "state_size"],
    Kind::Count,
);
pub(super) const SSM_GROUPS: Key = key(
    "ssm.group_count",
    &["mamba_n_groups", "n_groups"],
    Kind::Count,
);
pub(super) const SSM_HEADS: Key = key(
    "ssm.time_step_rank",
    &["mamba_n_heads", "num_heads"],
    Kind::Count,
);
/// Settings of the numbers of heads and groups, in models with attention.
pub(super) const MAMBA: [&str; 2] = ["mamba_n_heads", "mamba_n_groups"];

/// Sets the total width of the heads, and checks that time steps are not clamped.
pub(super) fn set_inner(
    config: &Config,
    heads: &str,
    width: &str,
    view: &mut View,
) -> Result<(), Error> {
    const LIMIT: &str = "time_step_limit";
    let inner = config.count(heads)?.saturating_mul(config.count(width)?);
    view.set(
        &config.key("ssm.inner_size"),
        u32::try_from(inner).unwrap_or(u32::MAX),
    );
    // Python's infinity is read as a string
    let is_open = |limit: &Value| limit[0].as_f64() == Some(0.0) && limit[1] == "Infinity";
    match config.get(LIMIT).filter(|limit| !is_open(limit)) {
        Some(limit) => Err(config.bad(LIMIT, "nothing, or 0 and infinity", limit)),
        None => Ok(()),
    }
}

/// Returns the rule for Mamba 2's vectors, which are matrices in GGUF: a row for each head or for
/// each group. `counts` names the settings of both.
pub(super) fn mamba_shapes(config: &Config, name: &str, counts: [&str; 2]) -> Result<Rule, Error> {
    let rows = match name.rsplit_once('.').map_or(name, |n| n.1) {
        "ssm_a" | "ssm_d" => config.count(counts[0])?,
        "ssm_norm" => config.count(counts[1])?,
        _ => return Ok(Rule::Same),
    };
    Ok(Rule::Matrix { rows })
}

const FALCON_H1_ONLY: &[Only] = &[
    only("attention_bias", Is::False(false)),
    only("mlp_bias", Is::False(false)),
    only("projectors_bias", Is::False(false)),
    only("mamba_proj_bias", Is::False(false)),
    only("mamba_conv_bias", Is::True(true)),
    only("attn_layer_indices", Is::Nothing),
];

const FALCON_H1: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mamba.in_proj", "ssm_in"),
    ("mamba.conv1d", "ssm_conv1d"),
    ("mamba.dt", "ssm_dt"),
    ("mamba.A", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.norm", "ssm_norm"),
    ("mamba.out_proj", "ssm_out"),
    ("pre_ff_layernorm", "ffn_norm"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
];

fn falcon_h1_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    const BEFORE: &str = "mamba_norm_before_gate";
    let is_normed = config.flag("mamba_rms_norm")?.unwrap_or(true);
    if is_normed && config.flag(BEFORE)?.unwrap_or(true) {
        return Err(config.bad(BEFORE, "false where mamba_rms_norm is true", "true"));
    }
    if let Some(inner) = config.optional_count("mamba_d_ssm")? {
        let heads = config.count(MAMBA[0])?;
        config.number_is("mamba_d_head", inner as f64 / heads as f64)?;
    }
    set_inner(config, MAMBA[0], "mamba_d_head", view)
}

/// Returns the multipliers of a weight of Falcon H1: GGUF has no keys for them, and llama.cpp's
/// converter multiplies the weights.
fn falcon_h1_factors(config: &Config, name: &str) -> Result<Vec<Factors>, Error> {
    let number = |key: &str| config.must(key, "a number", config.float(key)?);
    let all = |by: [f32; 2]| {
        let rows = usize::MAX;
        vec![Factors { rows, by }]
    };
    let of_mlp = |i: usize| Ok::<_, Error>(all([listed(config, "mlp_multipliers", i)?, 1.0]));
    let once = |key: &str| Ok(all([number(key)?, 1.0]));
    match name.rsplit_once('.').map_or(name, |n| n.1) {
        "token_embd" => once("embedding_multiplier"),
        "output" => once("lm_head_multiplier"),
        "attn_q" | "attn_v" => once("attention_in_multiplier"),
        "attn_k" => Ok(all([
            number("key_multiplier")?,
            number("attention_in_multiplier")?,
        ])),
        "attn_output" => once("attention_out_multiplier"),
        "ssm_out" => once("ssm_out_multiplier"),
        "ffn_gate" => of_mlp(0),
        "ffn_down" => of_mlp(1),
        "ssm_in" => of_projection(config, number("ssm_in_multiplier")?),
        _ => Ok(Vec::new()),
    }
}

/// Returns the multipliers of the parts of Mamba 2's projection: gates, values, keys, queries and
/// time steps.
fn of_projection(config: &Config, of_all: f32) -> Result<Vec<Factors>, Error> {
    let inner = config
        .count(MAMBA[0])?
        .saturating_mul(config.count("mamba_d_head")?);
    let keys = config
        .count(MAMBA[1])?
        .saturating_mul(config.count("mamba_d_state")?);
    let parts = [inner, inner, keys, keys, usize::MAX];
    let factors = parts.into_iter().enumerate().map(|(i, rows)| {
        let by = [of_all, listed(config, "ssm_multipliers", i)?];
        Ok(Factors { rows, by })
    });
    factors.collect()
}

/// Reads a number of a list.
fn listed(config: &Config, key: &str, i: usize) -> Result<f32, Error> {
    let expected = format!("a list of numbers, of at least {}", i + 1);
    let number = |v: &Value| v.get(i)?.as_f64().map(|x| x as f32);
    config.must(key, &expected, config.typed(key, &expected, number)?)
}
