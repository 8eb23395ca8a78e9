//! Small GGUF files in memory, made to be broken one way at a time, and the shared models.
#![allow(dead_code, unreachable_pub)] // every test program includes this and uses its own part

pub mod breaking;
pub mod running;

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};
use octavo_llm::model::{Error, Model};

/// A metadata value.
pub use gguf_rs_lite::OwnedValue as Val;

/// A tensor: F32 ones hold `values` (or 1, 1.001, 1.002, ...), others zeros.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: TensorType,
    pub values: Option<Vec<f32>>,
}

/// A GGUF file before it is written.
#[derive(Clone, Debug)]
pub struct File {
    pub arch: &'static str,
    pub kv: Vec<(String, Val)>,
    pub tensors: Vec<Tensor>,
}

pub const N_EMBD: u32 = 64;
pub const N_FF: u32 = 96;
pub const N_VOCAB: u32 = 7;

impl File {
    /// A valid model: width 64, 4 query and 2 key heads, head width 16 (qwen3: 32).
    pub fn new(arch: &'static str, n_layer: u32) -> File {
        let head_dim: u32 = if arch == "qwen3" { 32 } else { 16 };
        let mut f = File {
            arch,
            kv: Vec::new(),
            tensors: Vec::new(),
        };
        f.kv.push(("general.architecture".to_owned(), arch.into()));
        f.set("context_length", Val::U32(512));
        f.set("embedding_length", Val::U32(N_EMBD));
        f.set("block_count", Val::U32(n_layer));
        f.set("feed_forward_length", Val::U32(N_FF));
        f.set("attention.head_count", Val::U32(4));
        f.set("attention.head_count_kv", Val::U32(2));
        f.set("attention.layer_norm_rms_epsilon", Val::F32(1e-6));
        f.set("rope.freq_base", Val::F32(10000.0));
        if arch == "qwen3" {
            f.set("attention.key_length", Val::U32(head_dim));
            f.set("attention.value_length", Val::U32(head_dim));
        }
        let tokens: Vec<String> = (0..N_VOCAB).map(|i| format!("t{i}")).collect();
        f.kv.push(("tokenizer.ggml.tokens".to_owned(), tokens.into()));

        let (q, kv) = (4 * head_dim, 2 * head_dim);
        f.add("token_embd.weight", &[N_EMBD, N_VOCAB]);
        f.add("output_norm.weight", &[N_EMBD]);
        f.add("output.weight", &[N_EMBD, N_VOCAB]);
        for l in 0..n_layer {
            let mut add = |name: &str, dims: &[u32]| f.add(&format!("blk.{l}.{name}"), dims);
            add("attn_norm.weight", &[N_EMBD]);
            add("attn_q.weight", &[N_EMBD, q]);
            add("attn_k.weight", &[N_EMBD, kv]);
            add("attn_v.weight", &[N_EMBD, kv]);
            add("attn_output.weight", &[q, N_EMBD]);
            add("ffn_norm.weight", &[N_EMBD]);
            add("ffn_gate.weight", &[N_EMBD, N_FF]);
            add("ffn_up.weight", &[N_EMBD, N_FF]);
            add("ffn_down.weight", &[N_FF, N_EMBD]);
            if arch == "qwen2" {
                add("attn_q.bias", &[q]);
                add("attn_k.bias", &[kv]);
                add("attn_v.bias", &[kv]);
            }
            if arch == "qwen3" {
                add("attn_q_norm.weight", &[head_dim]);
                add("attn_k_norm.weight", &[head_dim]);
            }
        }
        f
    }

    fn full(&self, key: &str) -> String {
        if key.contains("general.") || key.contains("tokenizer.") {
            key.to_owned()
        } else {
            format!("{}.{key}", self.arch)
        }
    }

    /// Sets `<arch>.key` (or a general or tokenizer key as it is).
    pub fn set(&mut self, key: &str, value: impl Into<Val>) {
        let key = self.full(key);
        self.kv.retain(|(k, _)| *k != key);
        self.kv.push((key, value.into()));
    }

    pub fn unset(&mut self, key: &str) {
        let key = self.full(key);
        self.kv.retain(|(k, _)| *k != key);
    }

    /// Adds an F32 tensor; dims in file order.
    pub fn add(&mut self, name: &str, dims: &[u32]) {
        let dims = dims.iter().map(|&d| d.into()).collect();
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dims,
            ty: TensorType::F32,
            values: None,
        });
    }

    pub fn remove(&mut self, name: &str) {
        self.tensors.retain(|t| t.name != name);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors
            .iter_mut()
            .find(|t| t.name == name)
            .expect("a tensor of the file")
    }

    /// Gives a tensor another type, with zeros for its values.
    pub fn retype(&mut self, i: usize, ty: TensorType) {
        let tensor = &mut self.tensors[i];
        (tensor.ty, tensor.values) = (ty, None);
        // rows are whole blocks
        tensor.dims[0] = tensor.dims[0].next_multiple_of(ty.block_len() as u64);
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.try_bytes().expect("a writable file")
    }

    /// The file's bytes, or `None` if the writer refuses them.
    pub fn try_bytes(&self) -> Option<Vec<u8>> {
        let mut writer = Writer::new();
        for (key, value) in &self.kv {
            writer.set(key, value.clone());
        }
        for t in &self.tensors {
            let rows: u64 = t.dims[1..].iter().product();
            let bytes = (t.ty.row_bytes(t.dims[0]).expect("whole blocks") * rows) as usize;
            let mut data = Vec::new();
            if t.ty == TensorType::F32 {
                let ramp = || (0..bytes / 4).map(|i| 1.0 + 0.001 * i as f32).collect();
                data = t
                    .values
                    .clone()
                    .unwrap_or_else(ramp)
                    .iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect();
            }
            data.resize(bytes, 0);
            writer.tensor(&t.name, &t.dims, t.ty, data);
        }
        let mut out = Vec::new();
        writer.write_to(&mut out).ok()?;
        Some(out)
    }

    pub fn gguf(&self) -> Gguf {
        Gguf::from_bytes(self.bytes(), "mem.gguf", &OpenOptions::default())
            .expect("a well-formed container")
    }

    pub fn load(&self) -> Result<Model, Error> {
        Model::load(&self.gguf())
    }

    /// The error of a file that must not load, as text.
    pub fn error(&self) -> String {
        match self.load() {
            Ok(_) => panic!("the file loads"),
            Err(e) => e.to_string(),
        }
    }
}

pub use octavo_reference::fixtures::shared;

pub fn open_shared(model: &str) -> Option<Gguf> {
    let path = shared(&format!("models/{model}.gguf"))?;
    Some(Gguf::open(&path, &OpenOptions::default()).expect("a shared model"))
}
