//! Settings that a row cannot express are refused by name.

use super::*;

/// Opens the folder of a case with other settings; returns the error.
fn refusal(model_type: &str, change: fn(&mut Value)) -> Option<String> {
    let models = shared("arch/models")?;
    let case = case(model_type);
    let dir = TempDir::new().expect("a folder");
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let path = folder.join("config.json");
    let text = std::fs::read(&path).expect("there");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    std::fs::write(&path, config.to_string()).expect("written");
    let opened = hf::open(&folder, &OpenOptions::default());
    let error = opened.map(drop).expect_err(model_type).to_string();
    assert!(!error.contains('\n'), "{error}");
    Some(error)
}

type Change = fn(&mut Value);

/// Types, parts of the error, and the change that causes it.
const SETTINGS: &[(&str, &[&str], Change)] = &[
    ("smollm3", &["no_rope_layers", "layer 0"], |c| {
        c["no_rope_layers"] = json!([0, 1, 1, 1, 1]);
    }),
    ("olmo2", &["partial_rotary_factor", "got 0.5"], |c| {
        c["partial_rotary_factor"] = json!(0.5);
    }),
    ("gemma2", &["query_pre_attn_scalar", "or 16", "144"], |c| {
        c["query_pre_attn_scalar"] = json!(144);
    }),
    ("gemma3_text", &["layer_types", "layer 0"], |c| {
        c["layer_types"] = json!(["full_attention"]);
    }),
    ("falcon", &["alibi", "false", "true"], |c| {
        c["alibi"] = json!(true)
    }),
    ("cohere", &["use_qk_norm"], |c| {
        c["use_qk_norm"] = json!(true)
    }),
    ("cohere2", &["sliding_window_pattern", "4", "3"], |c| {
        c["sliding_window_pattern"] = json!(3);
    }),
    ("nemotron", &["hidden_act", "relu2", "silu"], |c| {
        c["hidden_act"] = json!("silu")
    }),
    ("granite", &["logits_scaling"], |c| {
        c["logits_scaling"] = Value::Null
    }),
    ("glm4", &["quantization_config", "unquantized"], |c| {
        c["model_type"] = json!("glm4_moe");
        c["quantization_config"] = json!({ "quant_method": "awq" });
    }),
    (
        "nemotron_h",
        &["hybrid_override_pattern", "4 layers"],
        |c| {
            c["hybrid_override_pattern"] = json!("M*-");
        },
    ),
    (
        "nemotron_h",
        &["hybrid_override_pattern", "no experts"],
        |c| {
            c["hybrid_override_pattern"] = json!("M*EM");
        },
    ),
    ("nemotron_h", &["mlp_hidden_act", "relu2"], |c| {
        c["mlp_hidden_act"] = json!("silu");
    }),
    ("glm_moe_dsa", &["indexer_rope_interleave", "true"], |c| {
        c["indexer_rope_interleave"] = json!(false);
    }),
    ("glm_moe_dsa", &["indexer_types", "each layer"], |c| {
        c["indexer_types"] = json!(["full", "other", "full"]);
    }),
    ("deepseek_v32", &["index_topk"], |c| {
        c["index_topk"] = Value::Null
    }),
    ("phi3", &["long_factor", "8 positive numbers"], |c| {
        c["rope_scaling"]["long_factor"] = json!([1.0]);
    }),
    (
        "minimax_m2",
        &["qk_norm_type", "per_layer", "per_head"],
        |c| {
            c["qk_norm_type"] = json!("per_head");
        },
    ),
    ("bailing_moe", &["model_type", "one of"], |c| {
        c["architectures"] = json!(["BailingMoeForCausalLM"]);
    }),
    ("dots1", &["scoring_func", "noaux_tc", "softmax"], |c| {
        c["scoring_func"] = json!("softmax");
    }),
    ("olmoe", &["clip_qkv", "nothing", "8"], |c| {
        c["clip_qkv"] = json!(8.0);
    }),
    ("qwen3_moe", &["norm_topk_prob", "true", "false"], |c| {
        c["norm_topk_prob"] = json!(false);
    }),
    ("mixtral", &["sliding_window", "16"], |c| {
        c["sliding_window"] = json!(16)
    }),
    ("gpt_oss", &["swiglu_limit", "7", "5"], |c| {
        c["swiglu_limit"] = json!(5)
    }),
    ("ernie4_5_moe", &["moe_layer_end_index"], |c| {
        c["moe_layer_end_index"] = json!(0)
    }),
    (
        "qwen3_5_text",
        &["layer_types", "every 4th", "layer 1"],
        |c| {
            c["layer_types"][1] = json!("full_attention");
        },
    ),
    ("qwen3_5_text", &["attn_output_gate", "true"], |c| {
        c["attn_output_gate"] = json!(false);
    }),
    (
        "qwen3_next",
        &["linear_num_value_heads", "multiple", "3"],
        |c| {
            c["linear_num_value_heads"] = json!(3);
        },
    ),
    (
        "gemma4_text",
        &["layer_types", "each layer", "nothing"],
        |c| {
            c["layer_types"] = Value::Null;
        },
    ),
    (
        "gemma4_text",
        &["layer_types", "each of 4 layers", "got 1"],
        |c| {
            c["layer_types"] = json!(["full_attention"]);
        },
    ),
    (
        "gemma4_text",
        &["use_bidirectional_attention", "vision", "all"],
        |c| {
            c["use_bidirectional_attention"] = json!("all");
        },
    ),
    (
        "gemma4_text",
        &["partial_rotary_factor", "a part of 1", "got 2"],
        |c| {
            c["rope_parameters"]["full_attention"]["partial_rotary_factor"] = json!(2);
        },
    ),
    ("lfm2", &["layer_types", "each layer", "nothing"], |c| {
        c["layer_types"] = Value::Null;
    }),
    ("lfm2", &["layer_types", "each of 4 layers", "got 1"], |c| {
        c["layer_types"] = json!(["conv"]);
    }),
    ("lfm2_moe", &["routed_scaling_factor", "or 1", "2"], |c| {
        c["routed_scaling_factor"] = json!(2);
    }),
    ("mamba2", &["time_step_limit", "0 and infinity"], |c| {
        c["time_step_limit"] = json!([0.0, 0.1]);
    }),
    ("mamba2", &["n_groups", "nothing"], |c| {
        c["n_groups"] = Value::Null;
    }),
    ("falcon_h1", &["mamba_norm_before_gate", "false"], |c| {
        c["mamba_rms_norm"] = json!(true);
    }),
    ("falcon_h1", &["mamba_d_head", "or 8", "16"], |c| {
        c["mamba_d_ssm"] = json!(64);
    }),
    ("falcon_h1", &["ssm_multipliers", "at least 2"], |c| {
        c["ssm_multipliers"] = json!([1.0]);
    }),
    (
        "granitemoehybrid",
        &["position_embedding_type", "nope", "rope"],
        |c| {
            c["position_embedding_type"] = json!("rope");
        },
    ),
    (
        "deepseek_v3",
        &["rope_scaling.mscale", "or 1", "0.7"],
        |c| {
            c["rope_scaling"]["mscale"] = json!(0.7);
        },
    ),
    ("deepseek_v3", &["scoring_func", "sigmoid", "tanh"], |c| {
        c["scoring_func"] = json!("tanh");
    }),
    ("bert", &["position_embedding_type", "absolute"], |c| {
        c["position_embedding_type"] = json!("relative_key");
    }),
    ("nomic_bert", &["prenorm", "false", "true"], |c| {
        c["prenorm"] = json!(true);
    }),
    ("ministral3", &["rope_parameters.mscale"], |c| {
        c["rope_parameters"]["mscale"] = json!(0.7);
    }),
];

#[test]
fn settings_that_nothing_computes_are_refused_by_name() {
    for (model_type, says, change) in SETTINGS {
        let Some(error) = refusal(model_type, *change) else {
            return;
        };
        for part in says.iter().chain(&["config.json"]) {
            assert!(error.contains(part), "{error:?} does not say {part:?}");
        }
    }
}

#[test]
fn an_expert_that_is_missing_is_named() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case("mixtral");
    let dir = TempDir::new().expect("a folder");
    let model = open(&models.join("mixtral-F32.gguf"));
    let folder = folder(case, &model, &dir);
    let name = "model.layers.1.block_sparse_moe.experts.2.w3.weight";
    let mut tensors = inverse::tensors(case, numbers(&model));
    let removed = tensors.remove(name).expect("there");
    save(&tensors, &folder);
    let refused = || {
        let opened = hf::open(&folder, &OpenOptions::default());
        opened.map(drop).expect_err("wrong").to_string()
    };
    let error = refused();
    assert!(
        error.contains(name) && error.contains("every expert"),
        "{error}"
    );
    let shape = vec![removed.shape[1], removed.shape[0]];
    tensors.insert(name.to_owned(), Tensor { shape, ..removed });
    save(&tensors, &folder);
    let error = refused();
    assert!(
        error.contains("w3") && error.contains("[24, 64]"),
        "{error}"
    );
}

/// HunYuan scales positions by another base: 10000 times 1000 to the power 16 / 14.
#[test]
fn alpha_is_another_base() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = Case {
        config: || {
            let mut config = (CASES[0].config)();
            config["num_hidden_layers"] = json!(2);
            config["head_dim"] = json!(16);
            config["rope_theta"] = json!(10000.0);
            config["rope_scaling"] = json!({ "type": "dynamic", "alpha": 1000.0 });
            config
        },
        ..*case("hunyuan_v1_dense")
    };
    let dir = TempDir::new().expect("a folder");
    let folder = folder(&case, &open(&models.join("hunyuan-dense-F32.gguf")), &dir);
    let view = hf::open(&folder, &OpenOptions::default()).expect("read");
    let number = |key: &str| {
        view.f32(&format!("hunyuan-dense.rope.{key}"))
            .expect("a number")
    };
    let base = number("freq_base").expect("there");
    assert!((base / 26_826_958.0 - 1.0).abs() < 1e-6, "{base}");
    hf::check(&view).expect("a model");
}

/// Errors name the head sizes of delta nets that the settings give.
#[test]
fn delta_nets_of_other_shapes_are_named() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case("qwen3_5");
    let dir = TempDir::new().expect("a folder");
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let whole = inverse::tensors(case, numbers(&model));
    for (part, shape, expected) in [
        ("in_proj_qkv.weight", [64, 128], "128 rows"),
        ("in_proj_a.weight", [8, 32], "4 rows"),
        ("out_proj.weight", [32, 128], "64 columns"),
    ] {
        let name = format!("model.language_model.layers.1.linear_attn.{part}");
        let mut tensors = whole.clone();
        tensors.get_mut(&name).expect("there").shape = shape.to_vec();
        save(&tensors, &folder);
        let opened = hf::open(&folder, &OpenOptions::default());
        let error = opened.map(drop).expect_err(part).to_string();
        let got = format!("{shape:?}");
        for says in [part, expected, &got, "model.safetensors"] {
            assert!(error.contains(says), "{error:?} does not say {says:?}");
        }
    }
}

/// A tensor is not mistaken for another one of the same name in a folder where the language model
/// is not nested.
#[test]
fn tensors_with_one_name_are_refused() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case("qwen3_5");
    let dir = TempDir::new().expect("a folder");
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let mut tensors = inverse::tensors(case, numbers(&model));
    let norm = tensors["model.language_model.norm.weight"].clone();
    tensors.insert("model.norm.weight".to_owned(), norm);
    save(&tensors, &folder);
    let opened = hf::open(&folder, &OpenOptions::default());
    let error = opened.map(drop).expect_err("two").to_string();
    assert!(
        error.contains("one tensor only that is model.norm.weight"),
        "{error}"
    );
}
