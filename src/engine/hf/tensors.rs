//! Safetensors, one file or several with an index, under GGUF's names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{OpenOptions, SharedFile, TensorType, View};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::awq::{Awq, Part, block_type};
use super::config::{Biases, Config};
use super::rows::{Computed, HeadOrder, Plain, Reordered, Widened};
use super::{Error, MAX_SETTINGS, read_json};

const INDEX: &str = "model.safetensors.index.json";

/// A tensor of the folder.
struct Source {
    dtype: Dtype,
    shape: Vec<usize>,
    part: Part,
}

/// Everything in the files, by Hugging Face's names.
type Sources = BTreeMap<String, Source>;

/// Names outside the layers, and GGUF's.
const ENDS: [(&str, &str); 3] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];
/// Names inside `model.layers.N.`, and GGUF's inside `blk.N.`.
const LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Adds every tensor of the folder.
pub(super) fn declare(
    dir: &Path,
    config: &Config,
    options: &OpenOptions,
    view: &mut View,
) -> Result<(), Error> {
    let mut sources = read(dir, options)?;
    // what checkpoints keep beside weights: frequencies that follow from the settings, and copies
    let spare = |name: &str| {
        name.ends_with("rotary_emb.inv_freq") || config.tied && name == "lm_head.weight"
    };
    sources.retain(|name, _| !spare(name));
    promised(config, |name| sources.contains_key(name))?;
    let modules: BTreeSet<String> = sources
        .keys()
        .filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned()))
        .collect();
    let mut folder = Folder {
        config,
        sources,
        view,
    };
    let mut modules: Vec<String> = modules.into_iter().collect();
    modules.sort_by_key(|module| place(module));
    for module in modules {
        folder.module(&module)?;
    }
    if let Some((name, source)) = folder.sources.first_key_value() {
        let expected = format!("a tensor of {}", config.arch);
        return Err(bad(name, source, expected, "a name that is none's"));
    }
    if let Some(divisors) = config.rope_freqs()? {
        let n = divisors.len() as u64;
        view.made(
            "rope_freqs.weight",
            &[n],
            TensorType::F32,
            &config.file,
            Arc::new(Computed(divisors)),
        )?;
    }
    Ok(())
}

/// Holds the tensors against what the settings say of an output matrix and of biases. A model
/// without them would run, with the embedding for its output and zeros for its biases, and say
/// something else than was trained.
pub(super) fn promised(config: &Config, is_there: impl Fn(&str) -> bool) -> Result<(), Error> {
    let broken = |tensor: String, expected: String, got: &str| {
        Err(Error::Tensor {
            file: config.file.clone(),
            tensor,
            expected,
            got: got.to_owned(),
        })
    };
    if !config.tied && !is_there("lm_head.weight") && !is_there("lm_head.qweight") {
        let expected = "a tensor of that name, as tie_word_embeddings is not true".to_owned();
        return broken("lm_head.weight".to_owned(), expected, "none");
    }
    let layers = config.count("num_hidden_layers")?;
    for Biases {
        key,
        modules,
        there,
    } in config.biases()?
    {
        // no more layers than the files have: the number comes from outside
        for layer in (0..layers)
            .take_while(|l| is_there(&format!("model.layers.{l}.input_layernorm.weight")))
        {
            let name = |module: &&str| format!("model.layers.{layer}.{module}.bias");
            match modules
                .iter()
                .map(name)
                .find(|name| is_there(name) != there)
            {
                Some(name) if there => {
                    return broken(
                        name,
                        format!("a tensor of that name, as {key} says"),
                        "none",
                    );
                }
                Some(name) => {
                    return broken(
                        name,
                        format!("no tensor of that name, as {key} is not true"),
                        "one",
                    );
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// What is done with a folder's tensors, which are taken one by one.
struct Folder<'a> {
    config: &'a Config,
    sources: Sources,
    view: &'a mut View,
}

fn bad(name: &str, source: &Source, expected: impl Into<String>, got: impl Into<String>) -> Error {
    let file = source.part.file.name().to_owned();
    Error::Tensor {
        file,
        tensor: name.to_owned(),
        expected: expected.into(),
        got: got.into(),
    }
}

fn show(source: &Source) -> String {
    format!("{:?} {:?}", source.dtype, source.shape)
}

/// GGUF's name of a module, if it has one.
fn gguf_name(module: &str) -> Option<String> {
    let find = |names: &[(&'static str, &'static str)], module: &str| {
        names.iter().find(|n| n.0 == module).map(|n| n.1)
    };
    if let Some(name) = find(&ENDS, module) {
        return Some(name.to_owned());
    }
    let (layer, rest) = module.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer
        .parse()
        .ok()
        .filter(|n: &u32| n.to_string() == layer)?;
    Some(format!("blk.{layer}.{}", find(&LAYER, rest)?))
}

/// Where a module's tensors stand in a GGUF file: embedding, layers, norm and output.
fn place(module: &str) -> (u32, usize) {
    let at = |names: &[(&str, &str)], name: &str| {
        names
            .iter()
            .position(|n| n.0 == name)
            .unwrap_or(names.len())
    };
    let layer = module
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once('.'));
    match layer.and_then(|(layer, rest)| Some((layer.parse::<u32>().ok()?, rest))) {
        Some((layer, rest)) => (layer.saturating_add(1), at(&LAYER, rest)),
        None if module == ENDS[0].0 => (0, 0),
        None => (u32::MAX, at(&ENDS, module)),
    }
}

/// The module that a tensor of a GGUF file belongs to.
pub(super) fn module(tensor: &str) -> Option<String> {
    let find = |names: &[(&'static str, &'static str)], name: &str| {
        names.iter().find(|n| n.1 == name).map(|n| n.0)
    };
    let stem = tensor.rsplit_once('.')?.0;
    if let Some(module) = find(&ENDS, stem) {
        return Some(module.to_owned());
    }
    let (layer, rest) = stem.strip_prefix("blk.")?.split_once('.')?;
    Some(format!("model.layers.{layer}.{}", find(&LAYER, rest)?))
}

impl Folder<'_> {
    /// Adds the weight and the bias of a module; one that has no name in GGUF is left.
    fn module(&mut self, module: &str) -> Result<(), Error> {
        let Some(name) = gguf_name(module) else {
            return Ok(());
        };
        let order = self.order(&name);
        let (weight, qweight) = (format!("{module}.weight"), format!("{module}.qweight"));
        let awq = self.config.awq.as_ref();
        let stays = awq.is_none_or(|awq| awq.plain.iter().any(|part| module.contains(part)));
        let quantized = self.sources.contains_key(&qweight);
        if let Some(source) = self.sources.get(&qweight).filter(|_| stays) {
            return Err(bad(
                &qweight,
                source,
                "a plain weight, as config.json says",
                show(source),
            ));
        }
        let linear = module.ends_with("_proj");
        if let Some(source) = self.sources.get(&weight).filter(|_| linear && !stays) {
            let expected = "AWQ's qweight: config.json does not list it in modules_to_not_convert";
            return Err(bad(&weight, source, expected, show(source)));
        }
        if quantized {
            self.awq(module, &format!("{name}.weight"), order)?;
        } else if let Some(source) = self.sources.remove(&weight) {
            self.plain(&weight, &source, &format!("{name}.weight"), order)?;
        }
        if let Some(source) = self.sources.remove(&format!("{module}.bias")) {
            self.plain(
                &format!("{module}.bias"),
                &source,
                &format!("{name}.bias"),
                order,
            )?;
        }
        Ok(())
    }

    /// How the rows of a tensor change places.
    fn order(&self, name: &str) -> Option<HeadOrder> {
        let turns = name.ends_with(".attn_q") || name.ends_with(".attn_k");
        (self.config.arch == "llama" && turns).then_some(HeadOrder {
            head_dim: self.config.head_dim,
        })
    }

    fn plain(
        &mut self,
        from: &str,
        source: &Source,
        name: &str,
        order: Option<HeadOrder>,
    ) -> Result<(), Error> {
        let (plain, ty) = match source.dtype {
            Dtype::F32 => (Plain::F32, TensorType::F32),
            Dtype::F16 => (Plain::F16, TensorType::F16),
            Dtype::BF16 => (Plain::Bf16, TensorType::BF16),
            _ => return Err(bad(from, source, "F16, BF16 or F32", show(source))),
        };
        let rows = source.shape.first().copied().unwrap_or(0);
        if order.is_some_and(|o| !rows.is_multiple_of(o.head_dim)) {
            return Err(bad(from, source, "rows of whole heads", show(source)));
        }
        let Part { file, range } = source.part.clone();
        let file_name = file.name().to_owned();
        let dims: Vec<u64> = source.shape.iter().rev().map(|d| *d as u64).collect();
        match (source.shape.len(), order) {
            (1, order) => {
                let rows = Arc::new(Widened {
                    file,
                    range,
                    plain,
                    order,
                });
                self.view
                    .made(name, &dims, TensorType::F32, &file_name, rows)?;
            }
            (2, None) => {
                self.view.tensor(name, &dims, ty, &file, range)?;
            }
            (2, Some(order)) => {
                let row_bytes = source.shape[1] * plain.bytes();
                let rows = Arc::new(Reordered {
                    file,
                    range,
                    row_bytes,
                    order,
                });
                self.view.made(name, &dims, ty, &file_name, rows)?;
            }
            _ => return Err(bad(from, source, "one or two dimensions", show(source))),
        }
        Ok(())
    }

    /// A part of a quantized weight, of the type and shape it must have.
    fn awq_part(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: [usize; 2],
        file: &str,
    ) -> Result<Part, Error> {
        let expected = format!("{dtype:?} {shape:?}");
        let Some(source) = self.sources.remove(name) else {
            return Err(Error::Tensor {
                file: file.to_owned(),
                tensor: name.to_owned(),
                expected,
                got: "nothing".into(),
            });
        };
        if source.dtype != dtype || source.shape != shape {
            return Err(bad(name, &source, expected, show(&source)));
        }
        Ok(source.part)
    }

    fn awq(&mut self, module: &str, name: &str, order: Option<HeadOrder>) -> Result<(), Error> {
        let config = self
            .config
            .awq
            .as_ref()
            .expect("asked for where there is a configuration");
        let [qweight, qzeros, scales] =
            ["qweight", "qzeros", "scales"].map(|part| format!("{module}.{part}"));
        let source = &self.sources[&qweight];
        let file = source.part.file.name().to_owned();
        let [cols, words] = *source.shape.as_slice() else {
            return Err(bad(&qweight, source, "two dimensions", show(source)));
        };
        let rows = words.saturating_mul(8);
        let group = config.group.unwrap_or(cols);
        let ty = block_type(group).filter(|_| group > 0 && cols.is_multiple_of(group));
        let Some(ty) = ty else {
            let expected = format!("rows of whole groups of {group}, and those a multiple of 32");
            return Err(bad(&qweight, source, expected, show(source)));
        };
        if order.is_some_and(|o| !rows.is_multiple_of(o.head_dim)) {
            return Err(bad(&qweight, source, "rows of whole heads", show(source)));
        }
        let groups = cols / group;
        let rest = Awq {
            qweight: self.awq_part(&qweight, Dtype::I32, [cols, words], &file)?,
            qzeros: match config.zero_point || self.sources.contains_key(&qzeros) {
                true => Some(self.awq_part(&qzeros, Dtype::I32, [groups, words], &file)?),
                false => None,
            },
            scales: self.awq_part(&scales, Dtype::F16, [groups, rows], &file)?,
            cols,
            rows,
            group,
            ty,
            order,
        };
        self.view
            .made(name, &[cols as u64, rows as u64], ty, &file, Arc::new(rest))?;
        Ok(())
    }
}

/// The files of the folder, and what is in them.
fn read(dir: &Path, options: &OpenOptions) -> Result<Sources, Error> {
    let (names, index) = match read_json(dir, INDEX, MAX_SETTINGS)? {
        Some(index) => {
            let map = index_map(dir, &index)?;
            (map.values().cloned().collect::<BTreeSet<_>>(), Some(map))
        }
        None => (BTreeSet::from([only_file(dir)?]), None),
    };
    let mut all = Sources::new();
    for name in names {
        let file = SharedFile::open(&dir.join(&name), options)?;
        let sound = |source| Error::Safetensors {
            file: file.name().to_owned(),
            source,
        };
        let (header, metadata) = SafeTensors::read_metadata(file.bytes()).map_err(sound)?;
        for (tensor, info) in metadata.tensors() {
            let at = |offset: usize| header + 8 + offset;
            let range: Range<usize> = at(info.data_offsets.0)..at(info.data_offsets.1);
            let source = Source {
                dtype: info.dtype,
                shape: info.shape.clone(),
                part: Part {
                    file: file.clone(),
                    range,
                },
            };
            let expected = match &index {
                Some(map) if map.get(&tensor) != Some(&name) => {
                    Some(format!("no tensor that {INDEX} does not put there"))
                }
                _ => None,
            };
            if let Some(expected) = expected {
                return Err(bad(&tensor, &source, expected, show(&source)));
            }
            all.insert(tensor, source);
        }
    }
    if let Some((tensor, name)) = index
        .iter()
        .flatten()
        .find(|(tensor, _)| !all.contains_key(*tensor))
    {
        let file = dir.join(name).display().to_string();
        let expected = format!("what {INDEX} says");
        return Err(Error::Tensor {
            file,
            tensor: tensor.clone(),
            expected,
            got: "nothing".to_owned(),
        });
    }
    Ok(all)
}

/// Which file has each tensor. Files are those of the folder.
fn index_map(dir: &Path, index: &Value) -> Result<BTreeMap<String, String>, Error> {
    let bad = |expected: &str, got: String| Error::Value {
        file: dir.join(INDEX).display().to_string(),
        key: "weight_map".to_owned(),
        expected: expected.to_owned(),
        got: got.chars().take(80).collect(),
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let Some(map) = map else {
        return Err(bad("tensors and their files", "nothing".to_owned()));
    };
    let mut files = BTreeMap::new();
    for (tensor, name) in map {
        let plain = |name: &&str| {
            name.ends_with(".safetensors")
                && !name.contains(['/', '\\', ':', '\0'])
                && !name.starts_with('.')
        };
        let Some(name) = name.as_str().filter(plain) else {
            return Err(bad(
                "names of safetensors files in the same folder",
                name.to_string(),
            ));
        };
        files.insert(tensor.clone(), name.to_owned());
    }
    Ok(files)
}

/// The file of a folder without an index.
fn only_file(dir: &Path) -> Result<String, Error> {
    const USUAL: &str = "model.safetensors";
    if dir.join(USUAL).exists() {
        return Ok(USUAL.to_owned());
    }
    let io = |source| Error::Io {
        file: dir.display().to_string(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry
            .map_err(io)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    match <[String; 1]>::try_from(names) {
        Ok([name]) => Ok(name),
        Err(_) => Err(Error::Missing {
            file: dir.join(USUAL).display().to_string(),
            expected: "it, one other safetensors file, or several with \
                       model.safetensors.index.json",
        }),
    }
}
