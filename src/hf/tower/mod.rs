//! The vision encoder of a folder, presented as the GGUF file (mmproj) that llama.cpp's converter
//! makes.
//!
//! A [`Family`] says how folders name the settings and tensors of one kind of encoder; each has a
//! file, and what all of them do is in `tensors.rs`. To add one takes its file, its `mod` and its
//! place in [`ALL`].

mod gemma3;
mod idefics3;
mod internvl;
mod pixtral;
mod preprocessor;
mod qwen25vl;
mod qwen3vl;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorInfo, View};
use serde_json::Value;

use super::Error;
use super::files::{Place, Source, bad, read, show};
use super::layout::stays_f32;
use super::rows::Plain;
use super::settings::Settings;
use preprocessor::Preprocessor;

/// Section of `config.json`.
const VISION: &str = "vision_config";
const COLOURS: usize = 3;
/// Epsilon of norms if no setting gives one.
const USUAL_EPS: f32 = 1e-6;

/// Every kind of vision encoder.
const ALL: [&Family; 7] = [
    &qwen25vl::FAMILY,
    &qwen3vl::FAMILY,
    &gemma3::FAMILY,
    &idefics3::FAMILY,
    &internvl::FAMILY,
    &internvl::CHAT,
    &pixtral::FAMILY,
];

/// Names in a folder, and those that they become.
type Names = &'static [(&'static str, &'static str)];

/// A kind of vision encoder: names of its settings and tensors in folders, and what becomes of
/// them. All start from [`VIT`].
struct Family {
    /// Value of `clip.projector_type`.
    projector: &'static str,
    /// Values of `model_type` of its folders.
    names: &'static [&'static str],
    /// Value that `vision_config.model_type` must have, if it matters.
    vision_type: Option<&'static str>,
    /// Prefixes of its tensors' names, after `model.` if they begin so, and what stands for them
    /// in the lists below. The first that fits counts.
    prefixes: Names,
    /// Tensors that are left out: beginnings of names.
    skipped: &'static [&'static str],
    /// Setting of the number of blocks.
    depth: &'static str,
    /// Setting of the number of heads.
    heads: &'static str,
    /// Default values in transformers of settings that configurations leave out.
    defaults: &'static [(&'static str, usize)],
    /// Settings that may only be this number.
    only: &'static [(&'static str, usize)],
    /// Known activations, and the flag that says so; the first is the default.
    activations: Names,
    /// Returns the side in pixels of images, of tiles, or of the square that has all positions.
    image_size: fn(&Tower) -> Result<usize, Error>,
    /// Sets keys that the lists cannot express.
    keys: fn(&mut Tower) -> Result<(), Error>,
    /// Prefix of a block's number.
    blocks: &'static str,
    /// Module of a block whose rows are queries, keys and values, if these become three.
    qkv: Option<&'static str>,
    /// Modules of a block and GGUF's names inside `v.blk.N.`. What has neither a weight nor a bias
    /// is one tensor, and so is its name.
    block: Names,
    /// The same outside of blocks.
    modules: Names,
    /// Adds tensors that the lists cannot express.
    tensors: fn(&mut Tower) -> Result<(), Error>,
    /// Returns the change of the tensor with this GGUF name.
    edit: fn(&str) -> Edit,
    /// Types of tensors that are the same in every file.
    fixed: &'static [(&'static str, Plain)],
}

/// Change of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    Nothing,
    /// Adds a number to its values.
    Plus(f32),
    /// Permutes the rows of each head: pairs from its two halves become neighbours.
    Heads,
}

/// Names and settings that transformers' encoders have in common.
const VIT: Family = Family {
    projector: "",
    names: &[],
    vision_type: None,
    prefixes: &[],
    skipped: &[],
    depth: "num_hidden_layers",
    heads: "num_attention_heads",
    defaults: &[],
    only: &[("num_channels", COLOURS)],
    activations: &[("gelu_pytorch_tanh", "use_gelu"), ("gelu", "use_gelu")],
    image_size: |tower| tower.side("image_size"),
    keys: |_| Ok(()),
    blocks: "encoder.layers.",
    qkv: None,
    block: &[],
    modules: &[],
    tensors: |_| Ok(()),
    edit: |_| Edit::Nothing,
    fixed: &[],
};

/// The names in SigLIP, and in what descends from it.
const SIGLIP_BLOCK: Names = &[
    ("layer_norm1", "ln1"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("layer_norm2", "ln2"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

impl Family {
    /// Returns the kind of a folder's vision encoder.
    fn of(settings: &Settings) -> Result<&'static Family, Error> {
        const KEY: &str = "model_type";
        let names: Vec<&str> = ALL
            .iter()
            .flat_map(|family| family.names)
            .copied()
            .collect();
        let expected = format!("one of {}, whose vision towers are known", names.join(", "));
        let model_type = settings.must(KEY, &expected, settings.string(KEY)?)?;
        let found = ALL
            .iter()
            .find(|family| family.names.contains(&&*model_type));
        let family = found.ok_or_else(|| settings.bad(KEY, expected, model_type))?;
        if let Some(known) = family
            .vision_type
            .filter(|_| settings.get(VISION).is_some())
        {
            let key = key("model_type");
            let found = settings.must(&key, known, settings.string(&key)?)?;
            if found != known {
                return Err(settings.bad(&key, known, found));
            }
        }
        Ok(family)
    }

    /// Returns the type of the tensor with this GGUF name, if it is the same in every file.
    fn fixed(&self, name: &str) -> Option<Plain> {
        let found = self.fixed.iter().find(|(fixed, _)| *fixed == name);
        found.map(|(_, plain)| *plain)
    }

    /// Returns a tensor's name in the lists, if it is one of the encoder's.
    fn listed(&self, name: &str) -> Option<String> {
        let name = name.strip_prefix("model.").unwrap_or(name);
        let mut prefixes = self.prefixes.iter();
        prefixes.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)))
    }
}

/// Opens a folder's vision encoder as a GGUF file.
///
/// # Errors
/// [`enum@Error`] for a folder without a vision encoder, one of another kind, and anything missing
/// or invalid.
pub fn open_tower(dir: &Path, options: &OpenOptions) -> Result<Gguf, Error> {
    let settings = Settings::read(dir)?;
    let family = Family::of(&settings)?;
    if settings.get(VISION).is_none() {
        let expected = "the settings of a vision tower";
        return Err(settings.bad(VISION, expected, "nothing"));
    }
    let mut tower = Tower {
        family,
        dir: dir.to_owned(),
        preprocessor: Preprocessor::read(dir)?,
        sources: BTreeMap::new(),
        view: View::new(dir),
        places: HashMap::new(),
        settings,
        blocks: 0,
    };
    for (name, source) in read(dir, options)? {
        let Some(listed) = family.listed(&name) else {
            continue;
        };
        if family.skipped.iter().any(|start| listed.starts_with(start)) {
            continue;
        }
        if tower.sources.contains_key(&listed) {
            let expected = format!("one tensor only that is {listed} of the vision tower");
            return Err(bad(&name, &source, expected, show(&source)));
        }
        tower.sources.insert(listed, Found { name, source });
    }
    tower.keys()?;
    tower.tensors()?;
    let Tower {
        mut view, places, ..
    } = tower;
    view.sort_by_key(|name| places.get(name).copied());
    Ok(view.open()?)
}

/// Returns whether the folder has a vision encoder that can be opened.
pub fn has_tower(dir: &Path) -> bool {
    let settings = Settings::read(dir);
    settings.is_ok_and(|s| Family::of(&s).is_ok() && s.get(VISION).is_some())
}

/// Returns whether a tensor has patch kernels or merges patches: it is F16 in F16 files and F32 in
/// all others.
pub fn is_patches(name: &str) -> bool {
    name.starts_with("v.patch_embd.weight") || name == "mm.patch_merger.weight"
}

/// Returns whether llama.cpp's converter gives a tensor of an opened folder the same type in every
/// file; it has that type already.
pub fn has_fixed_type(gguf: &Gguf, tensor: &TensorInfo) -> bool {
    let projector = gguf.str("clip.projector_type").ok().flatten();
    let mut families = ALL
        .iter()
        .filter(|family| Some(family.projector) == projector);
    let is_plain = !is_patches(&tensor.name) && stays_f32(&tensor.name, tensor.dims.len());
    is_plain || families.any(|family| family.fixed(&tensor.name).is_some())
}

/// A tensor in the folder's files.
struct Found {
    /// Its whole name.
    name: String,
    source: Source,
}

impl Found {
    /// Makes an error about it.
    fn bad(&self, expected: impl Into<String>, got: impl Into<String>) -> Error {
        bad(&self.name, &self.source, expected, got)
    }

    /// Makes an error about its shape or type.
    fn refused(&self, expected: impl Into<String>) -> Error {
        self.bad(expected, show(&self.source))
    }
}

/// A vision encoder while it is converted from a folder to GGUF.
struct Tower {
    family: &'static Family,
    dir: PathBuf,
    settings: Settings,
    preprocessor: Preprocessor,
    /// Its tensors that are not converted yet, by their names in the family's lists.
    sources: BTreeMap<String, Found>,
    view: View,
    places: HashMap<String, Place>,
    /// Number of blocks.
    blocks: usize,
}

/// Returns the path of a vision encoder's setting.
fn key(name: &str) -> String {
    format!("{VISION}.{name}")
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Tower {
    /// Returns a vision encoder's setting, or its default value, which not all have.
    fn count(&self, name: &str) -> Result<usize, Error> {
        let key = key(name);
        let default = self.family.defaults.iter().find(|(with, _)| *with == name);
        let given = self.settings.optional_count(&key)?;
        let value = given.or(default.map(|(_, n)| *n));
        self.settings.must(&key, "a positive number", value)
    }

    /// Reads a side in pixels: a number, or a list of it twice.
    fn side(&self, name: &str) -> Result<usize, Error> {
        let key = key(name);
        let expected = "a positive number, or a list of two equal ones";
        match self.settings.typed(&key, "a list", Value::as_array) {
            Ok(Some(list)) => {
                let side = match &list[..] {
                    [height, width] if height == width => height.as_u64(),
                    _ => None,
                };
                let side = side.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                let side = side.ok_or_else(|| {
                    let list = format!("{list:?}");
                    self.settings.bad(&key, expected, list)
                })?;
                Ok(side as usize)
            }
            // what is no list must be a number
            Ok(None) | Err(_) => self.count(name),
        }
    }

    /// Refuses a setting, by its whole path, that is there and is another number.
    fn number_is(&self, key: &str, expected: f64) -> Result<(), Error> {
        match self.settings.double(key)?.filter(|x| *x != expected) {
            Some(x) => {
                let expected = format!("nothing, or {expected}");
                Err(self.settings.bad(key, expected, x))
            }
            None => Ok(()),
        }
    }

    /// Refuses a setting, by its whole path, that is there and is another text.
    fn text_is(&self, key: &str, expected: &str) -> Result<(), Error> {
        match self.settings.string(key)?.filter(|text| text != expected) {
            Some(text) => {
                let expected = format!("nothing, or {expected}");
                Err(self.settings.bad(key, expected, text))
            }
            None => Ok(()),
        }
    }

    fn put(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.view.set(&format!("clip.{key}"), value);
    }

    /// Sets the epsilon of all norms, by the setting's whole path.
    fn put_eps(&mut self, from: &str, default: f32) -> Result<(), Error> {
        let eps = self.settings.float(from)?.unwrap_or(default);
        self.put("vision.attention.layer_norm_epsilon", eps);
        Ok(())
    }

    /// Sets every key.
    fn keys(&mut self) -> Result<(), Error> {
        let family = self.family;
        self.view.set("general.architecture", "clip");
        self.view.set("general.type", "mmproj");
        if let Some(name) = super::name(&self.dir) {
            self.view.set("general.name", name.as_str());
        }
        for (name, expected) in family.only {
            self.number_is(&key(name), *expected as f64)?;
        }
        self.put("has_vision_encoder", true);
        self.put("projector_type", family.projector);
        let width = ["text_config", "llm_config"].map(|text| format!("{text}.hidden_size"));
        let mut width = width.iter().filter(|key| self.settings.get(key).is_some());
        let width = width.next().map_or("hidden_size", String::as_str);
        let width = self.settings.count(width)?;
        self.put("vision.projection_dim", narrow(width));
        let side = (family.image_size)(self)?;
        self.put("vision.image_size", narrow(side));
        let patch = self.side("patch_size")?;
        self.put("vision.patch_size", narrow(patch));
        for (key, from) in [
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", family.depth),
            ("attention.head_count", family.heads),
        ] {
            let n = self.count(from)?;
            self.put(&format!("vision.{key}"), narrow(n));
        }
        self.blocks = self.count_blocks()?;
        for name in ["image_mean", "image_std"] {
            let colours = self.preprocessor.colours(name)?;
            self.put(&format!("vision.{name}"), colours);
        }
        self.activation()?;
        (family.keys)(self)
    }

    /// Sets the flag of the activation.
    fn activation(&mut self) -> Result<(), Error> {
        let (key, known) = (key("hidden_act"), self.family.activations);
        let act = self.settings.string(&key)?;
        let act = act.unwrap_or_else(|| known[0].0.to_owned());
        let Some((_, flag)) = known.iter().find(|(name, _)| *name == act) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(self.settings.bad(&key, names.join(" or "), act));
        };
        self.put(flag, true);
        Ok(())
    }

    /// Returns the number of blocks, at most the number of tensors in the folder, because the
    /// setting is untrusted.
    fn count_blocks(&self) -> Result<usize, Error> {
        let depth = self.family.depth;
        let (n, most) = (self.count(depth)?, self.sources.len());
        match n <= most {
            true => Ok(n),
            false => {
                let expected = format!("at most {most}, the tensors of the tower");
                Err(self.settings.bad(&key(depth), expected, n))
            }
        }
    }
}
