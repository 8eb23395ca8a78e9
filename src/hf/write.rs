//! Writes a model as a Hugging Face folder.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use gguf_rs_lite::{Gguf, Temporary, TensorInfo, TensorType, behind_links};
use octavo_quant::awq;
use safetensors::tensor::View;
use safetensors::{Dtype, serialize_to_file};
use serde_json::{Value, json};

use super::config::Config;
use super::order::HeadOrder;
use super::rope::Llama3;
use super::{Error, names, pretty, tensors, tokenizer};
use octavo_model::Hparams;

/// Tensor of divisors of RoPE frequencies, which a folder has as settings.
const FREQUENCIES: &str = "rope_freqs.weight";

/// Writes a model as a new folder: `config.json`, `model.safetensors`, `tokenizer.json` and the
/// files that belong to it. Its matrices must be F32, F16, BF16 or AWQ groups of one size.
///
/// # Errors
/// A folder that exists, a weight or a setting that such folders cannot have, and a failed write.
pub fn write(gguf: &Gguf, dir: &Path) -> Result<(), Error> {
    let file = || dir.display().to_string();
    let io = |source| Error::Io {
        file: file(),
        source,
    };
    let dir = &behind_links(dir)?;
    if dir.exists() {
        return Err(Error::Exists { file: file() });
    }
    let h = Hparams::from_gguf(gguf).map_err(|error| Error::Model {
        error: error.to_string(),
    })?;
    let weights = weights(gguf, &h)?;
    let parent = dir
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    // written beside it first, so that the folder appears whole or not at all
    let new = Temporary::folder(parent).map_err(io)?;
    let put =
        |name: &str, content: &[u8]| std::fs::write(new.path().join(name), content).map_err(io);
    put("config.json", &pretty(&config(gguf, &h)?))?;
    // check what such folders can say of biases now, and not when the folder is opened
    let mut settings = Config::read(new.path())?;
    settings.settings.file = gguf.name().to_owned();
    tensors::promised(&settings, |name| {
        weights.iter().any(|weight| weight.0 == name)
    })?;
    for (name, content) in tokenizer::files(gguf)? {
        put(name, &content)?;
    }
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = new.path().join("model.safetensors");
    serialize_to_file(weights, Some(metadata), &path).map_err(|source| Error::Safetensors {
        file: path.display().to_string(),
        source,
    })?;
    new.rename(dir).map_err(io)
}

/// Architectures that can be written, and their class names in folders.
const CLASSES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];

/// Checks that a model of this architecture can be written.
///
/// # Errors
/// If it cannot be written, such as mixtures of experts.
pub fn check_writable(gguf: &Gguf, h: &Hparams) -> Result<(), Error> {
    class(gguf, h).map(|_| ())
}

/// Returns the class name of a model's architecture.
fn class(gguf: &Gguf, h: &Hparams) -> Result<&'static str, Error> {
    let bad = |key: &str, expected: &str, got: String| Err(bad_value(gguf, key, expected, got));
    if let Some(experts) = h.experts {
        return bad("expert_count", "no experts", experts.count.to_string());
    }
    let class = CLASSES.iter().find(|class| class.0 == h.arch.name());
    match class {
        Some((_, class)) => Ok(class),
        None => {
            let names = CLASSES.map(|class| class.0).join(", ");
            let expected = format!("one of {names}, which can be written as a folder");
            bad("general.architecture", &expected, h.arch.name().to_owned())
        }
    }
}

/// Returns the contents of `config.json`.
fn config(gguf: &Gguf, h: &Hparams) -> Result<Value, Error> {
    let bad = |key: &str, expected: &str, got: String| bad_value(gguf, key, expected, got);
    let class = class(gguf, h)?;
    let Some(layer) = h.every_layer() else {
        let got = "layers that differ".to_owned();
        return Err(bad("block_count", "layers of one size", got));
    };
    if h.ropes[0].n_rot.value != layer.head_dim {
        return Err(bad(
            "rope.dimension_count",
            "all of a head",
            h.ropes[0].n_rot.value.to_string(),
        ));
    }
    let mut config = json!({
        "architectures": [class],
        "model_type": h.arch.name(),
        "hidden_size": h.n_embd(),
        "intermediate_size": layer.n_ff,
        "num_hidden_layers": h.n_layer(),
        "num_attention_heads": layer.n_head,
        "num_key_value_heads": layer.n_head_kv,
        "head_dim": layer.head_dim,
        "max_position_embeddings": h.n_ctx_train(),
        "rms_norm_eps": number(h.norm_eps.value),
        "rope_theta": number(h.ropes[0].freq_base.value),
        "rope_scaling": rope_scaling(gguf, h)?,
        "attention_bias": gguf.tensor("blk.0.attn_q.bias").is_some(),
        "mlp_bias": gguf.tensor("blk.0.ffn_up.bias").is_some(),
        "hidden_act": "silu",
        "tie_word_embeddings": gguf.tensor("output.weight").is_none(),
        "torch_dtype": "float16",
        "vocab_size": h.n_vocab(),
    });
    for name in ["bos", "eos"] {
        let id = gguf.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
        // a file may name one that its vocabulary does not have
        let id = id.filter(|id| (*id as usize) < h.n_vocab());
        config[format!("{name}_token_id")] = json!(id);
    }
    if let Some(awq) = awq_settings(gguf, h.arch.name())? {
        config["quantization_config"] = awq;
    }
    Ok(config)
}

fn bad_value(gguf: &Gguf, key: &str, expected: &str, got: String) -> Error {
    Error::Value {
        file: gguf.name().to_owned(),
        key: key.to_owned(),
        expected: expected.to_owned(),
        got,
    }
}

/// Returns `rope_scaling`: null where positions are not scaled.
fn rope_scaling(gguf: &Gguf, h: &Hparams) -> Result<Value, Error> {
    let rope = &h.ropes[0];
    Ok(match rope.scaling.value.name() {
        "none" if gguf.tensor(FREQUENCIES).is_some() => {
            let expected = "LLaMA 3's divisors of frequencies, for a context of 8192";
            llama3(gguf, h)
                .ok_or_else(|| bad_value(gguf, FREQUENCIES, expected, "others".to_owned()))?
        }
        "none" => Value::Null,
        kind => json!({
            "rope_type": kind,
            "factor": number(rope.factor.value),
            "original_max_position_embeddings": rope.original_context.value,
        }),
    })
}

/// Returns `quantization_config` for a model with matrices in AWQ groups, which must be of one
/// size; `None` for other models.
fn awq_settings(gguf: &Gguf, arch: &str) -> Result<Option<Value>, Error> {
    let mut groups = gguf
        .tensors()
        .iter()
        .filter(|t| TensorType::AWQ.contains(&t.ty))
        .map(|t| t.ty.block_len());
    let Some(group) = groups.next() else {
        return Ok(None);
    };
    if let Some(other) = groups.find(|other| *other != group) {
        return Err(bad_value(
            gguf,
            "weights",
            "AWQ groups of one size",
            format!("groups of {group} and of {other}"),
        ));
    }
    let is_unquantized =
        |t: &&TensorInfo| t.dims.len() == 2 && t.name.starts_with("blk.") && t.ty.block_len() == 1;
    let plain: Vec<String> = gguf
        .tensors()
        .iter()
        .filter(is_unquantized)
        .filter_map(|t| names::module(arch, &t.name))
        .collect();
    Ok(Some(json!({
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": true,
        "version": "gemm",
        "modules_to_not_convert": if plain.is_empty() { Value::Null } else { json!(plain) },
    })))
}

/// Returns the settings that give the file's divisors of RoPE frequencies: those that all LLaMA 3
/// models have, if they match.
fn llama3(gguf: &Gguf, h: &Hparams) -> Option<Value> {
    let theirs: Vec<f32> = gguf
        .data(gguf.tensor(FREQUENCIES)?)
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let factor = theirs.iter().copied().fold(1.0, f32::max);
    let llama3 = Llama3 {
        factor,
        low: 1.0,
        high: 4.0,
        original: 8192.0,
    };
    let same = |(a, b): (f32, &f32)| (a - b).abs() <= 1e-5 * a;
    let ours = llama3.divisors(h.ropes[0].freq_base.value, h.layers[0].head_dim);
    (ours.len() == theirs.len() && ours.into_iter().zip(&theirs).all(same)).then(|| {
        json!({
            "rope_type": "llama3",
            "factor": number(factor),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        })
    })
}

/// Writes a float as the shortest decimal that is the same float.
fn number(x: f32) -> Value {
    serde_json::from_str(&x.to_string()).unwrap_or(Value::Null)
}

/// A tensor whose bytes are made when it is written.
struct Weight<'a> {
    gguf: &'a Gguf,
    tensor: &'a TensorInfo,
    part: PackedTensor,
    shape: Vec<usize>,
    /// Row order in the GGUF file, if it is another.
    order: Option<HeadOrder>,
    /// Zero points and scales, once one of the parts was made: codes are written first, and all
    /// rows are read once.
    small: Rc<OnceCell<Small>>,
}

/// The small parts of AWQ groups: zero points and scales.
struct Small {
    qzeros: Vec<u8>,
    scales: Vec<u8>,
}

/// A part of a tensor that is written as a tensor of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PackedTensor {
    Plain(Dtype),
    Qweight,
    Qzeros,
    Scales,
}

impl PackedTensor {
    fn shape(self, tensor: &TensorInfo) -> Vec<usize> {
        let (rows, cols) = (rows(tensor), cols(tensor));
        let groups = cols / tensor.ty.block_len();
        match self {
            PackedTensor::Plain(_) if tensor.dims.len() == 1 => vec![cols],
            PackedTensor::Plain(_) => vec![rows, cols],
            PackedTensor::Qweight => vec![cols, rows / 8],
            PackedTensor::Qzeros => vec![groups, rows / 8],
            PackedTensor::Scales => vec![groups, rows],
        }
    }
}

/// Returns every tensor of the folder.
fn weights<'a>(gguf: &'a Gguf, h: &Hparams) -> Result<Vec<(String, Weight<'a>)>, Error> {
    let mut all = Vec::new();
    for tensor in gguf.tensors().iter().filter(|t| t.name != FREQUENCIES) {
        let bad = |expected: &str, got: String| Error::Tensor {
            file: gguf.name().to_owned(),
            tensor: tensor.name.clone(),
            expected: expected.to_owned(),
            got,
        };
        let (stem, suffix) = tensor.name.rsplit_once('.').unwrap_or((&tensor.name, ""));
        let Some(module) = names::module(h.arch.name(), &tensor.name) else {
            return Err(bad(
                "a tensor that Hugging Face has a name for",
                suffix.to_owned(),
            ));
        };
        let turns = stem.ends_with(".attn_q") || stem.ends_with(".attn_k");
        let order = (h.arch.name() == "llama" && turns).then_some(HeadOrder {
            head_dim: h.layers[0].head_dim,
        });
        let small = Rc::new(OnceCell::new());
        let part = |name: &str, part: PackedTensor| {
            let (shape, small) = (part.shape(tensor), Rc::clone(&small));
            (
                format!("{module}.{name}"),
                Weight {
                    gguf,
                    tensor,
                    part,
                    shape,
                    order,
                    small,
                },
            )
        };
        match tensor.ty {
            TensorType::F32 => all.push(part(suffix, PackedTensor::Plain(Dtype::F32))),
            TensorType::F16 => all.push(part(suffix, PackedTensor::Plain(Dtype::F16))),
            TensorType::BF16 => all.push(part(suffix, PackedTensor::Plain(Dtype::BF16))),
            ty if TensorType::AWQ.contains(&ty) && rows(tensor).is_multiple_of(8) => {
                all.push(part("qweight", PackedTensor::Qweight));
                all.push(part("qzeros", PackedTensor::Qzeros));
                all.push(part("scales", PackedTensor::Scales));
            }
            ty if TensorType::AWQ.contains(&ty) => {
                return Err(bad(
                    "rows in eights, which AWQ packs in words",
                    rows(tensor).to_string(),
                ));
            }
            ty => return Err(bad("F32, F16, BF16 or AWQ groups", ty.to_string())),
        }
    }
    Ok(all)
}

fn cols(tensor: &TensorInfo) -> usize {
    tensor.dims.first().copied().unwrap_or(0) as usize
}

fn rows(tensor: &TensorInfo) -> usize {
    tensor.dims.get(1).copied().unwrap_or(1) as usize
}

impl Weight<'_> {
    fn groups(&self) -> usize {
        cols(self.tensor) / self.tensor.ty.block_len()
    }

    /// Returns the row of the GGUF file that becomes row `row` of the folder's tensor.
    fn place(&self, row: usize) -> usize {
        self.order.map_or(row, |order| order.target(row))
    }

    fn plain(&self) -> Vec<u8> {
        let from = self.gguf.data(self.tensor);
        let n = if self.tensor.dims.len() == 1 {
            cols(self.tensor)
        } else {
            rows(self.tensor)
        };
        let bytes = from.len() / n.max(1);
        (0..n)
            .flat_map(|row| &from[self.place(row) * bytes..][..bytes])
            .copied()
            .collect()
    }

    /// Returns all three parts of the groups, the codes separately.
    fn parts(&self) -> (Vec<u8>, Small) {
        let (len, bytes, n) = (
            self.tensor.ty.block_len(),
            self.tensor.ty.block_bytes(),
            self.groups(),
        );
        let rows = rows(self.tensor);
        // eight rows per word
        let mut qweight = vec![[0u8; 8]; cols(self.tensor) * rows / 8];
        let mut qzeros = vec![[0u8; 8]; n * rows / 8];
        let mut scales = vec![0; n * rows * 2];
        let (mut row_bytes, mut codes) = (vec![0; n * bytes], vec![0; len]);
        for row in 0..rows {
            self.gguf.read(
                self.tensor,
                self.place(row) * row_bytes.len(),
                &mut row_bytes,
            );
            let word = |line: usize| line * (rows / 8) + row / 8;
            for (group, block) in row_bytes.chunks_exact(bytes).enumerate() {
                awq::codes(block, &mut codes);
                codes
                    .iter()
                    .enumerate()
                    .for_each(|(k, code)| qweight[word(group * len + k)][row % 8] = *code);
                qzeros[word(group)][row % 8] = block[2];
                scales[2 * (group * rows + row)..][..2].copy_from_slice(&block[..2]);
            }
        }
        let packed = |eights: Vec<[u8; 8]>| {
            eights
                .into_iter()
                .flat_map(|eight| awq::pack(eight).to_le_bytes())
                .collect()
        };
        (
            packed(qweight),
            Small {
                qzeros: packed(qzeros),
                scales,
            },
        )
    }

    fn small(&self) -> &Small {
        self.small.get_or_init(|| self.parts().1)
    }
}

impl View for Weight<'_> {
    fn dtype(&self) -> Dtype {
        match self.part {
            PackedTensor::Plain(dtype) => dtype,
            PackedTensor::Qweight | PackedTensor::Qzeros => Dtype::I32,
            PackedTensor::Scales => Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.part {
            PackedTensor::Plain(_) => self.plain().into(),
            PackedTensor::Qweight => {
                let (qweight, small) = self.parts();
                // already set if another part came first, with the same values
                let _ = self.small.set(small);
                qweight.into()
            }
            PackedTensor::Qzeros => self.small().qzeros.as_slice().into(),
            PackedTensor::Scales => self.small().scales.as_slice().into(),
        }
    }

    fn data_len(&self) -> usize {
        let bytes = match self.part {
            PackedTensor::Plain(_) => return self.tensor.bytes as usize,
            PackedTensor::Qweight | PackedTensor::Qzeros => 4,
            PackedTensor::Scales => 2,
        };
        self.shape.iter().product::<usize>() * bytes
    }
}
