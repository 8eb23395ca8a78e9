//! Text models of vision-language models: settings and names, for the small files.

use super::cases::{LLAMA, with};
use super::*;

const PREFIXED: &str = "token_embd=model.language_model.embed_tokens \
    output_norm=model.language_model.norm output=lm_head attn_norm=input_layernorm \
    attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj \
    attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm attn_k_norm=self_attn.k_norm \
    ffn_norm=post_attention_layernorm ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj \
    ffn_down=mlp.down_proj ffn_gate_inp=mlp.gate gate_up=-mlp.experts.gate_up_proj \
    ffn_down_exps=-mlp.experts.down_proj";

const QWEN3: Case = Case {
    file: "../../vision/vl-a-text-F32",
    model_type: "qwen3_vl",
    config: qwen3,
    names: &[PREFIXED],
    layers: "model.language_model.layers.",
    ..LLAMA
};

pub(super) const CASES: &[Case] = &[
    QWEN3,
    Case {
        file: "qwen3moe",
        made: Some(qwen3vlmoe),
        model_type: "qwen3_vl_moe",
        config: || {
            let text = with(
                json!({ "rms_norm_eps": 1e-6, "rope_theta": 1e6, "head_dim": 16,
                "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "rope_parameters": { "rope_type": "default", "mrope_section": [4, 2, 2] } }),
            );
            json!({ "text_config": text,
                "vision_config": { "deepstack_visual_indexes": [3] } })
        },
        joined: &[("ffn_gate_exps", "ffn_up_exps", "gate_up", false)],
        ..QWEN3
    },
    Case {
        model_type: "qwen2_vl",
        ..QWEN25
    },
    QWEN25,
];

const QWEN25: Case = Case {
    file: "../../vision/q25/vl-q25-text-F16",
    model_type: "qwen2_5_vl",
    config: qwen25,
    ..LLAMA
};

/// Returns the settings that both small text models have in common.
fn small() -> Value {
    with(
        json!({ "hidden_size": 256, "intermediate_size": 256, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true }),
    )
}

fn set(mut config: Value, key: &str, value: Value) -> Value {
    config[key] = value;
    config
}

fn qwen3() -> Value {
    let text = set(small(), "num_hidden_layers", json!(3));
    let text = set(text, "head_dim", json!(64));
    let scaling = json!({ "rope_type": "default", "mrope_section": [12, 10, 10],
        "mrope_interleaved": true });
    let text = set(text, "rope_scaling", scaling);
    json!({ "text_config": text, "vision_config": towers::qwen3() })
}

fn qwen25() -> Value {
    let all = set(small(), "num_hidden_layers", json!(1));
    let scaling = json!({ "type": "mrope", "mrope_section": [8, 12, 12] });
    let all = set(all, "rope_scaling", scaling);
    set(all, "vision_config", towers::qwen25())
}

/// Makes the small mixture, with heads rotated by the axes of images.
fn qwen3vlmoe(mixture: &Gguf) -> Gguf {
    let mut writer = Writer::new();
    for (key, value) in mixture.keys() {
        writer.set(&key.replace("qwen3moe.", "qwen3vlmoe."), value);
    }
    writer
        .set("general.architecture", "qwen3vlmoe")
        .set("qwen3vlmoe.rope.dimension_sections", vec![4, 2, 2, 0])
        .set("qwen3vlmoe.n_deepstack_layers", 1u32);
    for t in mixture.tensors() {
        writer.tensor(&t.name, &t.dims, t.ty, mixture.data(t).to_vec());
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("written");
    Gguf::from_bytes(bytes, "qwen3vlmoe", &OpenOptions::default()).expect("sound")
}
