//! Files whose keys or tensors contradict each other: an error of one line that names what is
//! wrong.

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::Oracle;

/// A model of the shared folder, what is done to it, and what the message has to say.
type Case = (&'static str, fn(&mut Model), &'static str);

const CASES: &[Case] = &[
    (
        "cohere2",
        |m| m.set("cohere2.attention.sliding_window", 0u32),
        r#"key "cohere2.attention.sliding_window": expected at least 1, got 0"#,
    ),
    (
        "cohere2",
        |m| {
            let key = "cohere2.attention.sliding_window";
            m.keys.retain(|(name, _)| name != key);
        },
        r#"key "cohere2.attention.sliding_window": expected a number, got nothing"#,
    ),
    (
        "gemma3",
        |m| m.set("gemma3.attention.sliding_window_pattern", vec![1u32, 0]),
        "expected one value for each of 7 layers, got 2",
    ),
    (
        "gemma3",
        |m| m.set("gemma3.attention.sliding_window_pattern", vec![0.5f32; 7]),
        "expected an array of flags, got other values",
    ),
    (
        "gemma2",
        |m| m.set("gemma2.attn_logit_softcapping", 0f32),
        r#"key "gemma2.attn_logit_softcapping": expected more than 0, got 0"#,
    ),
    (
        "granite",
        |m| m.set("granite.logit_scale", 0f32),
        r#"key "granite.logit_scale": expected a number, got nothing"#,
    ),
    (
        "falcon",
        |m| m.set("falcon.rope.dimension_count", 8u32),
        r#"key "falcon.rope.dimension_count": expected an even count within the head width 16, got 8"#,
    ),
    (
        "hunyuan-dense",
        |m| m.set("hunyuan-dense.rope.scaling.alpha", 1e-9f32),
        r#"key "hunyuan-dense.rope.freq_base": expected more than 1"#,
    ),
    (
        "mistral3",
        |m| m.set("mistral3.rope.scaling.original_context_length", 0u32),
        r#"original_context_length": expected at least 1, got 0"#,
    ),
    (
        "glm4",
        |m| m.set("glm4.rope.dimension_sections", vec![2u32, 1, 1, 0]),
        r#"key "glm4.rope.dimension_sections": expected no sections"#,
    ),
    (
        "glm4",
        |m| m.set("glm4.nextn_predict_layers", 2u32),
        r#"key "glm4.nextn_predict_layers": expected fewer than the 2 layers, got 2"#,
    ),
    (
        "glm4",
        |m| m.remove("blk.1.post_ffw_norm.weight"),
        r#"tensor "blk.1.post_ffw_norm.weight": expected dims [64], got no such tensor"#,
    ),
    (
        "phi3",
        |m| m.remove("rope_factors_long.weight"),
        r#"tensor "rope_factors_long.weight": expected dims [8], got no such tensor"#,
    ),
    (
        "phi3",
        |m| m.set("phi3.feed_forward_length", 63u32),
        r#"tensor "blk.0.ffn_up.weight": expected dims [64, 126], got [64, 128]"#,
    ),
    (
        "olmo2",
        |m| m.remove("blk.0.attn_k_norm.weight"),
        r#"tensor "blk.0.attn_k_norm.weight": expected dims [32], got no such tensor"#,
    ),
    (
        "smollm3",
        |m| m.add_bias("rope_factors_long.weight", 8),
        r#"tensor "rope_factors_long.weight": expected only tensors that the smollm3 oracle applies"#,
    ),
];

#[test]
fn contradictions_are_named() {
    let Some(arch) = fixtures::shared("arch") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for (base, change, expected) in CASES {
        let base = arch.join("models").join(format!("{base}-F32.gguf"));
        let mut model = Model::read(base.to_str().unwrap());
        change(&mut model);
        model.write(&path);
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let message = Oracle::open(&gguf).unwrap_err().to_string();
        assert!(
            message.contains(expected),
            "expected {expected}\ngot {message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

/// Layers that predict further tokens have no part in the logits, and may hold anything.
#[test]
fn skipped_layers_change_nothing() {
    let Some(arch) = fixtures::shared("arch") else {
        return;
    };
    let base = arch.join("models/glm4-F32.gguf");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut model = Model::read(base.to_str().unwrap());
    model.set("glm4.block_count", 4u32);
    model.set("glm4.nextn_predict_layers", 2u32);
    model.add_bias("blk.2.nextn.enorm.weight", 3);
    model.add_bias("blk.3.anything", 5);
    model.write(&path);
    let logits = |path: &std::path::Path| {
        let gguf = Gguf::open(path, &OpenOptions::default()).unwrap();
        Oracle::open(&gguf).unwrap().forward(&[1, 2, 3]).unwrap()
    };
    assert_eq!(logits(&path), logits(&base));
}
