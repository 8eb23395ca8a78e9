//! Gated delta nets: Qwen3-Next and Qwen 3.5, and transformers' weights of them.

use super::*;

/// Names inside layers, except for experts.
const LAYER: &str = "attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm \
    attn_k_norm=self_attn.k_norm attn_qkv=linear_attn.in_proj_qkv attn_gate=linear_attn.in_proj_z \
    ssm_alpha=linear_attn.in_proj_a ssm_beta=linear_attn.in_proj_b ssm_ba=linear_attn.in_proj_ba \
    qkvz=linear_attn.in_proj_qkvz ssm_conv1d=linear_attn.conv1d ssm_dt=-linear_attn.dt \
    ssm_a=-linear_attn.A_log \
    ssm_norm=linear_attn.norm ssm_out=linear_attn.out_proj \
    post_attention_norm=post_attention_layernorm ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj \
    ffn_down=mlp.down_proj ffn_gate_inp=mlp.gate ffn_gate_inp_shexp=mlp.shared_expert_gate \
    ffn_gate_shexp=mlp.shared_expert.gate_proj ffn_up_shexp=mlp.shared_expert.up_proj \
    ffn_down_shexp=mlp.shared_expert.down_proj";
const EACH: &str = "ffn_gate_exps=mlp.experts.{}.gate_proj ffn_up_exps=mlp.experts.{}.up_proj \
    ffn_down_exps=mlp.experts.{}.down_proj";
const FUSED: &str = "gate_up=-mlp.experts.gate_up_proj ffn_down_exps=-mlp.experts.down_proj";
const AHEAD: &str = "nextn.eh_proj=mtp.fc nextn.enorm=mtp.pre_fc_norm_embedding \
    nextn.hnorm=mtp.pre_fc_norm_hidden nextn.shared_head_norm=mtp.norm";
const ENDS: &str = "token_embd=model.embed_tokens output_norm=model.norm output=lm_head";
/// Names in vision-language models.
const WRAPPED: &str = "token_embd=model.language_model.embed_tokens \
    output_norm=model.language_model.norm output=lm_head";

pub(super) const CASES: &[Case] = &[
    Case {
        file: "qwen3next-F32",
        model_type: "qwen3_next",
        config: || {
            let mut config = qwen3_5();
            config["partial_rotary_factor"] = json!(0.5);
            mixture(&mut config, 6, 24);
            config["decoder_sparse_step"] = json!(1);
            config["norm_topk_prob"] = json!(true);
            config["rope_parameters"] = Value::Null;
            config["rope_theta"] = json!(1e7);
            config
        },
        names: &[ENDS, LAYER, EACH],
        ..DELTA
    },
    Case {
        file: "qwen35-F32",
        model_type: "qwen3_5",
        config: || {
            let mut text = qwen3_5();
            text["vocab_size"] = json!(0);
            json!({ "text_config": text, "vision_config": { "hidden_size": 8 } })
        },
        names: &[WRAPPED, LAYER],
        layers: "model.language_model.layers.",
        ..DELTA
    },
    Case {
        file: "qwen35-Q4_K_M",
        model_type: "qwen3_5_text",
        config: || {
            let mut config = qwen3_5();
            let more = json!({ "hidden_size": 256, "intermediate_size": 256, "head_dim": 64,
                "linear_num_key_heads": 1, "linear_num_value_heads": 2,
                "linear_key_head_dim": 64, "linear_value_head_dim": 64,
                "mtp_num_hidden_layers": 1 });
            set(&mut config, more);
            config["rope_parameters"]["mrope_section"] = json!([6, 5, 5]);
            config
        },
        names: &[ENDS, LAYER, AHEAD],
        ahead: Some(4),
        ..DELTA
    },
    Case {
        file: "qwen35moe-F32",
        model_type: "qwen3_5_moe",
        config: || {
            let mut text = qwen3_5();
            text["vocab_size"] = json!(0);
            mixture(&mut text, 6, 24);
            json!({ "text_config": text })
        },
        names: &[WRAPPED, LAYER, FUSED],
        layers: "model.language_model.layers.",
        joined: &[("ffn_gate_exps", "ffn_up_exps", "gate_up", false)],
        ..DELTA
    },
    Case {
        file: "qwen35moe-Q8_0",
        model_type: "qwen3_5_moe_text",
        config: || {
            let mut config = qwen3_5();
            mixture(&mut config, 4, 64);
            let more = json!({ "hidden_size": 96, "intermediate_size": 128, "head_dim": 32,
                "num_attention_heads": 3, "num_key_value_heads": 1,
                "linear_num_value_heads": 2, "linear_key_head_dim": 32,
                "linear_value_head_dim": 32, "mtp_num_hidden_layers": 1 });
            set(&mut config, more);
            config["rope_parameters"]["mrope_section"] = json!([3, 3, 2]);
            config
        },
        names: &[ENDS, LAYER, EACH, AHEAD],
        ahead: Some(4),
        ..DELTA
    },
];

const DELTA: Case = Case {
    plus_one: true,
    plain_norm: "ssm_norm.weight",
    ..cases::LLAMA
};

fn qwen3_5() -> Value {
    json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": false, "attn_output_gate": true, "full_attention_interval": 4,
        "layer_types":
            ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 0,
        "rope_parameters": { "rope_type": "default", "rope_theta": 1e7, "mrope_interleaved": true,
            "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1] },
    })
}

fn mixture(config: &mut Value, experts: usize, width: usize) {
    let more = json!({ "num_experts": experts, "num_experts_per_tok": 2, "mlp_only_layers": [],
        "moe_intermediate_size": width, "shared_expert_intermediate_size": width });
    set(config, more);
}

fn set(config: &mut Value, more: Value) {
    let (Value::Object(all), Value::Object(more)) = (config, more) else {
        panic!("objects");
    };
    all.extend(more);
}

/// Replaces the file's tensors of delta nets by those of a folder.
pub(super) fn folders(case: &Case, file: &mut BTreeMap<String, Tensor>) {
    let config = (case.config)();
    let config = config.get("text_config").unwrap_or(&config);
    let count = |key: &str| config[key].as_u64().expect("a number") as usize;
    let (keys, key_dim) = (count("linear_num_key_heads"), count("linear_key_head_dim"));
    let width = count("linear_value_head_dim");
    let values = count("linear_num_value_heads") / keys;
    if case.model_type == "qwen3_next" {
        together(file, [keys, key_dim, key_dim, values * width]);
    } else {
        let before = 2 * keys * key_dim;
        for (name, t) in file.iter_mut() {
            let part = name.rsplit_once('.').map_or("", |n| n.0);
            match part.rsplit_once('.').map_or("", |n| n.1) {
                "attn_qkv" | "ssm_conv1d" => grouped(t, before, [values, keys], width),
                "attn_gate" => grouped(t, 0, [values, keys], width),
                "ssm_alpha" | "ssm_beta" | "ssm_dt" => grouped(t, 0, [values, keys], 1),
                "ssm_out" => {
                    *t = turned(t);
                    grouped(t, 0, [values, keys], width);
                    *t = turned(t);
                }
                _ if name.ends_with("ssm_a") => grouped(t, 0, [values, keys], 1),
                _ => {}
            }
        }
    }
    for (name, t) in file.iter_mut() {
        if name.ends_with("ssm_conv1d.weight") {
            t.shape.insert(1, 1);
        }
        if name.ends_with("ssm_a") {
            t.values.iter_mut().for_each(|v| *v = logarithm(*v));
        }
    }
}

/// Converts a decay to its logarithm, as folders have it.
pub(super) fn logarithm(v: f32) -> f32 {
    f64::from(-v).ln() as f32
}

/// Rounds a decay to one that folders can have, by way of its logarithm.
pub(super) fn rounded_decay(v: f32) -> f32 {
    -(f64::from(logarithm(v)).exp() as f32)
}

/// Groups heads that alternate: [a b a b] becomes [a a b b].
fn grouped(t: &mut Tensor, before: usize, [values, keys]: [usize; 2], width: usize) {
    let row = t.values.len() / t.shape[0];
    let old = t.values.split_off(before * row);
    let heads: Vec<&[f32]> = old.chunks(width * row).collect();
    assert_eq!(heads.len(), keys * values);
    for key in 0..keys {
        for value in 0..values {
            t.values.extend_from_slice(heads[value * keys + key]);
        }
    }
}

fn turned(t: &Tensor) -> Tensor {
    let (rows, columns) = (t.shape[0], t.shape[1]);
    let values = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c)));
    Tensor {
        shape: vec![columns, rows],
        values: values.map(|(r, c)| t.values[r * columns + c]).collect(),
    }
}

/// Makes one matrix of queries, keys, values and gates, grouped by key head.
fn together(file: &mut BTreeMap<String, Tensor>, [keys, query, key, values]: [usize; 4]) {
    for layer in 0..8 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let Some(qkv) = file.remove(&name("attn_qkv")) else {
            continue;
        };
        let gate = file.remove(&name("attn_gate")).expect("both");
        let row = qkv.shape[1];
        let all = [qkv.values, gate.values].concat();
        let mut heads = Vec::new();
        for head in 0..keys {
            let mut start = 0;
            for part in [query, key, values, values] {
                heads.extend_from_slice(&all[(start + head * part) * row..][..part * row]);
                start += keys * part;
            }
        }
        let shape = vec![heads.len() / row, row];
        file.insert(
            name("qkvz"),
            Tensor {
                shape,
                values: heads,
            },
        );
    }
}
