//! Types of the second folder of small files: settings and names.

use super::cases::{LLAMA, with};
use super::*;

/// Returns the settings that these files have in common.
fn small(more: Value) -> Value {
    let mut all = with(json!({ "hidden_size": 32 }));
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

/// Fuses queries, keys and values of two heads as GPT-NeoX does: head by head.
fn by_head(all: &mut BTreeMap<String, Tensor>) {
    for (_, t) in all
        .iter_mut()
        .filter(|(name, _)| name.contains("attn_qkv."))
    {
        let part: Vec<&[f32]> = t.values.chunks(t.values.len() / 6).collect();
        t.values = [0, 2, 4, 1, 3, 5].map(|at| part[at].to_vec()).concat();
    }
}

pub(super) const CASES: &[Case] = &[
    Case {
        file: "../../arch2/models/minimax-m2",
        model_type: "minimax_m2",
        config: || {
            small(
                json!({ "intermediate_size": 12, "head_dim": 16, "rotary_dim": 8,
                "rms_norm_eps": 1e-6, "rope_theta": 5e6, "num_local_experts": 4,
                "num_experts_per_tok": 2, "scoring_func": "sigmoid", "use_qk_norm": true,
                "qk_norm_type": "per_layer", "use_routing_bias": true,
                "shared_intermediate_size": 0 }),
            )
        },
        names: &[
            "exp_probs_b=-block_sparse_moe.e_score_correction attn_q_norm=self_attn.q_norm \
                attn_k_norm=self_attn.k_norm",
            names::MIXTRAL,
        ],
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/dots1",
        model_type: "dots1",
        config: || {
            small(
                json!({ "intermediate_size": 48, "head_dim": 16, "num_key_value_heads": 4,
                "rope_theta": 1e7, "n_routed_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 12, "n_shared_experts": 2, "first_k_dense_replace": 1,
                "routed_scaling_factor": 2.5, "norm_topk_prob": true, "n_group": 1,
                "topk_group": 1, "scoring_func": "noaux_tc", "sliding_window": null }),
            )
        },
        names: &[
            "exp_probs_b=-mlp.gate.e_score_correction \
                ffn_gate_shexp=mlp.shared_experts.gate_proj \
                ffn_up_shexp=mlp.shared_experts.up_proj \
                ffn_down_shexp=mlp.shared_experts.down_proj",
            names::LLAMA,
        ],
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/deepseek32",
        model_type: "deepseek_v32",
        config: || {
            indexed(json!({ "num_hidden_layers": 2, "scoring_func": "sigmoid",
                "rope_scaling": { "type": "yarn", "factor": 4.0, "mscale": 1.0,
                    "mscale_all_dim": 1.0, "original_max_position_embeddings": 8 } }))
        },
        ..INDEXED
    },
    Case {
        file: "../../arch2/models/glm-dsa",
        model_type: "glm_moe_dsa",
        config: || {
            indexed(json!({ "num_hidden_layers": 3, "rope_interleave": true,
                "indexer_rope_interleave": true, "indexer_types": ["full", "shared", "full"] }))
        },
        ..INDEXED
    },
    Case {
        file: "../../arch2/models/nemotron_h",
        config: || {
            nemotron_h(json!({ "hidden_size": 32, "num_hidden_layers": 4,
                "hybrid_override_pattern": "M*-M", "intermediate_size": 96,
                "tie_word_embeddings": true }))
        },
        ..NEMOTRON_H
    },
    Case {
        file: "../../arch2/models/nemotron_h_moe-Q8_0",
        config: || {
            nemotron_h(json!({ "hidden_size": 64, "num_hidden_layers": 4,
                "layers_block_type": ["mamba", "moe", "attention", "moe"],
                "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "n_groups": 1,
                "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 64,
                "moe_latent_size": null, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
                "routed_scaling_factor": 2.5 }))
        },
        // this file has the width of all experts that a token uses
        other_keys: &[
            "nemotron_h_moe.feed_forward_length",
            "nemotron_h_moe.expert_gating_func",
            "nemotron_h_moe.rope.dimension_count",
        ],
        ..NEMOTRON_H
    },
    Case {
        model_type: "bailing_moe_v2",
        ..LING
    },
    Case {
        model_type: "bailing_moe",
        ..LING
    },
    Case {
        file: "../../arch2/models/olmoe",
        model_type: "olmoe",
        config: || {
            small(
                json!({ "intermediate_size": 12, "num_key_value_heads": 4, "num_experts": 4,
                "num_experts_per_tok": 2, "norm_topk_prob": false, "clip_qkv": null }),
            )
        },
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/olmo",
        model_type: "olmo",
        config: || {
            small(json!({ "intermediate_size": 48, "num_attention_heads": 2,
                "num_key_value_heads": 1, "clip_qkv": 1.2, "tie_word_embeddings": true }))
        },
        turned: true,
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/arcee",
        model_type: "arcee",
        config: || {
            small(json!({ "intermediate_size": 48, "num_attention_heads": 2,
                "num_key_value_heads": 1, "rope_theta": 5e5, "hidden_act": "relu2",
                "tie_word_embeddings": true }))
        },
        dropped: &["rope_freqs.weight"],
        turned: true,
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/gptneox",
        model_type: "gpt_neox",
        config: || {
            let mut config = small(json!({ "intermediate_size": 48, "num_attention_heads": 2,
                "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.5,
                "rotary_emb_base": 10000, "use_parallel_residual": true,
                "num_key_value_heads": null, "rms_norm_eps": null }));
            config["rope_theta"] = Value::Null;
            config
        },
        names: &[
            "token_embd=gpt_neox.embed_in output_norm=gpt_neox.final_layer_norm \
                output=embed_out attn_norm=input_layernorm \
                attn_qkv=attention.query_key_value attn_output=attention.dense \
                ffn_norm=post_attention_layernorm ffn_up=mlp.dense_h_to_4h \
                ffn_down=mlp.dense_4h_to_h",
        ],
        layers: "gpt_neox.layers.",
        change: by_head,
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/stablelm",
        model_type: "stablelm",
        config: || {
            small(json!({ "intermediate_size": 48, "num_attention_heads": 2,
                "num_key_value_heads": 1, "layer_norm_eps": 1e-5, "use_qkv_bias": true,
                "use_parallel_residual": false, "qk_layernorm": false,
                "partial_rotary_factor": 0.5, "rms_norm_eps": null }))
        },
        ..LLAMA
    },
    Case {
        file: "../../arch2/models/exaone",
        model_type: "exaone",
        config: || {
            let mut config = small(json!({ "intermediate_size": 48, "num_attention_heads": 2,
                "num_key_value_heads": 1, "rope_theta": 1e6, "num_layers": 2,
                "activation_function": "silu", "layer_norm_epsilon": 1e-5,
                "tie_word_embeddings": true }));
            let all = config.as_object_mut().expect("an object");
            all.retain(|key, _| !["num_hidden_layers", "hidden_act"].contains(&key.as_str()));
            config["rms_norm_eps"] = Value::Null;
            config
        },
        names: &[
            "token_embd=transformer.wte output_norm=transformer.ln_f attn_norm=ln_1 \
                attn_q=attn.attention.q_proj attn_k=attn.attention.k_proj \
                attn_v=attn.attention.v_proj attn_output=attn.attention.out_proj \
                ffn_norm=ln_2 ffn_gate=mlp.c_fc_0 ffn_up=mlp.c_fc_1 ffn_down=mlp.c_proj",
        ],
        layers: "transformer.h.",
        dropped: &["rope_freqs.weight"],
        ..LLAMA
    },
];

/// Returns the settings of Nemotron H's files.
fn nemotron_h(more: Value) -> Value {
    let mut all = json!({ "max_position_embeddings": 512, "layer_norm_epsilon": 1e-5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 0,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "mamba_num_heads": 4,
        "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4,
        "use_bias": false, "use_conv_bias": true, "mamba_proj_bias": false,
        "attention_bias": false, "mlp_bias": false, "time_step_limit": [0.0, "Infinity"] });
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

const NEMOTRON_H: Case = Case {
    model_type: "nemotron_h",
    names: &[
        "token_embd=backbone.embeddings output_norm=backbone.norm_f output=lm_head \
            attn_norm=norm ssm_in=mixer.in_proj ssm_conv1d=mixer.conv1d ssm_dt=-mixer.dt \
            ssm_a=-mixer.A_log ssm_d=-mixer.D ssm_norm=mixer.norm ssm_out=mixer.out_proj \
            attn_q=mixer.q_proj attn_k=mixer.k_proj attn_v=mixer.v_proj \
            attn_output=mixer.o_proj ffn_up=mixer.up_proj ffn_down=mixer.down_proj \
            ffn_gate_inp=mixer.gate exp_probs_b=-mixer.gate.e_score_correction \
            ffn_up_exps=mixer.experts.{}.up_proj ffn_down_exps=mixer.experts.{}.down_proj \
            ffn_latent_down=mixer.fc1_latent_proj ffn_latent_up=mixer.fc2_latent_proj \
            ffn_up_shexp=mixer.shared_experts.up_proj \
            ffn_down_shexp=mixer.shared_experts.down_proj",
    ],
    layers: "backbone.layers.",
    change: super::hybrids::squeezed_back,
    // nothing is rotated
    other_keys: &["nemotron_h.rope.dimension_count"],
    ..LLAMA
};

/// Returns the settings that the files with indexers have in common.
fn indexed(more: Value) -> Value {
    let mut all = small(json!({ "intermediate_size": 48, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6, "rope_theta": 100, "q_lora_rank": 12, "kv_lora_rank": 24,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
        "num_nextn_predict_layers": 0, "index_n_heads": 8, "index_head_dim": 64,
        "index_topk": 5, "tie_word_embeddings": true }));
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

const INDEXED: Case = Case {
    names: &[
        "attn_q_a=self_attn.q_a_proj attn_q_a_norm=self_attn.q_a_layernorm \
            attn_q_b=self_attn.q_b_proj attn_kv_a_mqa=self_attn.kv_a_proj_with_mqa \
            attn_kv_a_norm=self_attn.kv_a_layernorm kv_b=self_attn.kv_b_proj \
            indexer.attn_q_b=self_attn.indexer.wq_b indexer.attn_k=self_attn.indexer.wk \
            indexer.k_norm=self_attn.indexer.k_norm indexer.proj=self_attn.indexer.weights_proj \
            exp_probs_b=-mlp.gate.e_score_correction \
            ffn_gate_shexp=mlp.shared_experts.gate_proj \
            ffn_up_shexp=mlp.shared_experts.up_proj \
            ffn_down_shexp=mlp.shared_experts.down_proj",
        names::LLAMA,
    ],
    change: super::hybrids::keys_beside_values,
    ..LLAMA
};

const LING: Case = Case {
    file: "../../arch2/models/bailingmoe2",
    config: || {
        small(
            json!({ "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8,
            "rms_norm_eps": 1e-6, "rope_theta": 6e5, "partial_rotary_factor": 0.5,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
            "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 16,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
            "n_group": 4, "topk_group": 2, "score_function": "sigmoid", "use_qk_norm": true,
            "use_bias": false, "use_qkv_bias": false, "num_nextn_predict_layers": 0,
            "architectures": ["BailingMoeV2ForCausalLM"] }),
        )
    },
    names: &[
        "token_embd=model.word_embeddings attn_qkv=attention.query_key_value \
            attn_q_norm=attention.query_layernorm attn_k_norm=attention.key_layernorm \
            attn_output=attention.dense exp_probs_b=-mlp.gate.expert_bias \
            ffn_gate_shexp=mlp.shared_experts.gate_proj \
            ffn_up_shexp=mlp.shared_experts.up_proj \
            ffn_down_shexp=mlp.shared_experts.down_proj",
        names::LLAMA,
    ],
    ..LLAMA
};

/// Masks that old checkpoints of GPT-NeoX have are no weights.
#[test]
fn masks_are_left_out() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let (case, dir) = (case("gpt_neox"), TempDir::new().expect("a folder"));
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let mut tensors = inverse::tensors(case, numbers(&model));
    for (name, shape) in [
        ("bias", vec![1, 1, 4, 4]),
        ("masked_bias", vec![1]),
        ("rotary_emb.inv_freq", vec![4]),
    ] {
        let values = vec![1.0; shape.iter().product()];
        let name = format!("gpt_neox.layers.1.attention.{name}");
        tensors.insert(name, Tensor { shape, values });
    }
    save(&tensors, &folder);
    let view = hf::open(&folder, &OpenOptions::default()).expect("read");
    let expected = expected(case, &model, &dir.path().join("expected.gguf"));
    same_tensors(&view, &expected, "with masks");
}
