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
