//! Odd files that llama.cpp accepts, and so do we.

use crate::support::{File, Load, Val};
use octavo_model::ScalingKind;

/// Adds norms of query and key heads to every layer.
fn with_head_norms(mut f: File, n_layer: usize) -> File {
    for l in 0..n_layer {
        for name in ["attn_q_norm", "attn_k_norm"] {
            f.add(&format!("blk.{l}.{name}.weight"), &[16]);
        }
    }
    f
}

#[test]
fn one_expert_is_the_feed_forward_block() {
    let mut f = with_head_norms(File::new("hunyuan-dense", 1), 1);
    for n in [0, 1] {
        f.set("expert_count", Val::U32(n));
        f.set("expert_used_count", Val::U32(n));
        let m = f.load().unwrap_or_else(|e| panic!("{e}"));
        assert!(m.hparams.experts.is_none() && m.warnings().is_empty());
    }
    f.set("expert_count", Val::U32(2));
    assert!(f.error().contains("hunyuan-dense.expert_count = 2"));
    let mut f = File::new("llama", 1);
    f.set("expert_count", Val::U32(1));
    assert!(f.error().contains("llama.expert_used_count"));
}

/// Keys that llama.cpp does not read in an architecture are ignored too, with a warning.
#[test]
fn keys_that_llama_cpp_ignores_are_ignored_with_a_warning() {
    let plain = File::new("llama", 1)
        .load()
        .unwrap_or_else(|e| panic!("{e}"));
    for key in [
        "attention.scale",
        "attn_logit_softcapping",
        "logit_scale",
        "residual_scale",
        "embedding_scale",
        "swiglu_clamp_exp",
        "rope.scaling.yarn_attn_factor",
    ] {
        let mut f = File::new("llama", 1);
        f.set(key, Val::F32(0.5));
        let m = f.load().unwrap_or_else(|e| panic!("{e}"));
        let warning = format!("mem.gguf: llama.{key} = 0.5 is not applied, as in llama.cpp");
        assert_eq!(m.warnings(), [warning]);
        assert_eq!(m.hparams.factors, plain.hparams.factors, "{key}");
        assert_eq!(m.hparams.layers, plain.hparams.layers, "{key}");
    }
    let mut f = File::new("llama", 1);
    f.set("hidden_activation", "gelu");
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.warnings()[0].contains("llama.hidden_activation = gelu"));
    let mut f = File::new("qwen3", 1);
    f.set("rope.dimension_sections", vec![8u32, 4, 4, 0]);
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.warnings()[0].contains("qwen3.rope.dimension_sections"));
    assert!(m.hparams.ropes[0].axes.is_empty());
}

/// Decoders may be bidirectional embedding models; others that say so are refused.
#[test]
fn decoders_that_see_all_have_no_logits() {
    let mut f = File::new("qwen3", 1);
    f.set("attention.causal", Val::Bool(false));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(!m.hparams.is_causal() && !m.graph.is_causal());
    assert!(m.weights.output.is_none());
    let mut f = File::new("mistral3", 1);
    f.set("attention.causal", Val::Bool(false));
    assert!(f.error().contains("mistral3.attention.causal = false"));
}

#[test]
fn longrope_is_read_where_llama_cpp_reads_it() {
    let mut f = File::new("llama", 1);
    f.set("rope.scaling.type", "longrope");
    for name in ["rope_factors_short.weight", "rope_factors_long.weight"] {
        f.add(name, &[8]);
    }
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    assert!(m.weights.rope_divisors.long.is_some());
    let mut f = File::new("qwen3", 1);
    f.set("rope.scaling.type", "longrope");
    assert!(f.error().contains("qwen3.rope.scaling.type = longrope"));
}

/// Returns a file of two layers and a multi-token prediction layer, which may have any tensors.
fn with_prediction() -> File {
    let mut f = with_head_norms(File::new("exaone4", 2), 2);
    for l in 0..2 {
        for name in ["attn_norm", "ffn_norm"] {
            f.remove(&format!("blk.{l}.{name}.weight"));
        }
        for name in ["post_attention_norm", "post_ffw_norm"] {
            f.add(&format!("blk.{l}.{name}.weight"), &[64]);
        }
    }
    f.set("block_count", Val::U32(3));
    f.set("nextn_predict_layers", Val::U32(1));
    f.add("blk.2.nextn.eh_proj.weight", &[128, 64]);
    f.add("blk.2.anything", &[3]);
    f
}

#[test]
fn numbers_for_each_layer_cover_those_that_predict() {
    const KEYS: [(&str, u32); 3] = [
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("feed_forward_length", 96),
    ];
    let m = with_prediction().load().unwrap_or_else(|e| panic!("{e}"));
    let layers = m.hparams.layers;
    assert_eq!(layers.len(), 2);
    for (key, n) in KEYS {
        let mut f = with_prediction();
        f.set(key, vec![n, n, 0]);
        let m = f.load().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(m.hparams.layers, layers, "{key}");
        f.set(key, vec![n, n]);
        let error = f.error();
        assert!(
            error.contains(key) && error.contains("one value per layer (3), got an array of 2"),
            "{error}"
        );
    }
}

#[test]
fn layers_that_predict_are_left_out() {
    assert!(with_prediction().load().is_ok());
    let mut f = with_prediction();
    f.set("nextn_predict_layers", Val::U32(3));
    assert!(f.error().contains("exaone4.nextn_predict_layers"));
    let mut f = with_prediction();
    f.unset("nextn_predict_layers");
    assert!(f.error().contains("missing tensor blk.2."));
}

#[test]
fn a_factor_of_nothing_scales_nothing() {
    let plain = File::new("llama", 1).load();
    let plain = plain.unwrap_or_else(|e| panic!("{e}")).ropes.remove(0);
    for kind in [None, Some("linear"), Some("yarn"), Some("none")] {
        for key in [None, Some("rope.scaling.factor"), Some("rope.scale_linear")] {
            let mut f = File::new("llama", 1);
            if let Some(kind) = kind {
                f.set("rope.scaling.type", kind);
            }
            if let Some(key) = key {
                f.set(key, Val::F32(0.0));
            }
            let mut m = f.load().unwrap_or_else(|e| panic!("{kind:?} {key:?}: {e}"));
            assert_eq!(m.hparams.ropes[0].factor.value, 1.0);
            let rope = m.ropes.remove(0);
            assert_eq!(rope.magnitude, 1.0, "{kind:?} {key:?}");
            for (got, expected) in rope.frequencies.iter().zip(&plain.frequencies) {
                // a ramp between two equal frequencies may round
                let close = (got - expected).abs() <= 1e-15 * expected;
                assert!(close, "{kind:?} {key:?}: {got} for {expected}");
            }
        }
    }
    let mut f = File::new("llama", 1);
    f.set("rope.scaling.type", "yarn");
    let h = f.load().unwrap_or_else(|e| panic!("{e}")).hparams;
    assert_eq!(h.ropes[0].scaling.value, ScalingKind::Yarn);
}

#[test]
fn logits_without_a_factor_are_as_they_are() {
    let mut f = File::new("command-r", 1);
    for name in ["blk.0.ffn_norm.weight", "output.weight"] {
        f.remove(name);
    }
    f.unset("attention.layer_norm_rms_epsilon");
    f.set("attention.layer_norm_epsilon", Val::F32(1e-5));
    let factor = |f: &File| f.load().map(|m| m.hparams.factors.logits);
    assert_eq!(factor(&f).unwrap_or_else(|e| panic!("{e}")), 1.0);
    for (value, expected) in [(0.0, 1.0), (0.25, 0.25)] {
        f.set("logit_scale", Val::F32(value));
        assert_eq!(factor(&f).unwrap_or_else(|e| panic!("{e}")), expected);
    }
}
