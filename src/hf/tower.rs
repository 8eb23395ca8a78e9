//! The vision encoder of a folder, presented as the GGUF file (mmproj) that llama.cpp's converter
//! makes.

use std::collections::HashMap;
use std::path::Path;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, View};
use serde_json::Value;

use super::files::{Place, Source, Sources, bad, read, show};
use super::layout::{Layout, stays_f32};
use super::order::Order;
use super::rows::Plain;
use super::settings::Settings;
use super::{Error, MAX_SETTINGS, read_json};

/// Section of `config.json`.
const VISION: &str = "vision_config";
/// Prefixes of the names of a vision encoder's tensors.
const STARTS: [&str; 2] = ["model.visual.", "visual."];
/// Frames of a temporal patch, each with kernels of its own.
const FRAMES: usize = 2;
const COLOURS: usize = 3;
/// Epsilon of norms if no setting gives one.
const USUAL_EPS: f32 = 1e-6;

/// Kind of a folder's vision encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Qwen3Vl,
    Qwen25Vl,
}

/// Kinds of vision encoders by `model_type`.
const TYPES: [(&str, Kind); 5] = [
    ("qwen2_5_vl", Kind::Qwen25Vl),
    ("qwen3_vl", Kind::Qwen3Vl),
    ("qwen3_vl_moe", Kind::Qwen3Vl),
    ("qwen3_5", Kind::Qwen3Vl),
    ("qwen3_5_moe", Kind::Qwen3Vl),
];

/// Module names and GGUF's names for them.
type Names = &'static [(&'static str, &'static str)];

impl Kind {
    fn of(settings: &Settings) -> Result<Kind, Error> {
        const KEY: &str = "model_type";
        let names = TYPES.map(|(name, _)| name).join(", ");
        let expected = format!("one of {names}, whose vision towers are known");
        let model_type = settings.must(KEY, &expected, settings.string(KEY)?)?;
        let found = TYPES.iter().find(|(name, _)| *name == model_type);
        match found {
            Some((_, kind)) => Ok(*kind),
            None => Err(settings.bad(KEY, expected, model_type)),
        }
    }

    /// Returns the modules of a block, and GGUF's names inside `v.blk.N.`.
    fn block(self) -> Names {
        match self {
            Kind::Qwen3Vl => &[
                ("norm1", "ln1"),
                ("attn.qkv", "attn_qkv"),
                ("attn.proj", "attn_out"),
                ("norm2", "ln2"),
                ("mlp.linear_fc1", "ffn_up"),
                ("mlp.linear_fc2", "ffn_down"),
            ],
            Kind::Qwen25Vl => &[
                ("norm1", "ln1"),
                ("attn.proj", "attn_out"),
                ("norm2", "ln2"),
                ("mlp.gate_proj", "ffn_gate"),
                ("mlp.up_proj", "ffn_up"),
                ("mlp.down_proj", "ffn_down"),
            ],
        }
    }

    /// Returns the modules after the blocks.
    fn merger(self) -> Names {
        match self {
            Kind::Qwen3Vl => &[
                ("merger.norm", "v.post_ln"),
                ("merger.linear_fc1", "mm.0"),
                ("merger.linear_fc2", "mm.2"),
            ],
            Kind::Qwen25Vl => &[
                ("merger.ln_q", "v.post_ln"),
                ("merger.mlp.0", "mm.0"),
                ("merger.mlp.2", "mm.2"),
            ],
        }
    }
}

/// Opens a folder's vision encoder as a GGUF file.
///
/// # Errors
/// [`enum@Error`] for a folder without a vision encoder, one of another kind, and anything missing
/// or invalid.
pub fn open_tower(dir: &Path, options: &OpenOptions) -> Result<Gguf, Error> {
    let settings = Settings::read(dir)?;
    let kind = Kind::of(&settings)?;
    let sources = read(dir, options)?
        .into_iter()
        .filter_map(|(name, source)| {
            let name = STARTS.iter().find_map(|start| name.strip_prefix(start))?;
            Some((name.to_owned(), source))
        });
    let mut tower = Tower {
        kind,
        sources: sources.collect(),
        view: View::new(dir),
        places: HashMap::new(),
        settings,
        blocks: 0,
        deepstack: Vec::new(),
    };
    tower.keys(dir)?;
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
    settings.is_ok_and(|s| Kind::of(&s).is_ok() && s.get(VISION).is_some())
}

/// A vision encoder while it is converted from a folder to GGUF.
struct Tower {
    kind: Kind,
    settings: Settings,
    /// Its tensors, by names without the encoder's prefix.
    sources: Sources,
    view: View,
    places: HashMap<String, Place>,
    /// Number of blocks.
    blocks: usize,
    /// Blocks whose outputs are projected too (DeepStack).
    deepstack: Vec<usize>,
}

/// Returns the path of a vision encoder's setting.
fn key(name: &str) -> String {
    format!("{VISION}.{name}")
}

impl Tower {
    fn count(&self, name: &str) -> Result<usize, Error> {
        self.settings.count(&key(name))
    }

    /// Refuses a setting that is there and is another number.
    fn only(&self, name: &str, expected: usize) -> Result<(), Error> {
        let key = key(name);
        match self.settings.optional_count(&key)? {
            Some(n) if n != expected => {
                let expected = format!("nothing, or {expected}");
                Err(self.settings.bad(&key, expected, n))
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.view.set(&format!("clip.{key}"), value);
    }

    /// Sets every key, in the converter's order.
    fn keys(&mut self, dir: &Path) -> Result<(), Error> {
        self.view.set("general.architecture", "clip");
        self.view.set("general.type", "mmproj");
        if let Some(name) = super::name(dir) {
            self.view.set("general.name", name.as_str());
        }
        if self.settings.get(VISION).is_none() {
            let expected = "the settings of a vision tower";
            return Err(self.settings.bad(VISION, expected, "nothing"));
        }
        self.only("in_channels", COLOURS)?;
        self.only("in_chans", COLOURS)?;
        self.only("temporal_patch_size", FRAMES)?;
        self.put("has_vision_encoder", true);
        let width = ["text_config.hidden_size", "hidden_size"];
        let width = width
            .into_iter()
            .find(|key| self.settings.get(key).is_some());
        let width = self.settings.count(width.unwrap_or("hidden_size"))?;
        self.put("vision.projection_dim", narrow(width));
        let side = self.image_size()?;
        self.put("vision.image_size", narrow(side));
        for (key, from) in [
            ("patch_size", "patch_size"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", "depth"),
            ("attention.head_count", "num_heads"),
        ] {
            let n = self.count(from)?;
            self.put(&format!("vision.{key}"), narrow(n));
        }
        self.blocks = self.count_blocks()?;
        let colours = colours(dir)?;
        self.put("vision.image_mean", colours.mean);
        self.put("vision.image_std", colours.std);
        match self.kind {
            Kind::Qwen3Vl => self.keys_of_qwen3(),
            Kind::Qwen25Vl => self.keys_of_qwen25(),
        }
    }

    /// Returns the side in pixels of the square that has all positions; it is informational only.
    fn image_size(&self) -> Result<usize, Error> {
        if let Some(side) = self.settings.optional_count(&key("image_size"))? {
            return Ok(side);
        }
        Ok(match self.kind {
            Kind::Qwen3Vl => {
                let positions = self
                    .settings
                    .optional_count(&key("num_position_embeddings"))?;
                let patches = (positions.unwrap_or(2304) as f64).sqrt();
                (patches * self.count("patch_size")? as f64) as usize
            }
            Kind::Qwen25Vl => 560,
        })
    }

    fn keys_of_qwen3(&mut self) -> Result<(), Error> {
        self.activation("gelu_pytorch_tanh")?;
        self.put("projector_type", "qwen3vl_merger");
        self.put("use_gelu", true);
        if let Some(merge) = self.settings.optional_count(&key("spatial_merge_size"))? {
            self.put("vision.spatial_merge_size", narrow(merge));
        }
        self.put_eps("text_config.rms_norm_eps")?;
        let listed = self.list_of_blocks("deepstack_visual_indexes")?;
        self.deepstack = listed.unwrap_or_default();
        let is_listed = |block| self.deepstack.contains(&block);
        let marks: Vec<bool> = (0..self.blocks).map(is_listed).collect();
        self.put("vision.is_deepstack_layers", marks);
        Ok(())
    }

    fn keys_of_qwen25(&mut self) -> Result<(), Error> {
        self.activation("silu")?;
        self.only("window_size", 112)?;
        self.only("spatial_merge_size", 2)?;
        self.put("projector_type", "qwen2.5vl_merger");
        self.put("use_silu", true);
        let every = self.whole_every()?;
        self.put("vision.n_wa_pattern", narrow(every));
        self.put_eps("rms_norm_eps")
    }

    /// Sets the epsilon of all norms, which is a setting of the text model.
    fn put_eps(&mut self, from: &str) -> Result<(), Error> {
        let eps = self.settings.float(from)?.unwrap_or(USUAL_EPS);
        self.put("vision.attention.layer_norm_epsilon", eps);
        Ok(())
    }

    fn activation(&self, known: &str) -> Result<(), Error> {
        let key = key("hidden_act");
        match self.settings.string(&key)? {
            Some(other) if other != known => Err(self.settings.bad(&key, known, other)),
            _ => Ok(()),
        }
    }

    /// Returns the number of blocks, at most the number of tensors in the folder, because the
    /// setting is untrusted.
    fn count_blocks(&self) -> Result<usize, Error> {
        let (n, most) = (self.count("depth")?, self.sources.len());
        match n <= most {
            true => Ok(n),
            false => {
                let expected = format!("at most {most}, the tensors of the tower");
                Err(self.settings.bad(&key("depth"), expected, n))
            }
        }
    }

    /// Reads a list of blocks, each once and in order.
    fn list_of_blocks(&self, name: &str) -> Result<Option<Vec<usize>>, Error> {
        let blocks = self.blocks;
        let expected = format!("numbers below {blocks}, each larger than the one before");
        let read = |v: &Value| {
            let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
            let all: Vec<usize> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
            let is_sound = all.is_sorted_by(|a, b| a < b) && all.iter().all(|n| *n < blocks);
            is_sound.then_some(all)
        };
        self.settings.typed(&key(name), &expected, read)
    }

    /// Returns the period of blocks with full attention over the image: the last block of each
    /// period.
    fn whole_every(&self) -> Result<usize, Error> {
        const NAME: &str = "fullatt_block_indexes";
        let key = key(NAME);
        let expected = "the last of every so many blocks";
        let listed = self.list_of_blocks(NAME)?.unwrap_or_default();
        let Some(first) = listed.first() else {
            return Err(self.settings.bad(&key, expected, "nothing"));
        };
        let every = first + 1;
        let regular = (0..self.blocks).filter(|block| (block + 1).is_multiple_of(every));
        match regular.eq(listed.iter().copied()) {
            true => Ok(every),
            false => Err(self.settings.bad(&key, expected, format!("{listed:?}"))),
        }
    }

    fn tensors(&mut self) -> Result<(), Error> {
        let spare = |name: &str| name.ends_with("rotary_pos_emb.inv_freq");
        self.sources.retain(|name, _| !spare(name));
        self.patches()?;
        self.module("pos_embed", "v.position_embd")?;
        for block in 0..self.blocks {
            let (from, to) = (format!("blocks.{block}"), format!("v.blk.{block}"));
            if self.kind == Kind::Qwen25Vl {
                self.thirds(&format!("{from}.attn.qkv"), &to)?;
            }
            for (module, name) in self.kind.block() {
                self.module(&format!("{from}.{module}"), &format!("{to}.{name}"))?;
            }
            if let Some(i) = self.deepstack.iter().position(|b| *b == block) {
                for (module, name) in [
                    ("norm", "norm"),
                    ("linear_fc1", "fc1"),
                    ("linear_fc2", "fc2"),
                ] {
                    let from = format!("deepstack_merger_list.{i}.{module}");
                    self.module(&from, &format!("v.deepstack.{block}.{name}"))?;
                }
            }
        }
        for (module, name) in self.kind.merger() {
            self.module(module, name)?;
        }
        match self.sources.first_key_value() {
            Some((name, source)) => {
                let expected = "a tensor of this kind of vision tower";
                Err(bad(name, source, expected, "a name that is none's"))
            }
            None => Ok(()),
        }
    }

    /// Adds the weight and the bias of a module, if it has them.
    fn module(&mut self, module: &str, name: &str) -> Result<(), Error> {
        for part in ["weight", "bias"] {
            let from = format!("{module}.{part}");
            if let Some(source) = self.sources.remove(&from) {
                let to = format!("{name}.{part}");
                self.part(&from, &source, &to, &source.shape, Order::Same)?;
            }
        }
        Ok(())
    }

    /// Adds queries, keys and values, which are one module in the folder.
    fn thirds(&mut self, module: &str, block: &str) -> Result<(), Error> {
        for part in ["weight", "bias"] {
            let from = format!("{module}.{part}");
            let Some(source) = self.sources.remove(&from) else {
                continue;
            };
            let rows = source.shape.first().copied().unwrap_or(0);
            if !rows.is_multiple_of(3) {
                let expected = "rows of queries, keys and values, as many of each";
                return Err(bad(&from, &source, expected, show(&source)));
            }
            let mut shape = source.shape.clone();
            shape.iter_mut().take(1).for_each(|n| *n = rows / 3);
            for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
                let order = Order::Cut {
                    of: rows,
                    take: rows / 3,
                    start: i * (rows / 3),
                    step: 1,
                };
                let to = format!("{block}.attn_{name}.{part}");
                self.part(&from, &source, &to, &shape, order)?;
            }
        }
        Ok(())
    }

    /// Adds the patch kernels: one tensor for each frame of a temporal patch.
    fn patches(&mut self) -> Result<(), Error> {
        const FROM: &str = "patch_embed.proj.weight";
        let Some(source) = self.sources.remove(FROM) else {
            return Ok(());
        };
        let [kernels, COLOURS, FRAMES, height, width] = source.shape[..] else {
            let expected = "kernels of 3 colours and 2 frames";
            return Err(bad(FROM, &source, expected, show(&source)));
        };
        for (frame, name) in ["v.patch_embd.weight", "v.patch_embd.weight.1"]
            .into_iter()
            .enumerate()
        {
            let order = Order::Cut {
                of: FRAMES * height,
                take: height,
                start: frame * height,
                step: 1,
            };
            let shape = [kernels, COLOURS, height, width];
            self.part(FROM, &source, name, &shape, order)?;
        }
        self.module("patch_embed.proj", "v.patch_embd")
    }

    /// Adds a tensor made of some rows of another.
    fn part(
        &mut self,
        from: &str,
        source: &Source,
        name: &str,
        shape: &[usize],
        order: Order,
    ) -> Result<(), Error> {
        if shape.is_empty() || shape.contains(&0) {
            let expected = "dimensions, none of them 0";
            return Err(bad(from, source, expected, show(source)));
        }
        let plain = Plain::of(from, source)?;
        // the converter writes no BF16 kernels
        let in_f32 = match is_patches(name) {
            true => plain == Plain::Bf16,
            false => stays_f32(name, shape.len()),
        };
        let layout = Layout::of_rows(plain, &source.shape, shape, order, in_f32);
        self.places.insert(name.to_owned(), source.place);
        layout.declare(&mut self.view, name, &[source])
    }
}

/// Returns whether a tensor has patch kernels, which are F16 in F16 files and F32 in all others.
pub fn is_patches(name: &str) -> bool {
    name.starts_with("v.patch_embd.weight")
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Mean that is subtracted from a pixel's channels, and divisor of the result.
struct Colours {
    mean: Vec<f32>,
    std: Vec<f32>,
}

/// Reads them from the folder's preprocessor settings; if both files have them, the second one
/// counts.
fn colours(dir: &Path) -> Result<Colours, Error> {
    const FILES: [(&str, &str); 2] = [
        ("preprocessor_config.json", "media_proc_cfg"),
        ("processor_config.json", "image_processor"),
    ];
    let mut files = Vec::new();
    for (name, group) in FILES {
        if let Some(mut root) = read_json(dir, name, MAX_SETTINGS)? {
            let inner = root.get_mut(group).map(Value::take);
            if let (Value::Object(all), Some(Value::Object(inner))) = (&mut root, inner) {
                all.extend(inner);
            }
            let file = dir.join(name).display().to_string();
            files.push(Settings { file, root });
        }
    }
    let read = |key: &str| {
        let expected = "a number for each of three colours";
        let settings = files.iter().rev().find(|file| file.get(key).is_some());
        let settings = settings.or(files.last()).ok_or_else(|| Error::Missing {
            file: dir.join(FILES[0].0).display().to_string(),
            expected: "what is taken from the colours of pixels, and what they are divided by",
        })?;
        let three = settings.typed(key, expected, |v| {
            let number = |v: &Value| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
            let all: Vec<f32> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
            (all.len() == COLOURS).then_some(all)
        })?;
        settings.must(key, expected, three)
    };
    Ok(Colours {
        mean: read("image_mean")?,
        std: read("image_std")?,
    })
}
