//! Gemma 4, with per-layer embeddings, and with experts beside the dense feed-forward block.

use super::*;

const LAYER: &str = "attn_norm=input_layernorm attn_q=self_attn.q_proj attn_k=self_attn.k_proj \
    attn_v=self_attn.v_proj attn_output=self_attn.o_proj attn_q_norm=self_attn.q_norm \
    attn_k_norm=self_attn.k_norm post_attention_norm=post_attention_layernorm \
    layer_output_scale=-layer_scalar ffn_norm=pre_feedforward_layernorm ffn_gate=mlp.gate_proj \
    ffn_up=mlp.up_proj ffn_down=mlp.down_proj post_ffw_norm=post_feedforward_layernorm \
    inp_gate=per_layer_input_gate proj=per_layer_projection post_norm=post_per_layer_input_norm";
const EXPERTS: &str = "ffn_gate_inp=router.proj gate_up=-experts.gate_up_proj \
    ffn_down_exps=-experts.down_proj pre_ffw_norm_2=pre_feedforward_layernorm_2 \
    post_ffw_norm_1=post_feedforward_layernorm_1 post_ffw_norm_2=post_feedforward_layernorm_2";
const ENDS: &str = "token_embd=model.language_model.embed_tokens \
    output_norm=model.language_model.norm \
    per_layer_token_embd=model.language_model.embed_tokens_per_layer \
    per_layer_model_proj=model.language_model.per_layer_model_projection \
    per_layer_proj_norm=model.language_model.per_layer_projection_norm";
const TEXT_ENDS: &str = "token_embd=model.embed_tokens output_norm=model.norm";

pub(super) const CASES: &[Case] = &[
    Case {
        file: "gemma4-F32",
        model_type: "gemma4",
        config: || {
            json!({ "text_config": {
                "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 5,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "global_head_dim": 32, "num_global_key_value_heads": 1,
                "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
                "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 24,
                "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 4.0,
                "vocab_size": 0, "use_bidirectional_attention": null,
                "layer_types": types([true, true, false, true, true]), "rope_parameters": ropes(),
            }, "vision_config": { "hidden_size": 8 } })
        },
        names: &[ENDS, LAYER],
        layers: "model.language_model.layers.",
        settings: &["rope_freqs.weight"],
        ..cases::LLAMA
    },
    Case {
        file: "gemma4-Q4_0",
        model_type: "gemma4_text",
        config: || {
            json!({
                "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 4,
                "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32,
                "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
                "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 20,
                "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 4.0,
                "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
                "moe_intermediate_size": 64, "use_bidirectional_attention": "vision",
                "layer_types": types([true, true, false, true]), "rope_parameters": ropes(),
            })
        },
        names: &[TEXT_ENDS, LAYER, EXPERTS],
        joined: &[("ffn_gate_exps", "ffn_up_exps", "gate_up", false)],
        settings: &["rope_freqs.weight"],
        ..cases::LLAMA
    },
];

fn types<const N: usize>(windowed: [bool; N]) -> Vec<&'static str> {
    let kinds = windowed.map(|w| {
        if w {
            "sliding_attention"
        } else {
            "full_attention"
        }
    });
    kinds.to_vec()
}

fn ropes() -> Value {
    json!({
        "full_attention": { "rope_type": "proportional", "rope_theta": 1e6,
            "partial_rotary_factor": 0.25 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 10000.0 },
    })
}

/// Features that the small files lack: wider feed-forward blocks where keys and values are another
/// layer's, factors on experts, and special tokens that are visible.
#[test]
fn what_published_folders_say_more_is_read() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let dir = TempDir::new().expect("a folder");
    let case = case("gemma4");
    let model = case.model(&models);
    let path = folder(case, &model, &dir);
    let change = |name: &str, change: &dyn Fn(&mut Value)| {
        let file = path.join(name);
        let mut json = serde_json::from_slice(&std::fs::read(&file).expect("there")).expect("JSON");
        change(&mut json);
        std::fs::write(&file, json.to_string()).expect("written");
    };
    change("config.json", &|config| {
        config["text_config"]["use_double_wide_mlp"] = json!(true);
    });
    change("generation_config.json", &|generation| {
        generation["suppress_tokens"] = json!([7, 258, u32::MAX]);
    });
    let visible = json!({ "id": 299, "content": "<|channel>", "special": true });
    change("tokenizer.json", &|tokenizer| {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("tokens");
        vocab.retain(|_, id| *id != 299);
        tokenizer["model"]["merges"]
            .as_array_mut()
            .expect("pairs")
            .clear();
        let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
        added.push(visible.clone());
    });
    let mut tensors = inverse::tensors(case, numbers(&model));
    let scales = vec![0.5, 1.0, 1.5, 2.0];
    tensors.insert(
        "model.language_model.layers.1.router.per_expert_scale".to_owned(),
        Tensor {
            shape: vec![4],
            values: scales.clone(),
        },
    );
    save(&tensors, &path);
    let view = hf::open(&path, &OpenOptions::default()).expect("read");
    let ints = |key: &str| -> Vec<i32> {
        let array = view.array(key).expect("an array").expect("there");
        array.i32s().expect("of i32").collect()
    };
    assert_eq!(ints("gemma4.feed_forward_length"), [64, 64, 64, 128, 128]);
    assert_eq!(ints("tokenizer.ggml.token_type")[299], 4, "user-defined");
    assert_eq!(ints("tokenizer.ggml.suppress_tokens"), [7, 258]);
    let text = |key: &str| view.str(key).expect("text");
    assert_eq!(text("tokenizer.ggml.model"), Some("gemma4"));
    let scale = view.tensor("blk.1.ffn_down_exps.scale").expect("there");
    assert_eq!((&scale.dims[..], scale.ty), (&[4][..], TensorType::F32));
    assert!(view.data(scale) == bytes(&scales));
}
