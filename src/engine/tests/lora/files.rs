//! Adapter and control vector files that are refused, with the file and the key or tensor in one
//! line.

use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_engine::{ControlFile, Engine, EngineOptions, LoraFile, ModelSource};
use octavo_kernels::Isa;

use super::{Folder, options};

/// A file whose keys and tensors can be changed.
struct Draft {
    keys: Vec<(String, OwnedValue)>,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl Draft {
    fn of(path: &Path) -> Draft {
        let gguf = Gguf::open(path, &OpenOptions::default()).expect("a sound file");
        let keys = gguf
            .keys()
            .map(|(key, value)| (key.to_owned(), value.into()));
        let tensors = gguf.tensors().iter().map(|tensor| {
            let data = gguf.data(tensor).to_vec();
            (tensor.name.clone(), tensor.dims.clone(), tensor.ty, data)
        });
        Draft {
            keys: keys.collect(),
            tensors: tensors.collect(),
        }
    }

    fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.keys.retain(|(own, _)| own != key);
        self.keys.push((key.to_owned(), value.into()));
    }

    fn write(&self, path: &Path) {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for (name, dims, ty, data) in &self.tensors {
            writer.tensor(name, dims, *ty, data.clone());
        }
        writer.write_file(path).expect("written");
    }
}

fn f32s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| (i as f32 * 1e-3).to_le_bytes())
        .collect()
}

/// A change, and what the error says of it.
type Case = (fn(&mut Draft), &'static str);

const ADAPTERS: [Case; 15] = [
    (
        |d| d.set("general.type", "model"),
        "general.type: expected \"adapter\", got \"model\"",
    ),
    (
        |d| d.keys.retain(|(key, _)| key != "adapter.type"),
        "adapter.type: expected \"lora\"",
    ),
    (
        |d| d.set("general.architecture", "llama"),
        "expected \"qwen3\", got \"llama\"",
    ),
    (
        |d| d.set("adapter.lora.alpha", f32::NAN),
        "adapter.lora.alpha: expected a finite number",
    ),
    (|d| d.set("adapter.lora.alpha", "16"), "adapter.lora.alpha"),
    (
        |d| d.set("adapter.alora.invocation_tokens", vec![1_u32, 1 << 30]),
        "adapter.alora.invocation_tokens: expected token ids below",
    ),
    (|d| d.tensors.clear(), "no tensors"),
    (
        |d| drop(d.tensors.remove(0)),
        "the other matrix of the pair",
    ),
    (
        |d| d.tensors[0].0 = "blk.0.attn_q.weight".to_owned(),
        "expected a name that ends with",
    ),
    (
        |d| rename(d, "blk.0.", "blk.900."),
        "has no tensor blk.900.",
    ),
    (
        |d| rename(d, "blk.0.attn_q.weight", "blk.0.attn_q_norm.weight"),
        "adapters do not apply to blk.0.attn_q_norm.weight",
    ),
    (
        |d| add(d, "token_embd.weight", [4, 1024], [4, 256]),
        "the model's output is its token embedding",
    ),
    (
        |d| {
            let (_, dims, _, data) = &mut d.tensors[0];
            *dims = vec![7, 3];
            *data = f32s(21);
        },
        "expected shape",
    ),
    (
        |d| {
            let data = &mut d.tensors[0].3;
            data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        },
        "value 0 is NaN",
    ),
    (
        |d| {
            let (_, dims, ty, data) = &mut d.tensors[0];
            *ty = TensorType::I32;
            *data = f32s(dims.iter().product::<u64>() as usize);
        },
        "type I32",
    ),
];

fn rename(draft: &mut Draft, from: &str, to: &str) {
    for (name, ..) in &mut draft.tensors {
        *name = name.replacen(from, to, 1);
    }
}

fn add(draft: &mut Draft, name: &str, a: [u64; 2], b: [u64; 2]) {
    for (end, dims) in [("lora_a", a), ("lora_b", b)] {
        let n = dims.iter().product::<u64>() as usize;
        let tensor = format!("{name}.{end}");
        draft
            .tensors
            .push((tensor, dims.to_vec(), TensorType::F32, f32s(n)));
    }
}

const VECTORS: [Case; 8] = [
    (
        |d| d.set("general.architecture", "qwen3"),
        "expected \"controlvector\"",
    ),
    (|d| d.tensors.clear(), "no tensors"),
    (
        |d| d.tensors[0].0 = "direction.0".to_owned(),
        "expected direction.N with N from 1 to",
    ),
    (
        |d| d.tensors[0].0 = "direction.x".to_owned(),
        "tensor direction.x",
    ),
    (
        |d| d.tensors[0].0 = "direction.4000".to_owned(),
        "tensor direction.4000",
    ),
    (
        |d| (d.tensors[0].1, d.tensors[0].3) = (vec![5], f32s(5)),
        "expected shape [256]",
    ),
    (
        |d| (d.tensors[0].2, d.tensors[0].3) = (TensorType::F16, vec![0; 512]),
        "type F16: expected F32",
    ),
    (
        |d| d.tensors[0].3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        "value 0 is inf",
    ),
];

fn refused(folder: &Folder, change: impl FnOnce(&mut EngineOptions)) -> String {
    let mut options = options(Isa::best(), &[]);
    change(&mut options);
    let source = ModelSource::Path(folder.base("tiny-qwen3-F32.gguf"));
    match Engine::load(&source, &options, &mut |_| {}) {
        Ok(_) => "nothing".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn with_adapter(folder: &Folder, path: PathBuf) -> String {
    let file = LoraFile { path, scale: 1.0 };
    refused(folder, |options| options.adapters = vec![file])
}

fn with_vector(folder: &Folder, path: PathBuf) -> String {
    let file = ControlFile {
        path,
        strength: 1.0,
    };
    refused(folder, |options| options.control = vec![file])
}

fn check(error: &str, says: &str) {
    assert!(error.contains(says), "expected {says:?}: {error}");
    assert!(
        error.contains("broken.gguf") && !error.contains('\n'),
        "{error}"
    );
}

#[test]
fn broken_adapters_are_refused_in_one_line() {
    let Some(folder) = Folder::open() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("broken.gguf");
    for (change, says) in ADAPTERS {
        let mut draft = Draft::of(&folder.adapter("tiny-qwen3-all.gguf"));
        change(&mut draft);
        draft.write(&path);
        check(&with_adapter(&folder, path.clone()), says);
    }
    // a norm that llama.cpp's converter has left there is passed over
    let mut draft = Draft::of(&folder.adapter("tiny-qwen3-all.gguf"));
    let name = "blk.0.attn_norm.weight".to_owned();
    draft
        .tensors
        .push((name, vec![256], TensorType::F32, f32s(256)));
    draft.write(&path);
    assert_eq!(with_adapter(&folder, path), "nothing");
    // of another model, and no GGUF file at all
    let other = with_adapter(&folder, folder.adapter("qwen3moe-experts.gguf"));
    assert!(other.contains("general.architecture"), "{other}");
    let none = with_adapter(&folder, dir.path().join("none.gguf"));
    assert!(none.contains("none.gguf"), "{none}");
}

#[test]
fn broken_control_vectors_are_refused_in_one_line() {
    let Some(folder) = Folder::open() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("broken.gguf");
    for (change, says) in VECTORS {
        let mut draft = Draft::of(&folder.adapter("cvec-tiny-a.gguf"));
        change(&mut draft);
        draft.write(&path);
        check(&with_vector(&folder, path.clone()), says);
    }
    assert_eq!(
        with_vector(&folder, folder.adapter("cvec-tiny-a.gguf")),
        "nothing"
    );
}

#[test]
fn truncated_files_are_refused() {
    let Some(folder) = Folder::open() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("broken.gguf");
    let whole = std::fs::read(folder.adapter("tiny-qwen3-noalpha.gguf")).expect("a file");
    for len in (0..whole.len()).step_by(whole.len() / 40) {
        std::fs::write(&path, &whole[..len]).expect("written");
        check(&with_adapter(&folder, path.clone()), "broken.gguf");
    }
}

#[test]
fn quantized_adapters_are_taken() {
    let Some(folder) = Folder::open() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("quantized.gguf");
    let mut draft = Draft::of(&folder.adapter("tiny-qwen3-all.gguf"));
    for (_, dims, ty, data) in &mut draft.tensors {
        if dims[0] % 32 == 0 {
            let values: Vec<f32> = data
                .chunks_exact(4)
                .map(|raw| f32::from_le_bytes(raw.try_into().expect("four bytes")))
                .collect();
            let mut bytes = Vec::new();
            let to = TensorType::Q8_0;
            octavo_quant::quantize(to, &values, dims[0] as usize, None, &mut bytes)
                .expect("quantized");
            (*ty, *data) = (to, bytes);
        }
    }
    draft.write(&path);
    assert_eq!(with_adapter(&folder, path), "nothing");
}
