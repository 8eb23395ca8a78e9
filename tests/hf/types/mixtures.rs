//! Mixtures of experts: settings and names, for the small files.

use super::cases::{GRANITE, LLAMA, with};
use super::names::{FUSED_QWEN, GPT_OSS, MIXTRAL};
use super::*;

const FUSED: &[(&str, &str, &str, bool)] = &[("ffn_gate_exps", "ffn_up_exps", "gate_up", false)];

fn qwen3_moe() -> Value {
    with(
        json!({ "rms_norm_eps": 1e-6, "rope_theta": 1e6, "head_dim": 16, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [] }),
    )
}

/// The quantized file of gpt-oss.
pub(super) fn gpt_oss_blocks() -> Value {
    with(
        json!({ "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1,
        "head_dim": 32, "intermediate_size": 64, "rope_theta": 150000, "sliding_window": 20,
        "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": true,
        "quantization_config": { "quant_method": "mxfp4" },
        "rope_scaling": { "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 16 } }),
    )
}

pub(super) const CASES: &[Case] = &[
    Case {
        file: "qwen3moe",
        model_type: "qwen3_moe",
        config: qwen3_moe,
        ..LLAMA
    },
    Case {
        file: "qwen3moe",
        model_type: "qwen3_moe",
        config: qwen3_moe,
        names: &[FUSED_QWEN],
        joined: FUSED,
        ..LLAMA
    },
    Case {
        file: "qwen2moe",
        model_type: "qwen2_moe",
        config: || {
            with(
                json!({ "rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 6,
                "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 48, "norm_topk_prob": false }),
            )
        },
        ..LLAMA
    },
    Case {
        file: "mixtral",
        model_type: "mixtral",
        config: || {
            with(
                json!({ "intermediate_size": 24, "rope_theta": 1e6, "num_local_experts": 6,
                "num_experts_per_tok": 2, "sliding_window": null }),
            )
        },
        names: &[MIXTRAL],
        turned: true,
        ..LLAMA
    },
    Case {
        file: "granitemoe",
        model_type: "granitemoe",
        config: || {
            let mut config = GRANITE();
            config["intermediate_size"] = json!(24);
            config["num_local_experts"] = json!(6);
            config["num_experts_per_tok"] = json!(2);
            config
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                ffn_norm=post_attention_layernorm \
                ffn_gate_inp=block_sparse_moe.router.layer \
                gate_up=block_sparse_moe.input_linear \
                ffn_down_exps=block_sparse_moe.output_linear",
        ],
        joined: FUSED,
        turned: true,
        ..LLAMA
    },
    Case {
        file: "glm4moe",
        model_type: "glm4_moe",
        config: || {
            with(
                json!({ "rope_theta": 1e6, "head_dim": 16, "partial_rotary_factor": 0.5,
                "attention_bias": true, "n_routed_experts": 6, "num_experts_per_tok": 2,
                "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.7, "norm_topk_prob": true, "n_group": 1,
                "topk_group": 1, "num_nextn_predict_layers": 1 }),
            )
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm output=lm_head \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                attn_q_norm=self_attn.q_norm attn_k_norm=self_attn.k_norm \
                post_attention_norm=post_attention_layernorm ffn_gate=mlp.gate_proj \
                ffn_up=mlp.up_proj ffn_down=mlp.down_proj ffn_gate_inp=mlp.gate \
                exp_probs_b=-mlp.gate.e_score_correction \
                ffn_gate_exps=mlp.experts.{}.gate_proj ffn_up_exps=mlp.experts.{}.up_proj \
                ffn_down_exps=mlp.experts.{}.down_proj \
                ffn_gate_shexp=mlp.shared_experts.gate_proj \
                ffn_up_shexp=mlp.shared_experts.up_proj \
                ffn_down_shexp=mlp.shared_experts.down_proj nextn.eh_proj=eh_proj \
                nextn.enorm=enorm nextn.hnorm=hnorm nextn.shared_head_norm=shared_head.norm",
        ],
        ..LLAMA
    },
    Case {
        file: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        config: || {
            with(
                json!({ "rope_theta": 500000, "head_dim": 16, "moe_num_experts": 6, "moe_k": 2,
                "moe_intermediate_size": 24, "moe_layer_interval": 1,
                "moe_layer_start_index": 1, "moe_num_shared_experts": 2, "use_bias": false,
                "moe_layer_end_index": -1, "tie_word_embeddings": true }),
            )
        },
        names: &["token_embd=model.embed_tokens output_norm=model.norm \
                attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
                attn_v=self_attn.v_proj attn_output=self_attn.o_proj \
                ffn_norm=post_attention_layernorm ffn_gate=mlp.gate_proj \
                ffn_up=mlp.up_proj ffn_down=mlp.down_proj ffn_gate_inp=mlp.gate \
                exp_probs_b=-mlp.moe_statics.e_score_correction \
                ffn_gate_exps=mlp.experts.{}.gate_proj ffn_up_exps=mlp.experts.{}.up_proj \
                ffn_down_exps=mlp.experts.{}.down_proj \
                ffn_gate_shexp=mlp.shared_experts.gate_proj \
                ffn_up_shexp=mlp.shared_experts.up_proj \
                ffn_down_shexp=mlp.shared_experts.down_proj"],
        ..LLAMA
    },
    Case {
        file: "gpt-oss",
        model_type: "gpt_oss",
        config: || {
            with(
                json!({ "num_hidden_layers": 3, "head_dim": 16, "intermediate_size": 24,
                "rope_theta": 150000, "sliding_window": 24, "num_local_experts": 6,
                "num_experts_per_tok": 2, "attention_bias": true, "swiglu_limit": 7.0,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "truncate": false,
                    "original_max_position_embeddings": 16 } }),
            )
        },
        names: &[GPT_OSS],
        joined: &[("ffn_gate_exps", "ffn_up_exps", "gate_up", true)],
        other_keys: &["gpt-oss.feed_forward_length"],
        ..LLAMA
    },
];
