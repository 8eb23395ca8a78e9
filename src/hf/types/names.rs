//! Name lists that several rows share.

use super::{Biases, Cut, Expert, Key, Kind, key};

/// Epsilon of RMS norms.
pub(super) const RMS: &[Key] = &[RMS_EPS];
pub(super) const RMS_EPS: Key = key(
    "attention.layer_norm_rms_epsilon",
    &["rms_norm_eps"],
    Kind::Number,
);
/// Epsilon of layer norms.
pub(super) const LAYER_NORM: &[Key] = &[LAYER_NORM_EPS];
pub(super) const LAYER_NORM_EPS: Key = key(
    "attention.layer_norm_epsilon",
    &[
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ],
    Kind::Number,
);

/// Base of the RoPE frequencies of layers with a window, where both kinds of layers have their own.
pub(super) const SLIDING_BASE: &str = "rope_parameters.sliding_attention.rope_theta";

type Names = &'static [(&'static str, &'static str)];

pub(super) const ENDS: Names = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];
/// Names outside the layers of Phi 2.
pub(super) const PHI_ENDS: Names = &[
    ("model.embed_tokens", "token_embd"),
    ("model.final_layernorm", "output_norm"),
    ("lm_head", "output"),
];
/// Names outside the layers of Falcon.
pub(super) const FALCON_ENDS: Names = &[
    ("transformer.word_embeddings", "token_embd"),
    ("transformer.ln_f", "output_norm"),
    ("lm_head", "output"),
];

/// Names outside the layers of GPT-NeoX.
pub(super) const GPT_NEOX_ENDS: Names = &[
    ("gpt_neox.embed_in", "token_embd"),
    ("gpt_neox.final_layer_norm", "output_norm"),
    ("embed_out", "output"),
];
/// Names outside the layers of EXAONE 3.
pub(super) const EXAONE_ENDS: Names = &[
    ("transformer.wte", "token_embd"),
    ("transformer.ln_f", "output_norm"),
    ("lm_head", "output"),
];

pub(super) const LLAMA: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Names in which the norm before the feed-forward block is called one after attention.
pub(super) const SEED_OSS: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Names with norms after attention and feed-forward block, and none before them.
pub(super) const POST_NORMED: Names = &[
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
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
pub(super) const GLM4: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_mlp_layernorm", "post_ffw_norm"),
];
pub(super) const PHI3: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Names with norms before and after both blocks.
pub(super) const GEMMA: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
/// Names of Granite's mixtures and hybrids, except for its shared block.
pub(super) const GRANITE: Names = &[
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
    ("post_attention_layernorm", "ffn_norm"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.output_linear", "ffn_down_exps"),
];
pub(super) const STARCODER2: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];
pub(super) const HUNYUAN: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Names of Falcon. Of the two norms in newer models, the feed-forward block's has the same name as
/// the only norm of older ones.
pub(super) const FALCON: Names = &[
    ("input_layernorm", "attn_norm"),
    ("ln_mlp", "attn_norm"),
    ("ln_attn", "attn_norm_2"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attention.dense", "attn_output"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
];
pub(super) const GPT_NEOX: Names = &[
    ("input_layernorm", "attn_norm"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.dense", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
];
pub(super) const EXAONE: Names = &[
    ("ln_1", "attn_norm"),
    ("attn.attention.q_proj", "attn_q"),
    ("attn.attention.k_proj", "attn_k"),
    ("attn.attention.v_proj", "attn_v"),
    ("attn.attention.out_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc_0", "ffn_gate"),
    ("mlp.c_fc_1", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];
pub(super) const PHI: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.dense", "attn_output"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

pub(super) const QKV: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
pub(super) const QKVO: &[&str] = &[
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
];

pub(super) const ATTENTION_BIAS: Biases = biases("attention_bias", false, QKVO);
/// Biases without those of attention outputs.
pub(super) const QKV_BIAS: Biases = biases("attention_bias", false, QKV);
/// The same, for types whose first models came before the setting.
pub(super) const QWEN2_BIAS: Biases = biases("attention_bias", true, QKV);
pub(super) const MLP_BIAS: Biases = biases("mlp_bias", false, GATED);
pub(super) const GATED: &[&str] = &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

pub(super) const fn biases(
    key: &'static str,
    unset: bool,
    modules: &'static [&'static str],
) -> Biases {
    Biases {
        key,
        unset,
        modules,
    }
}

pub(super) const EXPERTS: &[Expert] = &[
    expert("mlp.experts.", "down_proj", "ffn_down_exps"),
    expert("mlp.experts.", "gate_proj", "ffn_gate_exps"),
    expert("mlp.experts.", "up_proj", "ffn_up_exps"),
];

pub(super) const fn expert(before: &'static str, part: &'static str, gguf: &'static str) -> Expert {
    Expert { before, part, gguf }
}

/// Fused gate and up matrices of all experts, as newer versions of transformers write them.
pub(super) const FUSED_EXPERTS: [(&str, &str, Cut); 2] = [
    ("mlp.experts.gate_up_proj", "ffn_gate_exps", Cut::FirstHalf),
    ("mlp.experts.gate_up_proj", "ffn_up_exps", Cut::SecondHalf),
];
/// Renamed tensors of fused experts, whose names lack the `.weight` suffix.
pub(super) const FUSED_NAMES: Names = &[
    (
        "mlp.experts.gate_up_proj",
        "mlp.experts.gate_up_proj.weight",
    ),
    ("mlp.experts.down_proj", "mlp.experts.down_proj.weight"),
];
