//! What no stored golden covers: the same small models with other keys and tensors (RoPE scaling,
//! biases, fused QKV, tied output), written as F32 and run by stock llama.cpp on the spot. Skipped
//! where llama.cpp is not built.

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::results::Results;
use octavo_reference::{Oracle, metrics};
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

#[test]
fn variants_agree_with_llama_cpp() {
    let Some(program) = fixtures::llama_cpp("llama-results") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (model_path, out) = (dir.path().join("m.gguf"), dir.path().join("r.gguf"));
    for (name, base, change) in VARIANTS {
        let mut model = Model::read(base);
        change(&mut model);
        model.write(&model_path);
        let text = "What is the capital of France? The capital of France is Paris. Once there was \
                    a red fox.";
        let mut command = Command::new(&program);
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
        let ours = Oracle::open(&gguf)
            .unwrap()
            .forward(&theirs.tokens)
            .unwrap();
        let error = metrics::nmse(&ours, &theirs.logits).unwrap();
        println!("{name}: NMSE {error:.2e}");
        assert!(error < 1e-11, "{name}: NMSE {error:e}"); // f32 rounding, as in tests/models.rs
    }
}
