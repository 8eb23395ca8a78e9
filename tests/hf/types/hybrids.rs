//! LFM 2, Mamba 2, Falcon H1, Granite 4 and DeepSeek, and transformers' weights of them.

use super::cases::{LLAMA, with};
use super::*;

const ENDS: &str = "token_embd=model.embed_tokens output_norm=model.norm output=lm_head";
const ATTENTION: &str = "attn_norm=input_layernorm attn_q=self_attn.q_proj \
    attn_k=self_attn.k_proj attn_v=self_attn.v_proj attn_output=self_attn.o_proj";
const MAMBA: &str = "ssm_in=mamba.in_proj ssm_conv1d=mamba.conv1d ssm_dt=-mamba.dt \
    ssm_a=-mamba.A_log ssm_d=-mamba.D ssm_norm=mamba.norm ssm_out=mamba.out_proj";
const LFM2: &str = "token_embd=model.embed_tokens token_embd_norm=model.embedding_norm \
    attn_norm=operator_norm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.out_proj attn_q_norm=self_attn.q_layernorm \
    attn_k_norm=self_attn.k_layernorm ffn_norm=ffn_norm ffn_gate=feed_forward.w1 \
    ffn_up=feed_forward.w3 ffn_down=feed_forward.w2 shortconv.conv=conv.conv \
    shortconv.in_proj=conv.in_proj shortconv.out_proj=conv.out_proj";

pub(super) const CASES: &[Case] = &[
    Case {
        file: "lfm2",
        model_type: "lfm2",
        config: lfm2,
        names: &[LFM2],
        change: squeezed_back,
        ..LLAMA
    },
    // older settings: a width that is adjusted, and numbers of the layers with attention
    Case {
        file: "lfm2",
        model_type: "lfm2",
        config: || {
            let mut config = lfm2();
            let all = config.as_object_mut().expect("settings");
            for key in ["intermediate_size", "layer_types", "tie_word_embeddings"] {
                all.remove(key);
            }
            // 2 / 3 of it is 48, and the next multiple of 32 is 64
            with_more(
                config,
                json!({ "block_ff_dim": 72, "block_auto_adjust_ff_dim": true,
                "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 32, "tie_embedding": true,
                "full_attn_idxs": [1] }),
            )
        },
        names: &[LFM2],
        change: squeezed_back,
        ..LLAMA
    },
    Case {
        file: "lfm2moe",
        model_type: "lfm2_moe",
        config: || {
            with_more(
                lfm2(),
                json!({ "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                "num_dense_layers": 1, "norm_topk_prob": true, "use_expert_bias": true,
                "routed_scaling_factor": 1.0 }),
            )
        },
        names: &[
            LFM2,
            "ffn_gate_inp=feed_forward.gate exp_probs_b=-feed_forward.expert \
            ffn_gate_exps=feed_forward.experts.{}.w1 ffn_up_exps=feed_forward.experts.{}.w3 \
            ffn_down_exps=feed_forward.experts.{}.w2",
        ],
        change: squeezed_back,
        ..LLAMA
    },
    Case {
        file: "mamba2",
        model_type: "mamba2",
        config: || {
            json!({
                "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512,
                "layer_norm_epsilon": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
                "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "conv_kernel": 4,
                "expand": 2, "use_bias": false, "use_conv_bias": true, "rms_norm": true,
                "time_step_limit": [0.0, "Infinity"],
            })
        },
        names: &[
            "token_embd=backbone.embeddings output_norm=backbone.norm_f attn_norm=norm \
            ssm_in=mixer.in_proj ssm_conv1d=mixer.conv1d ssm_dt=-mixer.dt ssm_a=-mixer.A_log \
            ssm_d=-mixer.D ssm_norm=mixer.norm ssm_out=mixer.out_proj",
        ],
        layers: "backbone.layers.",
        change: squeezed_back,
        ..LLAMA
    },
    Case {
        file: "falcon-h1",
        model_type: "falcon_h1",
        config: || {
            mamba(
                json!({ "head_dim": 16, "rope_theta": 1e11, "mamba_d_ssm": 128,
            "mamba_rms_norm": false, "attention_in_multiplier": 0.5,
            "attention_out_multiplier": 2.0, "key_multiplier": 0.25, "ssm_in_multiplier": 4.0,
            "ssm_out_multiplier": 0.125, "mlp_multipliers": [0.5, 8.0],
            "ssm_multipliers": [2.0, 0.25, 0.5, 16.0, 1.0], "embedding_multiplier": 4.0,
            "lm_head_multiplier": 0.0625 }),
            )
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.final_layernorm output=lm_head \
            ffn_norm=-pre_ff_layernorm.weight ffn_gate=feed_forward.gate_proj \
            ffn_up=feed_forward.up_proj ffn_down=feed_forward.down_proj",
            ATTENTION,
            MAMBA,
        ],
        change: |file| {
            squeezed_back(file);
            without_multipliers(file);
        },
        ..LLAMA
    },
    Case {
        file: "granitehybrid",
        model_type: "granitemoehybrid",
        config: || {
            mamba(
                json!({ "intermediate_size": 24, "attention_multiplier": 0.15,
            "embedding_multiplier": 12.0, "residual_multiplier": 0.4, "logits_scaling": 3.0,
            "num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 2,
            "shared_intermediate_size": 24, "position_embedding_type": "nope",
            "layer_types": ["mamba", "attention", "mamba"], "mamba_expand": 2 }),
            )
        },
        names: &[
            ENDS,
            ATTENTION,
            MAMBA,
            "ffn_norm=post_attention_layernorm ffn_gate_inp=block_sparse_moe.router.layer \
            gate_up=block_sparse_moe.input_linear ffn_down_exps=block_sparse_moe.output_linear \
            shared=shared_mlp.input_linear ffn_down_shexp=shared_mlp.output_linear",
        ],
        joined: &[
            ("ffn_gate_exps", "ffn_up_exps", "gate_up", false),
            ("ffn_gate_shexp", "ffn_up_shexp", "shared", false),
        ],
        turned: true,
        change: squeezed_back,
        // nothing is rotated, so that the converter sets 2^20
        other_keys: &["granitehybrid.context_length"],
        ..LLAMA
    },
    // Granite 4 without Mamba layers and experts is Granite
    Case {
        file: "granite",
        model_type: "granitemoehybrid",
        config: || {
            with(
                json!({ "attention_multiplier": 0.15, "embedding_multiplier": 12.0,
            "residual_multiplier": 0.4, "logits_scaling": 3.0, "num_local_experts": 0,
            "shared_intermediate_size": 64, "position_embedding_type": "rope",
            "layer_types": ["attention", "attention"] }),
            )
        },
        names: &[
            ENDS,
            ATTENTION,
            "ffn_norm=post_attention_layernorm gate_up=shared_mlp.input_linear \
            ffn_down=shared_mlp.output_linear",
        ],
        joined: &[("ffn_gate", "ffn_up", "gate_up", false)],
        turned: true,
        ..LLAMA
    },
    Case {
        file: "deepseek2",
        model_type: "deepseek_v3",
        config: || {
            with(
                json!({ "num_hidden_layers": 3, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
            "rope_theta": 500, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8, "v_head_dim": 24, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
            "n_group": 4, "topk_group": 2,
            "num_nextn_predict_layers": 1, "scoring_func": "sigmoid",
            "rope_scaling": { "type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16 } }),
            )
        },
        names: &[
            ENDS,
            "attn_norm=input_layernorm attn_q_a=self_attn.q_a_proj \
            attn_q_a_norm=self_attn.q_a_layernorm attn_q_b=self_attn.q_b_proj \
            attn_kv_a_mqa=self_attn.kv_a_proj_with_mqa attn_kv_a_norm=self_attn.kv_a_layernorm \
            kv_b=self_attn.kv_b_proj attn_output=self_attn.o_proj \
            ffn_norm=post_attention_layernorm ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj \
            ffn_down=mlp.down_proj ffn_gate_inp=mlp.gate \
            exp_probs_b=-mlp.gate.e_score_correction ffn_gate_exps=mlp.experts.{}.gate_proj \
            ffn_up_exps=mlp.experts.{}.up_proj ffn_down_exps=mlp.experts.{}.down_proj \
            ffn_gate_shexp=mlp.shared_experts.gate_proj ffn_up_shexp=mlp.shared_experts.up_proj \
            ffn_down_shexp=mlp.shared_experts.down_proj",
        ],
        change: |file| {
            keys_beside_values(file);
            // a layer for multi-token prediction, which is left out
            let ahead = Tensor {
                shape: vec![64],
                values: vec![1.0; 64],
            };
            file.insert("blk.3.attn_norm.weight".to_owned(), ahead);
        },
        ..LLAMA
    },
];

fn lfm2() -> Value {
    json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true, "conv_L_cache": 3,
        "conv_bias": false, "block_auto_adjust_ff_dim": false,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
    })
}

/// Returns settings with those of Mamba 2 beside attention, and more.
fn mamba(more: Value) -> Value {
    let sizes = with(
        json!({ "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_conv_bias": true,
        "mamba_proj_bias": false }),
    );
    with_more(sizes, more)
}

fn with_more(mut config: Value, more: Value) -> Value {
    let (Value::Object(all), Value::Object(more)) = (&mut config, more) else {
        panic!("objects");
    };
    all.extend(more);
    config
}

type Tensors = BTreeMap<String, Tensor>;

/// Gives the tensors of recurrent layers the shapes they have in folders.
pub(super) fn squeezed_back(file: &mut Tensors) {
    for (name, t) in file {
        let end = name.split('.').skip(2).collect::<Vec<_>>().join(".");
        match end.as_str() {
            "ssm_conv1d.weight" | "shortconv.conv.weight" => t.shape.insert(1, 1),
            "ssm_d" | "ssm_norm.weight" => t.shape = vec![t.values.len()],
            "ssm_a" => {
                t.shape = vec![t.values.len()];
                t.values.iter_mut().for_each(|v| *v = delta::logarithm(*v));
            }
            _ => {}
        }
    }
}

/// Divides Falcon H1's weights by its multipliers, which are powers of two here.
fn without_multipliers(file: &mut Tensors) {
    for (name, t) in file {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let factor = match stem.rsplit('.').next() {
            Some("token_embd") => 4.0,
            Some("output") => 0.0625,
            Some("attn_q" | "attn_v") => 0.5,
            Some("attn_k") => 0.25 * 0.5,
            Some("attn_output") => 2.0,
            Some("ssm_out") => 0.125,
            Some("ffn_gate") => 0.5,
            Some("ffn_down") => 8.0,
            Some("ssm_in") => {
                // gates, values, keys, queries, time steps
                let parts = [(128, 2.0), (128, 0.25), (16, 0.5), (16, 16.0), (8, 1.0)];
                let factors = parts
                    .map(|(rows, factor)| vec![4.0 * factor; rows])
                    .concat();
                let rows = t.values.chunks_mut(t.shape[1]).zip(factors);
                rows.for_each(|(row, f)| row.iter_mut().for_each(|v| *v /= f));
                continue;
            }
            _ => continue,
        };
        t.values.iter_mut().for_each(|v| *v /= factor);
    }
}

/// Fuses the matrices of keys, which are transposed, and those of values, by head.
pub(super) fn keys_beside_values(file: &mut Tensors) {
    for layer in 0.. {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let Some(keys) = file.remove(&name("attn_k_b")) else {
            return;
        };
        let values = file.remove(&name("attn_v_b")).expect("there");
        let [heads, rank, plain] = keys.shape[..] else {
            panic!("a matrix for each head");
        };
        let mut all = Vec::new();
        for head in 0..heads {
            let matrix = &keys.values[head * rank * plain..][..rank * plain];
            all.extend((0..plain).flat_map(|n| (0..rank).map(move |r| matrix[r * plain + n])));
            let len = values.values.len() / heads;
            all.extend_from_slice(&values.values[head * len..][..len]);
        }
        let fused = Tensor {
            shape: vec![all.len() / rank, rank],
            values: all,
        };
        file.insert(name("kv_b"), fused);
    }
}
