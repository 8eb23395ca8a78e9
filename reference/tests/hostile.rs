//! Files whose keys or tensors contradict each other give a one-line error that names the fault.

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, Writer};
use octavo_fixtures as fixtures;
use octavo_reference::Oracle;

/// A model of the shared folder, the change made to it, and the part the message must contain.
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
        "gemma4",
        |m| m.set("gemma4.attention.shared_kv_layers", 4u32),
        r#"shared_kv_layers": expected at least 2 of the 5 layers left, got 4"#,
    ),
    (
        "gemma4",
        |m| m.set("gemma4.attention.shared_kv_layers", 1u32),
        r#"shared_kv_layers": expected layer 4 with a window and heads as layer 2 has, got 1"#,
    ),
    (
        "gemma4",
        |m| m.set("gemma4.embedding_length_per_layer_input", u32::MAX),
        r#"embedding_length_per_layer_input": expected at most 1048576 values for all layers"#,
    ),
    (
        "gemma4",
        |m| m.remove("blk.2.inp_gate.weight"),
        r#"tensor "blk.2.inp_gate.weight": expected dims [64, 16], got no such tensor"#,
    ),
    (
        "gemma4",
        |m| m.set("gemma4.attention.sliding_window_pattern", 3u32),
        "key \"gemma4.attention.sliding_window_pattern\": \
         expected an array of flags, got no array",
    ),
    (
        "gemma4",
        |m| m.set("gemma4.expert_count", 4u32),
        r#"key "gemma4.expert_used_count": expected a number, got nothing"#,
    ),
    (
        "bert",
        |m| m.set("bert.attention.causal", true),
        r#"key "bert.attention.causal": expected false, got true"#,
    ),
    (
        "bert",
        |m| m.set("tokenizer.ggml.token_type_count", 0u32),
        r#"key "tokenizer.ggml.token_type_count": expected at least 1, got nothing"#,
    ),
    (
        "bert",
        |m| m.remove("position_embd.weight"),
        r#"tensor "position_embd.weight": expected dims [64, 512], got no such tensor"#,
    ),
    (
        "bert",
        |m| m.remove("blk.1.layer_output_norm.weight"),
        r#"tensor "blk.1.layer_output_norm.weight": expected dims [64], got no such tensor"#,
    ),
    (
        "nomic-bert",
        |m| m.add_bias("position_embd.weight", 64),
        "tensor \"position_embd.weight\": \
         expected only tensors that the nomic-bert oracle applies",
    ),
    (
        "gemma-embedding",
        |m| {
            m.set("gemma-embedding.dense_2_feat_out", 100u32);
            m.set("gemma-embedding.dense_2_feat_in", 64u32);
            m.set("gemma-embedding.dense_3_feat_in", 101u32);
        },
        r#"key "gemma-embedding.dense_3_feat_in": expected 100, got 101"#,
    ),
    (
        "granite",
        |m| m.set("granite.logit_scale", 0f32),
        r#"key "granite.logit_scale": expected a number, got nothing"#,
    ),
    (
        "falcon",
        |m| m.set("falcon.rope.dimension_count", 8u32),
        "key \"falcon.rope.dimension_count\": \
         expected an even count within the head width 16, got 8",
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
        "tensor \"rope_factors_long.weight\": \
         expected only tensors that the smollm3 oracle applies",
    ),
    (
        "qwen3moe",
        |m| m.set("qwen3moe.expert_count", 0u32),
        r#"key "qwen3moe.expert_count": expected at least 1, got 0"#,
    ),
    (
        "mixtral",
        |m| m.set("llama.expert_count", 0u32),
        r#"tensor "blk.0.ffn_gate.weight": expected dims [64, 24], got no such tensor"#,
    ),
    (
        "mixtral",
        |m| m.set("llama.expert_count", u32::MAX),
        r#"tensor "blk.0.ffn_gate_inp.weight": expected dims [64, 4294967295], got [64, 6]"#,
    ),
    (
        "mixtral",
        |m| m.set("llama.expert_used_count", 7u32),
        r#"key "llama.expert_used_count": expected at most the 6 experts there are, got 7"#,
    ),
    (
        "mixtral",
        |m| m.set("llama.expert_used_count", 0u32),
        r#"key "llama.expert_used_count": expected at least 1, got 0"#,
    ),
    (
        "mixtral",
        |m| m.set("llama.expert_group_count", 4u32),
        r#"key "llama.expert_group_count": expected a divisor of the 6 experts, got 4"#,
    ),
    (
        "mixtral",
        |m| {
            m.set("llama.expert_group_count", 3u32);
            m.set("llama.expert_group_used_count", 4u32);
        },
        r#"key "llama.expert_group_used_count": expected at most the 3 groups there are, got 4"#,
    ),
    (
        "qwen3moe",
        |m| m.set("qwen3moe.expert_feed_forward_length", u32::MAX),
        r#""blk.0.ffn_gate_exps.weight": expected dims [64, 4294967295, 6], got [64, 24, 6]"#,
    ),
    (
        "qwen2moe",
        |m| m.remove("blk.1.ffn_gate_inp_shexp.weight"),
        r#"tensor "blk.1.ffn_gate_inp_shexp.weight": expected dims [64, 1], got no such tensor"#,
    ),
    (
        "glm4moe",
        |m| m.set("glm4moe.expert_gating_func", 4u32),
        r#"key "glm4moe.expert_gating_func": expected 0 to 3, got 4"#,
    ),
    (
        "glm4moe",
        |m| m.remove("blk.1.exp_probs_b.bias"),
        r#"tensor "blk.1.exp_probs_b.bias": expected dims [6], got no such tensor"#,
    ),
    (
        "glm4moe",
        |m| m.set("glm4moe.expert_shared_count", u32::MAX),
        r#"tensor "blk.1.ffn_gate_shexp.weight": expected dims [64, "#,
    ),
    (
        "glm4moe",
        |m| m.set("glm4moe.leading_dense_block_count", u32::MAX),
        r#"tensor "blk.1.ffn_gate.weight": expected dims [64, 64], got no such tensor"#,
    ),
    (
        "ernie4_5-moe",
        |m| m.set("ernie4_5-moe.interleave_moe_layer_step", 0u32),
        r#"key "ernie4_5-moe.interleave_moe_layer_step": expected at least 1, got 0"#,
    ),
    (
        "deepseek2",
        |m| m.set("deepseek2.rope.dimension_count", 24u32),
        r#"key "deepseek2.rope.dimension_count": expected fewer than the 24 of a head, got 24"#,
    ),
    (
        "deepseek2",
        |m| m.set("deepseek2.attention.kv_lora_rank", u32::MAX),
        r#"kv_lora_rank": expected heads of at most 1048576 elements together, got"#,
    ),
    (
        "deepseek2",
        |m| m.set("deepseek2.attention.value_length_mla", 25u32),
        r#"tensor "blk.0.attn_v_b.weight": expected dims [32, 25, 4], got [32, 24, 4]"#,
    ),
    (
        "deepseek2",
        |m| m.remove("blk.1.attn_k_b.weight"),
        r#"tensor "blk.1.attn_k_b.weight": expected dims [16, 32, 4], got no such tensor"#,
    ),
    (
        "deepseek2-lite",
        |m| m.remove("blk.3.attn_kv_b.weight"),
        r#"tensor "blk.3.attn_kv_b.weight": expected dims [32, 80], got no such tensor"#,
    ),
    (
        "qwen35",
        |m| m.set("qwen35.ssm.state_size", 1u32 << 31),
        r#"key "qwen35.ssm.inner_size": expected 4 heads of 2147483648 values, got 64"#,
    ),
    (
        "qwen35",
        |m| {
            m.set("qwen35.ssm.state_size", 1u32 << 18);
            m.set("qwen35.ssm.inner_size", 1u32 << 20);
        },
        r#"key "qwen35.ssm.state_size": expected a state of at most 16777216 values, got 262144"#,
    ),
    (
        "qwen35",
        |m| m.set("qwen35.ssm.group_count", 3u32),
        r#"key "qwen35.ssm.group_count": expected a divisor of the 4 heads, got 3"#,
    ),
    (
        "qwen35",
        |m| m.set("qwen35.rope.dimension_sections", vec![0u32; 4]),
        r#"dimension_sections": expected four counts of 1 to 1048576 pairs together, got others"#,
    ),
    (
        "qwen35",
        |m| m.set("qwen35.full_attention_interval", 2u32),
        r#"tensor "blk.1.attn_q.weight": expected dims [64, 128], got no such tensor"#,
    ),
    (
        "qwen35moe",
        |m| m.remove("blk.1.ffn_up_exps.weight"),
        r#"tensor "blk.1.ffn_up_exps.weight": expected dims [64, 24, 6], got no such tensor"#,
    ),
    (
        "qwen3next",
        |m| m.remove("blk.1.ssm_ba.weight"),
        r#"tensor "blk.1.ssm_alpha.weight": expected dims [64, 4], got no such tensor"#,
    ),
    (
        "lfm2",
        |m| m.set("lfm2.shortconv.l_cache", u32::MAX),
        r#"key "lfm2.shortconv.l_cache": expected at most 1048576 rows, got 4294967295"#,
    ),
    (
        "lfm2",
        |m| m.set("lfm2.attention.head_count", 0u32),
        r#"key "lfm2.attention.head_count_kv": expected a divisor of the 0 query heads"#,
    ),
    (
        "lfm2moe",
        |m| m.remove("blk.2.ffn_down_exps.weight"),
        r#"tensor "blk.2.ffn_down_exps.weight": expected dims [24, 64, 6], got no such tensor"#,
    ),
    (
        "mamba2",
        |m| m.set("mamba2.ssm.time_step_rank", 7u32),
        r#"key "mamba2.ssm.inner_size": expected 7 heads of equal width, got 128"#,
    ),
    (
        "mamba2",
        |m| m.set("mamba2.ssm.state_size", u32::MAX),
        r#"key "mamba2.ssm.group_count": expected rows of at most 1048576 values, got 4294967295"#,
    ),
    (
        "mamba2",
        |m| m.remove("blk.1.ssm_norm.weight"),
        r#"tensor "blk.1.ssm_norm.weight": expected dims [128, 1], got no such tensor"#,
    ),
    (
        "falcon-h1",
        |m| m.remove("blk.1.ffn_norm"),
        r#"tensor "blk.1.ffn_norm": expected dims [64], got no such tensor"#,
    ),
    (
        "gpt-oss",
        |m| m.remove("blk.2.attn_sinks.weight"),
        r#"tensor "blk.2.attn_sinks.weight": expected dims [4], got no such tensor"#,
    ),
    (
        "gpt-oss",
        |m| {
            m.remove("blk.0.ffn_up_exps.bias");
            m.add_bias("blk.0.ffn_up_exps.bias", 24);
        },
        r#"tensor "blk.0.ffn_up_exps.bias": expected dims [24, 6], got [24]"#,
    ),
    (
        "command-r",
        |m| {
            m.set("command-r.block_count", 64u32);
            for il in 2..64 {
                m.copy_layer(0, il);
            }
        },
        r#"tensor "blk.0.attn_q_norm.weight": expected dims [16, 4], got no such tensor"#,
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

/// Multi-token prediction layers do not affect the logits, and may have any contents.
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

/// Models that together contain every kind of block.
const MODELS: &[&str] = &[
    "olmo2",
    "phi3",
    "mistral3",
    "minicpm",
    "hunyuan-dense",
    "phi2",
    "gemma2",
    "gemma3",
    "gemma4",
    "cohere2",
    "mixtral",
    "qwen2moe",
    "glm4moe",
    "ernie4_5-moe",
    "gpt-oss",
    "deepseek2",
    "deepseek2-lite",
    "qwen35moe",
    "qwen3next",
    "lfm2moe",
    "mamba2",
    "falcon-h1",
    "granitehybrid",
];

/// Numbers that replace each number of a file.
pub(crate) const WHOLE: &[u32] = &[0, 1, 2, 3, 5, 1 << 20, u32::MAX];
pub(crate) const REAL: &[f32] = &[0.0, -1.0, 1e-30, 3.0, 1e30, f32::INFINITY, f32::NAN];

/// Any replaced number gives an error or logits, but no panic.
#[test]
fn no_single_number_is_fatal() {
    let Some(arch) = fixtures::shared("arch") else {
        return;
    };
    let (mut refused, mut computed) = (0, 0);
    for name in MODELS {
        let path = arch.join(format!("models/{name}-F32.gguf"));
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let keys = gguf
            .keys()
            .filter(|(key, _)| !key.starts_with("tokenizer."));
        let keys: Vec<(String, OwnedValue)> = keys
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        for at in 0..keys.len() {
            let wrong: Vec<OwnedValue> = match keys[at].1 {
                OwnedValue::U32(_) => WHOLE.iter().map(|&v| v.into()).collect(),
                OwnedValue::F32(_) => REAL.iter().map(|&v| v.into()).collect(),
                _ => continue,
            };
            for value in wrong {
                let mut writer = Writer::new();
                for (key, right) in &keys {
                    writer.set(key, right.clone());
                }
                writer.set(&keys[at].0, value);
                for info in gguf.tensors() {
                    writer.tensor(&info.name, &info.dims, info.ty, gguf.data(info));
                }
                let mut bytes = Vec::new();
                writer.write_to(&mut bytes).unwrap();
                let Ok(changed) = Gguf::from_bytes(bytes, "changed", &OpenOptions::default())
                else {
                    continue;
                };
                match Oracle::open(&changed) {
                    Ok(oracle) => {
                        oracle.forward(&[3, 1, 4]).unwrap();
                        computed += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    println!("{refused} refused, {computed} computed");
    assert!(
        refused > 500 && computed > 300,
        "{refused} refused, {computed} computed"
    );
}
