//! Settings and tensors of vision encoders that cannot be read are refused by name.

use super::*;

type Change = fn(&mut Value);

/// Types, the named key or tensor, the expectation, and the change that causes the error.
const SETTINGS: &[(&str, &str, &str, Change)] = &[
    ("gemma3", "vision_config.num_channels", "3", |c| {
        c["vision_config"]["num_channels"] = json!(1);
    }),
    ("gemma3", "vision_config.hidden_act", "got relu", |c| {
        c["vision_config"]["hidden_act"] = json!("relu");
    }),
    ("gemma3", "image_seq_length", "divisor of 11", |c| {
        c["vision_config"]["image_size"] = json!(88);
    }),
    ("gemma3", "encoder.layers.2", "a name that is none's", |c| {
        c["vision_config"]["num_hidden_layers"] = json!(2);
    }),
    ("idefics3", "scale_factor", "positive number", |c| {
        c["scale_factor"] = json!(0);
    }),
    ("idefics3", "vision_config.image_size", "list of two", |c| {
        c["vision_config"]["image_size"] = json!([64, 32]);
    }),
    ("smolvlm", "vision_config.patch_size", "\"8\"", |c| {
        c["vision_config"]["patch_size"] = json!("8");
    }),
    ("internvl", "downsample_ratio", "nothing", |c| {
        c["downsample_ratio"].take();
    }),
    ("internvl", "downsample_ratio", "got 2", |c| {
        c["downsample_ratio"] = json!(2.0);
    }),
    ("internvl", "norm_type", "rms_norm", |c| {
        c["vision_config"]["norm_type"] = json!("rms_norm");
    }),
    ("internvl", "vision_feature_layer", "-2", |c| {
        c["vision_feature_layer"] = json!(-2);
    }),
    ("internvl_chat", "select_layer", "-4", |c| {
        c["select_layer"] = json!(-4);
    }),
    ("internvl_chat", "ps_version", "v2", |c| {
        c["ps_version"] = json!("v1");
    }),
    ("mistral3", "vision_config.model_type", "pixtral", |c| {
        c["vision_config"]["model_type"] = json!("clip_vision_model");
    }),
    ("mistral3", "vision_config.rope_theta", "10000", |c| {
        c["vision_config"]["rope_theta"] = json!(5e5);
    }),
    ("mistral3", "vision_config.head_dim", "16", |c| {
        c["vision_config"]["head_dim"] = json!(32);
    }),
    ("mistral3", "attention.q_proj", "3 heads", |c| {
        c["vision_config"]["num_attention_heads"] = json!(3);
        c["vision_config"]["head_dim"].take();
    }),
];

#[test]
fn encoders_that_cannot_be_read_are_refused_by_name() {
    for (model_type, named, expected, change) in SETTINGS {
        let Some(both) = both_of(model_type) else {
            return;
        };
        both.change("config.json", change);
        let error = both.open().map(drop).expect_err(named).to_string();
        assert!(
            error.contains(named) && error.contains(expected),
            "{model_type}, {named}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    for (model_type, section, expected) in [
        ("idefics3", "text_config", "one of llama"),
        ("internvl_chat", "llm_config", "one of qwen2, qwen3"),
    ] {
        let Some(both) = both_of(model_type) else {
            return;
        };
        both.change("config.json", |c| {
            c[section]["model_type"] = json!("internlm2")
        });
        let error = hf::open(&both.folder, &OpenOptions::default());
        let error = error.map(drop).expect_err(model_type).to_string();
        let key = format!("{section}.model_type");
        assert!(error.contains(&key) && error.contains(expected), "{error}");
    }
}

/// The row that ends lines must be in the vocabulary, and in the embedding.
#[test]
fn the_end_of_lines_must_be_a_token() {
    let Some(both) = both_of("mistral3") else {
        return;
    };
    both.change("tokenizer.json", |c| {
        for token in c["added_tokens"].as_array_mut().expect("a list") {
            if token["content"] == "[IMG_BREAK]" {
                token["id"] = json!(277);
            }
        }
    });
    both.change("tokenizer_config.json", |c| {
        c["added_tokens_decoder"].take();
    });
    let error = both.open().map(drop).expect_err("no row").to_string();
    assert!(error.contains("[IMG_BREAK], number 277"), "{error}");
    both.change("tokenizer.json", |c| c["added_tokens"] = json!([]));
    let error = both.open().map(drop).expect_err("no token").to_string();
    assert!(
        error.contains("tokenizer.json") && error.contains("[IMG_BREAK]"),
        "{error}"
    );
}

/// Two tensors of one name, but for a prefix, are not both the encoder's.
#[test]
fn tensors_of_one_name_are_refused() {
    let Some(both) = both_of("internvl") else {
        return;
    };
    let (from, to) = ("encoder.layer.0.lambda_1", "encoder.layer.0.lambda_2");
    rename(&both.folder, |name| match name {
        name if name.ends_with(from) => Some(format!("vision_tower.{to}")),
        name => Some(name.to_owned()),
    });
    let error = both.open().map(drop).expect_err("two").to_string();
    assert!(
        error.contains("one tensor only") && error.contains(to),
        "{error}"
    );
}
