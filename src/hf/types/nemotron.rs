//! Nemotron H: in each layer one of Mamba 2, attention, a feed-forward block and experts.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::settings::Settings;
use super::mamba::{SSM_KERNEL, mamba_shapes, set_inner};
use super::mixtures::{ROUTED_COUNT, ROUTING, SHARED_COUNT, USED, WIDTH};
use super::names::expert;
use super::{Expert, Is, Key, Kind, LLAMA, ModelType, key, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        when: |settings| settings.get("n_routed_experts").is_some_and(|n| *n != 0),
        arch: "nemotron_h_moe",
        keys: &{
            let [rms, layer, kernel, state, groups, heads] = KEYS;
            [
                rms,
                layer,
                kernel,
                state,
                groups,
                heads,
                ROUTED_COUNT,
                USED,
                WIDTH,
                SHARED_COUNT,
                SHARED_WIDTH,
                LATENT,
                ROUTING[0],
                ROUTING[1],
                ROUTING[2],
                ROUTING[3],
            ]
        },
        ..NEMOTRON_H
    },
    NEMOTRON_H,
];

const NEMOTRON_H: ModelType = ModelType {
    name: "nemotron_h",
    when: |settings: &Settings| settings.get("n_routed_experts").is_none_or(|n| *n == 0),
    arch: "nemotron_h",
    pre: &["pixtral", "tekken"],
    attribute_map: &[("attention_head_dim", "head_dim")],
    keys: &KEYS,
    only: &[
        only("mlp_hidden_act", Is::Text("relu2")),
        only("mamba_hidden_act", Is::Text("silu")),
        only("use_bias", Is::False(false)),
        only("use_conv_bias", Is::True(true)),
        only("mamba_proj_bias", Is::False(false)),
        only("attention_bias", Is::False(false)),
        only("mlp_bias", Is::False(false)),
    ],
    rope: false,
    n_ff: |_| Ok(None),
    extra: keys,
    awq: false,
    drops_ahead: true,
    renamed: &[
        ("mixer.dt_bias", "mixer.dt.bias"),
        ("mixer.A_log", "mixer.A.log"),
        ("mixer.D", "mixer.D.bare"),
        (
            "mixer.gate.e_score_correction_bias",
            "mixer.gate.e_score_correction.bias",
        ),
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
        ("mixer.q_proj", "attn_q"),
        ("mixer.k_proj", "attn_k"),
        ("mixer.v_proj", "attn_v"),
        ("mixer.o_proj", "attn_output"),
        ("mixer.up_proj", "ffn_up"),
        ("mixer.down_proj", "ffn_down"),
        ("mixer.gate", "ffn_gate_inp"),
        ("mixer.gate.e_score_correction", "exp_probs_b"),
        ("mixer.fc1_latent_proj", "ffn_latent_down"),
        ("mixer.fc2_latent_proj", "ffn_latent_up"),
        ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
        ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    ],
    experts: EXPERTS,
    order: |config, name| mamba_shapes(config, name, [HEADS, "n_groups"]),
    biases: &[],
    ..LLAMA
};

/// Setting of the number of Mamba 2's heads.
const HEADS: &str = "mamba_num_heads";

const KEYS: [Key; 6] = [
    key(
        "attention.layer_norm_rms_epsilon",
        &["layer_norm_epsilon"],
        Kind::Number,
    ),
    key(
        "attention.layer_norm_epsilon",
        &["layer_norm_epsilon"],
        Kind::Number,
    ),
    SSM_KERNEL,
    key("ssm.state_size", &["ssm_state_size"], Kind::Count),
    key("ssm.group_count", &["n_groups"], Kind::Count),
    key("ssm.time_step_rank", &[HEADS], Kind::Count),
];

const SHARED_WIDTH: Key = key(
    "expert_shared_feed_forward_length",
    &["moe_shared_expert_intermediate_size"],
    Kind::Count,
);

const LATENT: Key = key("moe_latent_size", &["moe_latent_size"], Kind::Count).optional();

const EXPERTS: &[Expert] = &[
    expert("mixer.experts.", "down_proj", "ffn_down_exps"),
    expert("mixer.experts.", "up_proj", "ffn_up_exps"),
];

/// Content of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Mamba,
    Attention,
    Dense,
    Experts,
}

impl Content {
    /// Returns what a sign of the pattern, or a name in the list of newer settings, stands for.
    fn of(name: &str) -> Option<Content> {
        match name {
            "M" | "mamba" => Some(Content::Mamba),
            "*" | "attention" => Some(Content::Attention),
            "-" | "mlp" => Some(Content::Dense),
            "E" | "moe" => Some(Content::Experts),
            _ => None,
        }
    }
}

/// Sets the keys of layers, and the width of Mamba 2's heads.
fn keys(config: &Config, view: &mut View) -> Result<(), Error> {
    let contents = contents(config)?;
    let narrow = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let (dense, experts) = (Content::Dense, Content::Experts);
    let width = |of: Content, key: &str| match contents.contains(&of) {
        true => config.count(key).map(narrow),
        false => Ok(0),
    };
    let n_ff = [
        width(dense, "intermediate_size")?,
        width(experts, "moe_intermediate_size")?,
    ];
    let of_layers = |count: &dyn Fn(Content) -> i32| -> Vec<i32> {
        contents.iter().map(|content| count(*content)).collect()
    };
    let heads_kv = narrow(config.heads_kv);
    let heads_kv = of_layers(&|content| match content {
        Content::Attention => heads_kv,
        _ => 0,
    });
    let n_ff = of_layers(&|content| match content {
        Content::Dense => n_ff[0],
        Content::Experts => n_ff[1],
        _ => 0,
    });
    view.set(&config.key("attention.head_count_kv"), heads_kv)
        .set(&config.key("feed_forward_length"), n_ff);
    set_inner(config, HEADS, "mamba_head_dim", view)
}

/// Reads the contents of layers. A model has dense blocks or experts, not both.
fn contents(config: &Config) -> Result<Vec<Content>, Error> {
    const PATTERN: &str = "hybrid_override_pattern";
    const LIST: &str = "layers_block_type";
    let layers = config.count("num_hidden_layers")?;
    let other = match config.row.arch {
        "nemotron_h" => Content::Experts,
        _ => Content::Dense,
    };
    let without = match other {
        Content::Experts => "experts without n_routed_experts",
        _ => "dense blocks beside experts",
    };
    let expected = format!("a known content for each of {layers} layers, no {without}");
    let key = match config.get(PATTERN) {
        Some(_) => PATTERN,
        None => LIST,
    };
    let read = |value: &Value| -> Option<Vec<Content>> {
        let all: Option<Vec<Content>> = match value {
            Value::String(pattern) => {
                let signs = pattern.chars().map(|sign| Content::of(&sign.to_string()));
                signs.collect()
            }
            list => {
                let names = list.as_array()?.iter();
                names.map(|name| Content::of(name.as_str()?)).collect()
            }
        };
        all.filter(|all| all.len() == layers && !all.contains(&other))
    };
    config.must(key, &expected, config.typed(key, &expected, read)?)
}
