//! Mixtures of experts.

use gguf_rs_lite::View;

use super::super::Error;
use super::super::config::Config;
use super::dense::GRANITE_FIVE;
use super::names::{self, RMS_EPS, biases, expert};
use super::rules;
use super::{Cut, Expert, Is, Key, Kind, LLAMA, ModelType, Windows, key, only};

pub(super) const ALL: &[ModelType] = &[
    ModelType {
        name: "mixtral",
        keys: &[RMS_EPS, LOCAL, USED],
        modules: MIXTRAL,
        experts: MIXTRAL_EXPERTS,
        order: rules::turned,
        biases: &[],
        ..MIXTURE
    },
    ModelType {
        name: "minimax_m2",
        arch: "minimax-m2",
        pre: &["minimax-m2"],
        keys: &[RMS_EPS, LOCAL, USED, WHOLE_WIDTH],
        only: &[
            only("scoring_func", Is::Text("sigmoid")),
            only("use_qk_norm", Is::True(true)),
            only("qk_norm_type", Is::Text("per_layer")),
            only("use_routing_bias", Is::True(true)),
            only("shared_intermediate_size", Is::Number(0.0)),
        ],
        rotary: Some(0.5),
        extra: minimax_keys,
        renamed: &[CORRECTION],
        modules: MINIMAX,
        cuts: &[],
        experts: MIXTRAL_EXPERTS,
        biases: &[],
        ..MIXTURE
    },
    QWEN3_MOE,
    ModelType {
        name: "olmoe",
        arch: "olmoe",
        pre: &["olmo"],
        keys: &[RMS_EPS, COUNT, USED, WHOLE_WIDTH],
        only: &[
            only("norm_topk_prob", Is::False(false)),
            only("clip_qkv", Is::Nothing),
        ],
        modules: QWEN_MOE,
        biases: &[names::ATTENTION_BIAS],
        ..MIXTURE
    },
    ModelType {
        name: "qwen2_moe",
        arch: "qwen2moe",
        keys: &[RMS_EPS, COUNT, USED, WIDTH, SHARED_WIDTH],
        only: &[
            only("norm_topk_prob", Is::False(false)),
            only("decoder_sparse_step", Is::Number(1.0)),
            only("mlp_only_layers", Is::Nothing),
        ],
        windows: Windows::Refused(Some("use_sliding_window")),
        modules: QWEN_MOE,
        biases: &[names::QWEN2_BIAS],
        ..MIXTURE
    },
    ModelType {
        name: "granitemoe",
        ..GRANITE_MOE
    },
    ModelType {
        name: "granitemoeshared",
        ..GRANITE_MOE
    },
    ModelType {
        name: "glm4_moe",
        arch: "glm4moe",
        pre: &["glm4"],
        keys: &[
            RMS_EPS,
            ROUTED_COUNT,
            USED,
            WIDTH,
            SHARED_COUNT,
            LEADING_DENSE,
            ROUTING[0],
            ROUTING[1],
            ROUTING[2],
            ROUTING[3],
        ],
        rotary: Some(0.5),
        extra: glm4_moe_keys,
        renamed: &[CORRECTION],
        modules: GLM4_MOE,
        biases: &[names::QKV_BIAS],
        ..MIXTURE
    },
    ModelType {
        name: "dots1",
        arch: "dots1",
        pre: &["qwen2"],
        keys: &[
            RMS_EPS,
            ROUTED_COUNT,
            USED,
            WIDTH,
            SHARED_COUNT,
            LEADING_DENSE,
            ROUTING[0],
            ROUTING[1],
        ],
        only: &[
            only("n_group", Is::Number(1.0)),
            only("topk_group", Is::Number(1.0)),
        ],
        extra: dots1_scores,
        renamed: &[CORRECTION, names::FUSED_NAMES[0], names::FUSED_NAMES[1]],
        modules: DOTS1,
        biases: &[names::ATTENTION_BIAS],
        ..MIXTURE
    },
    ModelType {
        name: "ernie4_5_moe",
        arch: "ernie4_5-moe",
        keys: &[
            RMS_EPS,
            key("expert_count", &["moe_num_experts"], Kind::Count),
            key("expert_used_count", &["moe_k"], Kind::Count),
            key(
                "expert_feed_forward_length",
                &["moe_intermediate_size"],
                Kind::Count,
            ),
            key(
                "interleave_moe_layer_step",
                &["moe_layer_interval"],
                Kind::Count,
            ),
            key(
                "leading_dense_block_count",
                &["moe_layer_start_index"],
                Kind::CountOrNone,
            ),
            key(
                "expert_shared_count",
                &["moe_num_shared_experts"],
                Kind::CountOrNone,
            )
            .optional(),
        ],
        extra: ernie_shared_width,
        // in another order than those of other types
        experts: &[names::EXPERTS[1], names::EXPERTS[2], names::EXPERTS[0]],
        tied: true,
        skipped: &["model.mtp_"],
        renamed: &[CORRECTION],
        modules: ERNIE_MOE,
        biases: &[biases("use_bias", false, names::QKVO)],
        ..MIXTURE
    },
    ModelType {
        name: "gpt_oss",
        arch: "gpt-oss",
        pre: &["gpt-4o"],
        keys: &[
            RMS_EPS,
            LOCAL,
            key(
                "expert_used_count",
                &["num_experts_per_tok", "experts_per_token"],
                Kind::Count,
            ),
            WHOLE_WIDTH,
        ],
        only: &[only("swiglu_limit", Is::Number(7.0))],
        windows: Windows::Every(2),
        renamed: &[
            ("self_attn.sinks", "self_attn.sinks.weight"),
            ("_proj_blocks", "_proj.blocks"),
            ("_proj_scales", "_proj.scales"),
            ("_proj_bias", "_proj.bias"),
            (
                "mlp.experts.gate_up_proj",
                "mlp.experts.gate_up_proj.weight",
            ),
            ("mlp.experts.down_proj", "mlp.experts.down_proj.weight"),
        ],
        modules: GPT_OSS,
        cuts: &[
            ("mlp.experts.gate_up_proj", "ffn_gate_exps", Cut::Even),
            ("mlp.experts.gate_up_proj", "ffn_up_exps", Cut::Odd),
        ],
        experts: &[],
        transposed: true,
        biases: &[biases("attention_bias", true, names::QKVO)],
        ..MIXTURE
    },
];

pub(super) const QWEN3_MOE: ModelType = ModelType {
    name: "qwen3_moe",
    arch: "qwen3moe",
    keys: &[RMS_EPS, COUNT, USED, WIDTH],
    only: &[
        only("norm_topk_prob", Is::True(false)),
        only("decoder_sparse_step", Is::Number(1.0)),
        only("mlp_only_layers", Is::Nothing),
    ],
    windows: Windows::Refused(Some("use_sliding_window")),
    modules: QWEN_MOE,
    biases: &[names::ATTENTION_BIAS],
    ..MIXTURE
};

pub(super) const MIXTURE: ModelType = ModelType {
    awq: false,
    renamed: names::FUSED_NAMES,
    cuts: &names::FUSED_EXPERTS,
    experts: names::EXPERTS,
    ..LLAMA
};

pub(super) const COUNT: Key = key(
    "expert_count",
    &["num_experts", "num_local_experts"],
    Kind::Count,
);
pub(super) const LOCAL: Key = key("expert_count", &["num_local_experts"], Kind::Count);
pub(super) const USED: Key = key("expert_used_count", &["num_experts_per_tok"], Kind::Count);
pub(super) const WIDTH: Key = key(
    "expert_feed_forward_length",
    &["moe_intermediate_size"],
    Kind::Count,
);
/// Width of experts where feed-forward blocks have no other.
const WHOLE_WIDTH: Key = key(
    "expert_feed_forward_length",
    &["intermediate_size"],
    Kind::Count,
);
pub(super) const SHARED_WIDTH: Key = key(
    "expert_shared_feed_forward_length",
    &["shared_expert_intermediate_size"],
    Kind::Count,
);

pub(super) const SHARED_COUNT: Key = key(
    "expert_shared_count",
    &["n_shared_experts"],
    Kind::CountOrNone,
)
.optional();
pub(super) const ROUTED_COUNT: Key = key("expert_count", &["n_routed_experts"], Kind::Count);
pub(super) const LEADING_DENSE: Key = key(
    "leading_dense_block_count",
    &["first_k_dense_replace"],
    Kind::CountOrNone,
)
.optional();
/// Factor, sum and groups of the routed experts' weights.
pub(super) const ROUTING: [Key; 4] = [
    key(
        "expert_weights_scale",
        &["routed_scaling_factor"],
        Kind::Number,
    )
    .optional(),
    key("expert_weights_norm", &["norm_topk_prob"], Kind::Flag).optional(),
    key("expert_group_count", &["n_group"], Kind::CountOrNone).optional(),
    key(
        "expert_group_used_count",
        &["topk_group"],
        Kind::CountOrNone,
    )
    .optional(),
];

/// A vector whose name does not follow the module scheme.
pub(super) const CORRECTION: (&str, &str) = ("e_score_correction_bias", "e_score_correction.bias");

type Names = &'static [(&'static str, &'static str)];

const MIXTRAL: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];
const MIXTRAL_EXPERTS: &[Expert] = &[
    expert("block_sparse_moe.experts.", "w1", "ffn_gate_exps"),
    expert("block_sparse_moe.experts.", "w2", "ffn_down_exps"),
    expert("block_sparse_moe.experts.", "w3", "ffn_up_exps"),
];
const MINIMAX: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.e_score_correction", "exp_probs_b"),
];
const DOTS1: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
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
];
const QWEN_MOE: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];
pub(super) const GRANITE_MOE: ModelType = ModelType {
    arch: "granitemoe",
    pre: &["refact"],
    keys: GRANITE_MOE_KEYS,
    renamed: &[],
    modules: names::GRANITE,
    cuts: &[
        (
            "block_sparse_moe.input_linear",
            "ffn_gate_exps",
            Cut::FirstHalf,
        ),
        (
            "block_sparse_moe.input_linear",
            "ffn_up_exps",
            Cut::SecondHalf,
        ),
        ("shared_mlp.input_linear", "ffn_gate_shexp", Cut::FirstHalf),
        ("shared_mlp.input_linear", "ffn_up_shexp", Cut::SecondHalf),
        ("shared_mlp.output_linear", "ffn_down_shexp", Cut::Ordered),
    ],
    experts: &[],
    order: rules::turned,
    biases: &[names::ATTENTION_BIAS],
    ..MIXTURE
};
const GRANITE_MOE_KEYS: &[Key] = &{
    let [rms, scale, embedding, residual, logits] = GRANITE_FIVE;
    [
        rms,
        scale,
        embedding,
        residual,
        logits,
        LOCAL,
        USED,
        GRANITE_SHARED_WIDTH.optional(),
    ]
};
pub(super) const GRANITE_SHARED_WIDTH: Key = key(
    "expert_shared_feed_forward_length",
    &["shared_intermediate_size"],
    Kind::CountOrNone,
);
const GLM4_MOE: Names = &[
    ("eh_proj", "nextn.eh_proj"),
    ("enorm", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("shared_head.head", "nextn.shared_head_head"),
    ("shared_head.norm", "nextn.shared_head_norm"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.e_score_correction", "exp_probs_b"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];
const ERNIE_MOE: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.moe_statics.e_score_correction", "exp_probs_b"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
];
const GPT_OSS: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.sinks", "attn_sinks"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
];

/// Sets the sigmoid as the function on router scores, and counts the multi-token prediction layers
/// at the end as layers of the file.
fn glm4_moe_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    let more = config
        .optional_count("num_nextn_predict_layers")?
        .unwrap_or(0);
    let layers = config.count("num_hidden_layers")?.saturating_add(more);
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    view.set(&config.key("expert_gating_func"), 2_u32)
        .set(&config.key("block_count"), narrow(layers))
        .set(&config.key("nextn_predict_layers"), narrow(more));
    Ok(())
}

/// Sets the sigmoid as the function on router scores, and how much of a head is rotated.
fn minimax_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    view.set(&config.key("expert_gating_func"), 2_u32);
    if let Some(n) = config.optional_count("rotary_dim")? {
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        view.set(&config.key("rope.dimension_count"), n);
    }
    Ok(())
}

/// Sets the sigmoid as the function on router scores. Published settings name it after the way in
/// which experts are chosen.
fn dots1_scores(config: &Config, view: &mut View) -> Result<(), Error> {
    const KEY: &str = "scoring_func";
    let known = |name: &String| matches!(name.as_str(), "sigmoid" | "noaux_tc");
    if let Some(other) = config.string(KEY)?.filter(|name| !known(name)) {
        return Err(config.bad(KEY, "nothing, sigmoid or noaux_tc", other));
    }
    view.set(&config.key("expert_gating_func"), 2_u32);
    Ok(())
}

/// Sets the width of the shared expert from the number of shared experts. The converter derives it
/// from the number of heads, which is the same in released models.
fn ernie_shared_width(config: &Config, view: &mut View) -> Result<(), Error> {
    let count = config.whole("moe_num_shared_experts")?.unwrap_or(0);
    let width = config.count("moe_intermediate_size")?.saturating_mul(count);
    if count > 0 {
        view.set(
            &config.key("expert_shared_feed_forward_length"),
            u32::try_from(width).unwrap_or(u32::MAX),
        );
    }
    let last = config.count("num_hidden_layers")? - 1;
    match config.float("moe_layer_end_index")? {
        Some(end) if end >= 0.0 && (end as usize) < last => {
            let expected = format!("-1, or at least {last}, the last layer");
            Err(config.bad("moe_layer_end_index", expected, end))
        }
        _ => Ok(()),
    }
}
