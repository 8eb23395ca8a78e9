//! Small models of the shared folder with other keys and tensors: the engine against its oracle,
//! and changes without effect against the original model.

use std::path::Path;

use crate::logits::{load, logits};
use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_engine::backend::Phase;
use octavo_fixtures::shared;
use octavo_kernels::Isa;
use octavo_reference::golden::Full;
use octavo_reference::{Oracle, metrics::nmse};

/// A model in memory, before it is written.
struct File {
    keys: Vec<(String, OwnedValue)>,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl File {
    fn read(path: &Path) -> File {
        let gguf = Gguf::open(path, &OpenOptions::default()).expect("a shared model");
        let own = |(key, value): (&str, _)| (key.to_owned(), OwnedValue::from(value));
        let keys = gguf.keys().map(own).collect();
        let tensors = gguf.tensors().iter().map(|t| {
            let data = gguf.data(t).to_vec();
            (t.name.clone(), t.dims.clone(), t.ty, data)
        });
        let tensors = tensors.collect();
        File { keys, tensors }
    }

    fn full(&self, key: &str) -> String {
        let arch = self
            .keys
            .iter()
            .find(|(key, _)| key == "general.architecture");
        match arch.map(|(_, arch)| arch) {
            Some(OwnedValue::Str(arch)) => {
                format!("{}.{key}", String::from_utf8_lossy(arch))
            }
            other => panic!("{other:?}"),
        }
    }

    fn get(&self, key: &str) -> Option<u32> {
        let key = self.full(key);
        let value = self.keys.iter().find(|(other, _)| *other == key);
        value.map(|(_, value)| match value {
            OwnedValue::U32(n) => *n,
            other => panic!("{key}: {other:?}"),
        })
    }

    fn unset(&mut self, key: &str) {
        let key = self.full(key);
        self.keys.retain(|(other, _)| *other != key);
    }

    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.unset(key);
        self.keys.push((self.full(key), value.into()));
    }

    /// Replaces a key's number by a list of it, one for each layer of the file.
    fn spread(&mut self, key: &str) {
        if let (Some(n), Some(layers)) = (self.get(key), self.get("block_count")) {
            self.set(key, vec![n; layers as usize]);
        }
    }

    /// Adds an F32 tensor of different numbers.
    fn add(&mut self, name: String, dims: &[u64]) {
        let n: u64 = dims.iter().product();
        let value = |i: u64| ((i * 37 + 11) % 101) as f32 / 100.0 - 0.5;
        let bytes = (0..n).flat_map(|i| value(i).to_le_bytes()).collect();
        let tensor = (name, dims.to_vec(), TensorType::F32, bytes);
        self.tensors.push(tensor);
    }

    /// Adds biases to the products that make queries, and to gates after them.
    fn add_query_biases(&mut self) {
        let queries = |t: &(String, Vec<u64>, _, _)| {
            let layer = t.0.strip_suffix(".attn_q.weight")?;
            Some((format!("{layer}.attn_q.bias"), t.1[1]))
        };
        let biases: Vec<_> = self.tensors.iter().filter_map(queries).collect();
        assert!(!biases.is_empty(), "no queries");
        for (name, width) in biases {
            self.add(name, &[width]);
        }
    }

    /// Adds scales for the matrices whose names have this part, as NVFP4 files have them: one, or
    /// one for each expert; and those of inputs, which are not read.
    fn add_scales(&mut self, part: &str) {
        let scaled = |t: &(String, Vec<u64>, _, _)| {
            let stem = t.0.strip_suffix(".weight")?;
            let experts = t.1.get(2).copied().unwrap_or(1);
            (stem.contains(part) && t.1.len() > 1).then(|| (stem.to_owned(), experts))
        };
        let stems: Vec<_> = self.tensors.iter().filter_map(scaled).collect();
        assert!(!stems.is_empty(), "no {part}");
        for (stem, experts) in stems {
            for kind in ["scale", "input_scale"] {
                self.add(format!("{stem}.{kind}"), &[experts]);
            }
        }
    }

    /// Adds one more layer, for multi-token prediction.
    fn add_prediction(&mut self) {
        let (n, width) = (self.get("block_count"), self.get("embedding_length"));
        let (n, width) = (n.expect("a number"), width.expect("a number"));
        let last = format!("blk.{}.", n - 1);
        let own = |t: &(String, Vec<u64>, TensorType, Vec<u8>)| {
            let rest = t.0.strip_prefix(&last)?;
            Some((format!("blk.{n}.{rest}"), t.1.clone(), t.2, t.3.clone()))
        };
        let copies: Vec<_> = self.tensors.iter().filter_map(own).collect();
        self.tensors.extend(copies);
        let width = u64::from(width);
        self.add(format!("blk.{n}.nextn.eh_proj.weight"), &[2 * width, width]);
        for name in ["enorm", "hnorm"] {
            self.add(format!("blk.{n}.nextn.{name}.weight"), &[width]);
        }
        self.set("block_count", n + 1);
        self.set("nextn_predict_layers", 1_u32);
    }

    fn write(self, path: &Path) {
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.set(&key, value);
        }
        for (name, dims, ty, data) in self.tensors {
            writer.tensor(&name, &dims, ty, data);
        }
        writer.write_file(path).expect("it is written");
    }
}

/// Returns enough tokens to exceed every window of these models.
fn tokens() -> Vec<u32> {
    (0..40).map(|i| (i * 37 + 5) % 250).collect()
}

/// Returns the engine's logits of a changed model, and the oracle's.
fn both(base: &Path, change: fn(&mut File)) -> (Vec<f32>, Vec<f64>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.gguf");
    let mut file = File::read(base);
    change(&mut file);
    file.write(&path);
    let ours = logits(&load(&path, Isa::best(), true), &tokens(), Phase::Prefill);
    let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a model");
    let oracle = Oracle::open(&gguf).unwrap_or_else(|e| panic!("{e}"));
    let exact = oracle.forward(&tokens()).unwrap_or_else(|e| panic!("{e}"));
    (ours, exact)
}

/// A model's name, and a change to it.
type Variant = (&'static str, fn(&mut File));

/// Changes that llama.cpp would ignore.
const UNHEARD: &[&str] = &[
    "ernie4_5-moe",
    "gpt-oss",
    "granitemoe",
    "granitehybrid",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "qwen35moe",
    "qwen3next",
];

const SAME: &[Variant] = &[
    ("cohere2", |f| f.set("rope.freq_base_swa", 500_f32)),
    ("exaone4", |f| f.set("rope.freq_base_swa", 500_f32)),
    ("lfm2moe", |f| f.set("expert_weights_scale", 2.5_f32)),
    ("hunyuan-dense", |f| {
        f.set("expert_count", 1_u32);
        f.set("expert_used_count", 1_u32);
    }),
    ("olmo2", |f| f.set("attention.sliding_window", 0_u32)),
    ("lfm2", |f| f.set("attention.sliding_window", 0_u32)),
    ("smollm3", |f| f.set("rope.scaling.type", "linear")),
    ("smollm3", |f| f.set("rope.scaling.factor", 0_f32)),
    ("glm4", File::add_prediction),
    ("exaone4", File::add_prediction),
    ("glm4moe", |f| {
        f.spread("attention.head_count");
        f.spread("attention.head_count_kv");
        f.spread("feed_forward_length");
    }),
];

/// Changes with an effect on logits.
const OTHERS: &[Variant] = &[
    ("gemma3", |f| f.set("attention.sliding_window", 0_u32)),
    ("command-r", |f| f.unset("logit_scale")),
    ("command-r", |f| f.set("logit_scale", 0_f32)),
    ("cohere2", |f| f.set("logit_scale", 0_f32)),
    ("granitehybrid", |f| f.unset("logit_scale")),
    ("granitehybrid", |f| f.set("logit_scale", 0_f32)),
    ("gpt-oss", |f| f.unset("rope.scaling.factor")),
    ("glm4moe", |f| f.set("expert_weights_scale", 0.5_f32)),
    ("deepseek2", |f| f.set("expert_weights_scale", 0.5_f32)),
    ("lfm2moe", |f| f.set("expert_gating_func", 1_u32)),
    ("qwen35", File::add_query_biases),
    ("qwen35moe", File::add_query_biases),
    ("qwen3next", File::add_query_biases),
    ("smollm3", |f| {
        f.add_scales("attn_q");
        f.add_scales("attn_output");
        f.add_scales("ffn_down");
    }),
    ("phi3", |f| {
        f.add_scales("attn_qkv");
        f.add_scales("ffn_up");
    }),
    ("starcoder2", |f| f.add_scales("ffn_up")),
    ("qwen35", |f| {
        f.add_scales("attn_gate");
        f.add_scales("ssm_out");
    }),
    ("qwen3moe", |f| {
        f.add_scales("ffn_gate_exps");
        f.add_scales("ffn_up_exps");
        f.add_scales("ffn_down_exps");
    }),
    ("gpt-oss", |f| {
        f.add_scales("ffn_gate_exps");
        f.add_scales("ffn_down_exps");
    }),
    ("qwen2moe", |f| f.add_scales("_shexp")),
    ("qwen2moe", widen_shared),
    ("qwen35moe", widen_shared),
    ("qwen3next", widen_shared),
];

/// Removes the key with the width of the shared expert, and makes that expert as wide as a
/// feed-forward block.
fn widen_shared(f: &mut File) {
    f.unset("expert_shared_feed_forward_length");
    let (n_ff, width) = (f.get("feed_forward_length"), f.get("embedding_length"));
    let (n_ff, width) = (n_ff.expect("a number"), width.expect("a number"));
    let (n_ff, width) = (u64::from(n_ff), u64::from(width));
    let shared = |name: &str| name.contains("_shexp.weight") && !name.contains("ffn_gate_inp");
    let names: Vec<String> = f.tensors.iter().map(|t| t.0.clone()).collect();
    f.tensors.retain(|t| !shared(&t.0));
    for name in names.into_iter().filter(|name| shared(name)) {
        let dims = match name.contains("ffn_down") {
            true => [n_ff, width],
            false => [width, n_ff],
        };
        f.add(name, &dims);
    }
}

/// Returns the maximum error of the engine against the oracle, which computes GELU exactly.
fn limit(model: &str) -> f64 {
    match model {
        "gemma3" => crate::logits::GELU_NMSE,
        _ => 1e-9,
    }
}

#[test]
fn keys_that_say_nothing_new_change_nothing() {
    let Some(arch) = shared("arch/models") else {
        return;
    };
    let unheard = UNHEARD.iter().flat_map(|name| -> [Variant; 3] {
        [
            (name, |f| f.set("expert_weights_scale", 2.5_f32)),
            (name, |f| f.set("expert_gating_func", 2_u32)),
            (name, |f| {
                f.spread("expert_used_count");
                f.spread("expert_feed_forward_length");
            }),
        ]
    });
    for (name, change) in unheard.chain(SAME.iter().copied()) {
        let base = arch.join(format!("{name}-F32.gguf"));
        let (usual, exact) = both(&base, |_| {});
        let (ours, oracle) = both(&base, change);
        assert!(usual == ours, "{name}: other logits");
        assert!(exact == oracle, "{name}: other logits of the oracle");
    }
}

#[test]
fn what_says_another_thing_is_heard_as_the_oracle_hears_it() {
    let Some(arch) = shared("arch/models") else {
        return;
    };
    for (i, (name, change)) in OTHERS.iter().enumerate() {
        let base = arch.join(format!("{name}-F32.gguf"));
        let (usual, _) = both(&base, |_| {});
        let (ours, exact) = both(&base, *change);
        let error = nmse(&ours, &exact).expect("as many");
        assert!(error < limit(name), "{i} {name}: NMSE {error:e}");
        assert!(usual != ours, "{i} {name}: nothing changed");
    }
}

/// Compares the logits of a file with scales of every kind with llama.cpp's own.
#[test]
fn scales_beside_matrices_are_llama_cpps() {
    let Some(variants) = shared("arch2/variants") else {
        return;
    };
    let model = variants.join("models/qwen3moe-scales-F32.gguf");
    let goldens = variants.join("goldens/qwen3moe-scales-F32");
    let engine = load(&model, Isa::best(), true);
    let mut n = 0;
    for entry in std::fs::read_dir(goldens).expect("goldens") {
        let golden = Full::read(&entry.expect("an entry").path()).expect("a golden");
        for phase in [Phase::Prefill, Phase::Decode] {
            let ours = logits(&engine, &golden.tokens, phase);
            let error = nmse(&ours, &golden.logits).expect("as many");
            assert!(error < 1e-9, "{phase:?}: NMSE {error:e}");
        }
        n += 1;
    }
    assert!(n >= 2, "only {n} goldens");
}
