//! What no stored golden covers: the same small models with other keys and tensors (RoPE scaling,
//! biases, fused QKV, tied output), written as F32 and run by stock llama.cpp on the spot. Skipped
//! where llama.cpp is not built.

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_fixtures as fixtures;
use octavo_reference::results::Results;
use octavo_reference::{Oracle, metrics};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

const LLAMA: &str = "models/rnd-llama-Q4_K_M.gguf";
const QWEN2: &str = "models/rnd-qwen2-Q6_K.gguf";
const QWEN3: &str = "../src/engine/demo/tiny-qwen3-Q4_K_M.gguf";

/// A model in memory: every tensor F32.
struct Model {
    keys: Vec<(String, OwnedValue)>,
    tensors: BTreeMap<String, (Vec<u64>, Vec<f32>)>,
}

impl Model {
    fn read(path: &str) -> Self {
        let path = fixtures::workspace_root().join("reference").join(path);
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let tensors = gguf.tensors().iter().map(|info| {
            let mut values = vec![0.0; info.n_elements() as usize];
            octavo_quant::dequantize(info.ty, gguf.data(info), &mut values).unwrap();
            (info.name.clone(), (info.dims.clone(), values))
        });
        Self {
            keys: gguf
                .keys()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            tensors: tensors.collect(),
        }
    }

    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.keys.retain(|(old, _)| old != key);
        self.keys.push((key.into(), value.into()));
    }

    /// A vector of small values that differ.
    fn add_bias(&mut self, name: &str, len: usize) {
        let values = (0..len)
            .map(|i| ((i * 37 + name.len() * 11) % 101) as f32 / 100.0 - 0.5)
            .collect();
        self.tensors.insert(name.into(), (vec![len as u64], values));
    }

    /// Replaces q, k and v of every layer, weights or biases, by one tensor.
    fn fuse(&mut self, what: &str) {
        for il in 0.. {
            let parts =
                ["q", "k", "v"].map(|p| self.tensors.remove(&format!("blk.{il}.attn_{p}.{what}")));
            let [Some(q), Some(k), Some(v)] = parts else {
                break;
            };
            let mut dims = q.0.clone();
            *dims.last_mut().unwrap() += k.0.last().unwrap() + v.0.last().unwrap();
            self.tensors.insert(
                format!("blk.{il}.attn_qkv.{what}"),
                (dims, [q.1, k.1, v.1].concat()),
            );
        }
    }

    fn write(self, path: &Path) {
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.set(&key, value);
        }
        for (name, (dims, values)) in &self.tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            writer.tensor(name, dims, TensorType::F32, bytes);
        }
        writer.write_file(path).unwrap();
    }
}

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
