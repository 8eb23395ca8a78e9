//! Covers features without goldens: the same small models with other keys and tensors (RoPE
//! scaling, biases, fused QKV, tied output), written as F32 and run by stock llama.cpp during the
//! test. Skipped where llama.cpp is not built.

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::results::Results;
use octavo_reference::{Oracle, metrics};
use std::path::Path;
use std::process::{Command, Stdio};

const LLAMA: &str = "models/rnd-llama-Q4_K_M.gguf";
const QWEN2: &str = "models/rnd-qwen2-Q6_K.gguf";
const QWEN3: &str = "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf";

fn yarn(model: &mut Model, arch: &str, factor: f32) {
    model.set(&format!("{arch}.rope.scaling.type"), "yarn");
    model.set(&format!("{arch}.rope.scaling.factor"), factor);
}

type Variant = (&'static str, &'static str, fn(&mut Model));

const VARIANTS: &[Variant] = &[
    ("llama, linear scaling, magnitude", LLAMA, |m| {
        m.set("llama.rope.scaling.type", "linear");
        m.set("llama.rope.scaling.factor", 4f32);
        m.set("llama.rope.scaling.attn_factor", 1.25f32);
    }),
    ("llama, the old name of linear scaling", LLAMA, |m| {
        m.set("llama.rope.scale_linear", 2f32)
    }),
    ("llama, a factor without scaling", LLAMA, |m| {
        m.set("llama.rope.scaling.type", "none");
        m.set("llama.rope.scaling.factor", 4f32);
    }),
    ("llama, every bias", LLAMA, |m| {
        for il in 0..3 {
            for (name, len) in [
                ("attn_q", 256),
                ("attn_k", 128),
                ("attn_v", 128),
                ("attn_output", 256),
                ("ffn_down", 256),
            ] {
                m.add_bias(&format!("blk.{il}.{name}.bias"), len);
            }
            let n_ff = m.tensors[&format!("blk.{il}.ffn_up.weight")].0[1] as usize;
            m.add_bias(&format!("blk.{il}.ffn_up.bias"), n_ff);
            m.add_bias(&format!("blk.{il}.ffn_gate.bias"), n_ff);
        }
    }),
    ("llama, tied, fused, heads for each layer", LLAMA, |m| {
        m.tensors.remove("output.weight");
        m.fuse("weight");
        m.set("llama.attention.head_count", vec![4u32; 3]);
        m.set("llama.attention.head_count_kv", vec![2i32; 3]);
    }),
    (
        "qwen2, fused weights beside separate biases, output bias",
        QWEN2,
        |m| {
            m.fuse("weight");
            m.add_bias("output.bias", 1024);
        },
    ),
    ("qwen2, fused weights and biases", QWEN2, |m| {
        m.fuse("weight");
        m.fuse("bias");
    }),
    ("qwen2, YaRN with a magnitude", QWEN2, |m| {
        yarn(m, "qwen2", 4.0);
        m.set("qwen2.rope.scaling.original_context_length", 64u32);
        m.set("qwen2.rope.scaling.attn_factor", 0.9f32);
    }),
    ("qwen3, YaRN over the whole context", QWEN3, |m| {
        yarn(m, "qwen3", 8.0)
    }),
];

/// Variants of other architectures in the shared folder, each with its tolerance.
const OTHERS: &[(Variant, f64)] = &[
    (
        ("gemma4, scaled experts, no values", "gemma4-Q4_0", |m| {
            for il in 0..4 {
                m.add_bias(&format!("blk.{il}.ffn_down_exps.scale"), 4);
            }
            m.remove("blk.2.attn_v.weight");
        }),
        1e-6,
    ),
    (
        (
            "gemma4, gates and what they gate merged",
            "gemma4-Q4_0",
            |m| {
                for il in 0..4 {
                    let parts =
                        ["gate", "up"].map(|part| format!("blk.{il}.ffn_{part}_exps.weight"));
                    m.join(&parts, &format!("blk.{il}.ffn_gate_up_exps.weight"), 1);
                }
            },
        ),
        1e-6,
    ),
    (
        ("qwen3next, one matrix for all", "qwen3next-F32", |m| {
            for il in 0..3 {
                let parts = ["qkv", "gate"].map(|part| format!("blk.{il}.attn_{part}.weight"));
                m.join(&parts, &format!("blk.{il}.ssm_in.weight"), 1);
            }
        }),
        1e-9,
    ),
    (
        ("mamba2, two groups", "mamba2-F32", |m| {
            m.set("mamba2.ssm.group_count", 2u32);
            m.set("mamba2.ssm.state_size", 8u32);
            for il in 0..2 {
                let norm = m.tensors.get_mut(&format!("blk.{il}.ssm_norm.weight"));
                norm.unwrap().0 = vec![64, 2];
            }
        }),
        1e-9,
    ),
    (
        ("qwen35, a pair of no section", "qwen35-F32", |m| {
            m.set("qwen35.rope.dimension_sections", vec![2u32, 1, 0, 0]);
        }),
        1e-9,
    ),
    (
        (
            "deepseek2, no multiplier, temperature",
            "deepseek2-F32",
            |m| {
                m.unset("deepseek2.rope.scaling.yarn_log_multiplier");
                m.set("deepseek2.attention.temperature_scale", 0.5f32);
                m.set("deepseek2.attention.temperature_length", 8u32);
            },
        ),
        1e-9,
    ),
    (
        ("qwen35, biases of queries and gates", "qwen35-F32", |m| {
            m.add_bias("blk.3.attn_q.bias", 128);
        }),
        1e-9,
    ),
    (
        (
            "qwen2moe, no width of shared experts",
            "qwen2moe-F32",
            |m| {
                m.unset("qwen2moe.expert_shared_feed_forward_length");
                for il in 0..2 {
                    for part in ["gate", "up", "down"] {
                        let name = format!("blk.{il}.ffn_{part}_shexp.weight");
                        m.add_bias(&name, 64 * 64);
                        m.tensors.get_mut(&name).unwrap().0 = vec![64, 64];
                    }
                }
            },
        ),
        1e-9,
    ),
    (
        ("cohere2, a base that nobody reads", "cohere2-F32", |m| {
            m.set("cohere2.rope.freq_base_swa", 500f32);
        }),
        1e-9,
    ),
    (
        ("qwen3moe, keys of other routers", "qwen3moe-F32", |m| {
            m.set("qwen3moe.expert_weights_scale", 2.5f32);
            m.set("qwen3moe.expert_gating_func", 2u32);
        }),
        1e-9,
    ),
    (
        ("granitehybrid, no divisor", "granitehybrid-F32", |m| {
            m.unset("granitehybrid.logit_scale");
        }),
        1e-9,
    ),
];

#[test]
fn variants_of_other_architectures_agree_with_llama_cpp() {
    let (Some(program), Some(arch)) = (
        fixtures::llama_cpp("llama-results"),
        fixtures::shared("arch"),
    ) else {
        return;
    };
    for ((name, model, change), bound) in OTHERS {
        let base = arch.join(format!("models/{model}.gguf"));
        let error = error_of(&program, name, base.to_str().unwrap(), *change);
        assert!(error < *bound, "{name}: NMSE {error:e}");
    }
}

#[test]
fn variants_agree_with_llama_cpp() {
    let Some(program) = fixtures::llama_cpp("llama-results") else {
        return;
    };
    for (name, base, change) in VARIANTS {
        let error = error_of(&program, name, base, *change);
        assert!(error < 1e-11, "{name}: NMSE {error:e}"); // f32 rounding, as in tests/models.rs
    }
}

/// Returns the NMSE of the oracle against llama.cpp on a changed model.
fn error_of(program: &Path, name: &str, base: &str, change: fn(&mut Model)) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let (model_path, out) = (dir.path().join("m.gguf"), dir.path().join("r.gguf"));
    let mut model = Model::read(base);
    change(&mut model);
    model.write(&model_path);
    let text = "What is the capital of France? The capital of France is Paris. Once there was a \
                red fox.";
    let mut command = Command::new(program);
    command
        .arg("-m")
        .arg(&model_path)
        .arg("-o")
        .arg(&out)
        .args(["-p", text, "-t", "1", "-c", "256"]);
    command
        .args(["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-repack"])
        .stdout(Stdio::null());
    assert!(
        command.stderr(Stdio::null()).status().unwrap().success(),
        "{name}: llama-results failed"
    );
    let theirs = Results::read(&out).unwrap();
    let gguf = Gguf::open(&model_path, &OpenOptions::default()).unwrap();
    let oracle = Oracle::open(&gguf).unwrap();
    let ours = oracle.forward(&theirs.tokens).unwrap();
    let error = metrics::nmse(&ours, &theirs.logits).unwrap();
    println!("{name}: NMSE {error:.2e}");
    error
}
