//! A vision encoder's hyperparameters, checked before any tensor is read, each with its source.

use gguf_rs_lite::{Gguf, Value};
use octavo_model::hparams::{MAX_HEADS, MAX_LAYERS, MAX_WIDTH};
use octavo_model::keys::{Entry, Keys, Source, show};
use octavo_model::{Choice, Error};

use super::ARCHITECTURE;
use super::arch::{Images, Projector};
use crate::pixels::Size;

/// Maximum side of a patch: far beyond any real one, and small enough that no product overflows.
const MAX_PATCH: usize = 256;
/// Maximum side of an image in pixels, as in llama.cpp.
const MAX_IMAGE: usize = 8192;

/// Activation of feed-forward blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Tanh approximation of GELU.
    Gelu,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x / (1 + e^(-1.702 x))`.
    QuickGelu,
}

impl Feature {
    /// Returns a description in words.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Gelu => "GELU",
            Feature::Silu => "SiLU",
            Feature::QuickGelu => "quick GELU",
        }
    }
}

/// Window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Side of a window in image tokens.
    pub side: usize,
    /// Every n-th block has full attention instead.
    pub whole_every: usize,
}

/// A vision encoder's hyperparameters, validated.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// Type of the projector.
    pub projector: Projector,
    /// Embedding width of a patch.
    pub n_embd: usize,
    /// Feed-forward width.
    pub n_ff: usize,
    /// Number of blocks.
    pub n_block: usize,
    /// Number of attention heads.
    pub n_head: usize,
    /// Number of heads of keys and values, each for as many heads of queries.
    pub n_head_kv: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side in patches of the square that becomes one image token.
    pub merge: usize,
    /// Side of images or of tiles in pixels; 0 where images have any size.
    pub image_size: usize,
    /// Fewest and most tiles of an image, where the file chooses them; the overview does not count.
    pub tiles: [usize; 2],
    /// Sizes of images that are cut into tiles, where the file lists them.
    pub sizes: Vec<Size>,
    /// Longer side that images are resized to before they are cut into tiles; 0 if none is set.
    pub longest_side: usize,
    /// Embedding width of the text model.
    pub n_projected: usize,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Activation of the blocks; the projectors use GELU.
    pub feature: Feature,
    /// Mean of red, green and blue, subtracted from pixels in 0..1.
    pub mean: [f32; 3],
    /// Standard deviation of red, green and blue, a divisor after that.
    pub std: [f32; 3],
    /// Window attention, if used.
    pub windows: Option<Windows>,
    /// Blocks whose results are also projected, for the text model's first layers (deepstack).
    pub deepstack: Vec<usize>,
    entries: Vec<Entry>,
}

impl Hparams {
    /// Reads and checks everything; touches no tensor data.
    ///
    /// # Errors
    /// If a key is missing, out of range, or asks for an unimplemented feature.
    pub fn from_gguf(gguf: &Gguf) -> Result<Hparams, Error> {
        check_architecture(gguf)?;
        let mut k = Keys::new(gguf, ARCHITECTURE);
        k.note(
            "general.architecture".to_owned(),
            ARCHITECTURE,
            Source::File,
        );
        if !k.flag("has_vision_encoder", false)? {
            let key = k.full("has_vision_encoder");
            return Err(match k.get("has_vision_encoder") {
                Some(_) => k.bad(key, "true", "false"),
                None => k.missing(key, "true"),
            });
        }
        let projector = projector(&mut k)?;
        let spec = projector.spec();
        let feature = feature(&mut k)?;
        let least = usize::from(spec.has_blocks);
        let n_embd = k
            .count("vision.embedding_length", 4..=MAX_WIDTH, None)?
            .value;
        let heads = heads(&mut k, projector, n_embd)?;
        let n_block = k
            .count("vision.block_count", least..=least * MAX_LAYERS, None)?
            .value;
        if n_block > gguf.tensors().len() {
            let expected = format!("at most {}, the tensors of the file", gguf.tensors().len());
            let key = k.full("vision.block_count");
            return Err(k.bad(key, expected, n_block.to_string()));
        }
        let merge = spec.merge;
        let range = merge.least..=merge.most;
        let default = range.contains(&merge.default).then_some(merge.default);
        let merge = k.count(merge.key, range, default)?.value;
        let patch = k.count("vision.patch_size", 1..=MAX_PATCH, None)?.value;
        let mut h = Hparams {
            projector,
            n_embd,
            n_ff: k
                .count("vision.feed_forward_length", least..=MAX_WIDTH, None)?
                .value,
            n_block,
            n_head: heads[0],
            n_head_kv: heads[1],
            patch,
            merge,
            image_size: 0,
            tiles: [0; 2],
            sizes: Vec::new(),
            longest_side: 0,
            n_projected: k.count("vision.projection_dim", 1..=MAX_WIDTH, None)?.value,
            norm_eps: k
                .positive("vision.attention.layer_norm_epsilon", 1.0, None)?
                .value,
            feature,
            mean: colours(&mut k, "vision.image_mean", f32::NEG_INFINITY)?,
            std: colours(&mut k, "vision.image_std", 0.0)?,
            windows: None,
            deepstack: Vec::new(),
            entries: Vec::new(),
        };
        if !matches!(spec.images, Images::Dynamic { .. }) {
            read_image_size(&mut k, &mut h)?;
        }
        (spec.read_hparams)(&mut k, &mut h)?;
        h.entries = k.entries;
        Ok(h)
    }

    /// Returns every value in use, in a fixed order, with its source.
    pub fn report(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the width of a head; 0 without heads.
    pub fn head_dim(&self) -> usize {
        self.n_embd.checked_div(self.n_head).unwrap_or(0)
    }

    /// Returns the width of the queries of all heads.
    pub(super) fn q_width(&self) -> usize {
        self.n_head * self.head_dim()
    }

    /// Returns the widths of queries, keys and values.
    pub(super) fn qkv_rows(&self) -> [usize; 3] {
        let kv = self.n_head_kv * self.head_dim();
        [self.q_width(), kv, kv]
    }

    /// Returns the width of the concatenated patches of an image token.
    pub(super) fn merged(&self) -> usize {
        self.merge * self.merge * self.n_embd
    }

    /// Returns the number of values of a patch's pixels.
    pub fn patch_values(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Returns the side of an image token in pixels.
    pub fn unit(&self) -> usize {
        self.merge * self.patch
    }

    /// Returns the rows beside the patches of an image: the class row, and as many more as make it
    /// an image token.
    pub fn extra_rows(&self) -> usize {
        usize::from(self.projector.spec().has_class_row) * self.merge * self.merge
    }

    /// Returns whether a block has full attention.
    pub fn sees_all(&self, block: usize) -> bool {
        // those more rows are left out
        let all = self.extra_rows() < 2;
        self.windows.map_or(all, |windows| {
            (block + 1).is_multiple_of(windows.whole_every)
        })
    }
}

fn check_architecture(gguf: &Gguf) -> Result<(), Error> {
    const KEY: &str = "general.architecture";
    let expected = "\"clip\", for a file of a vision tower (mmproj)".to_owned();
    let (file, key) = (gguf.name().to_owned(), KEY.to_owned());
    match gguf.get(KEY) {
        Some(Value::Str(s)) if s == ARCHITECTURE.as_bytes() => Ok(()),
        Some(v) => Err(Error::BadValue {
            file,
            key,
            expected,
            got: show(&v),
        }),
        None => Err(Error::MissingKey {
            file,
            key,
            expected,
        }),
    }
}

/// Reads the projector's type. Files that also have an audio encoder name the projector of each.
fn projector(k: &mut Keys<'_>) -> Result<Projector, Error> {
    const OWN: &str = "vision.projector_type";
    let suffix = match k.text("projector_type")? {
        Some(_) => "projector_type",
        None => OWN,
    };
    let key = k.full(suffix);
    let names: Vec<&str> = Projector::names().collect();
    let expected = Choice(&names).to_string();
    let name = k.text(suffix)?;
    let name = name.ok_or_else(|| k.missing(k.full("projector_type"), &*expected))?;
    let found = Projector::named(name);
    let found = found.ok_or_else(|| {
        let got = show(&Value::Str(name.as_bytes()));
        k.bad(key.clone(), &*expected, got)
    })?;
    k.note(key, name, Source::File);
    Ok(found)
}

/// Reads the numbers of heads, of queries and of keys.
fn heads(k: &mut Keys<'_>, projector: Projector, n_embd: usize) -> Result<[usize; 2], Error> {
    const HEADS: &str = "vision.attention.head_count";
    const HEADS_KV: &str = "vision.attention.head_count_kv";
    let spec = projector.spec();
    if !spec.has_blocks {
        k.count(HEADS, 0..=0, Some(0))?;
        return Ok([0; 2]);
    }
    let n_head = k.count(HEADS, 1..=MAX_HEADS, None)?.value;
    let multiple = spec.head_multiple;
    if !n_embd.is_multiple_of(n_head) || !(n_embd / n_head).is_multiple_of(multiple) {
        let expected = format!("heads of a multiple of {multiple} values of {n_embd}");
        return Err(k.bad(k.full(HEADS), expected, n_head.to_string()));
    }
    let n_head_kv = match k.get(HEADS_KV) {
        Some(_) => k.count(HEADS_KV, 1..=n_head, None)?.value,
        None => n_head,
    };
    if !n_head.is_multiple_of(n_head_kv) {
        let expected = format!("a divisor of head_count, {n_head}");
        return Err(k.bad(k.full(HEADS_KV), expected, n_head_kv.to_string()));
    }
    Ok([n_head, n_head_kv])
}

/// Reads the side of images or tiles, which is whole image tokens but for a rest of pixels that is
/// smaller than a patch.
fn read_image_size(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    const SIZE: &str = "vision.image_size";
    const LONGEST: &str = "vision.preproc_image_size";
    h.image_size = k.count(SIZE, h.patch..=MAX_IMAGE, None)?.value;
    if !(h.image_size / h.patch).is_multiple_of(h.merge) {
        let expected = format!("whole squares of {} patches on each side", h.merge);
        return Err(k.bad(k.full(SIZE), expected, h.image_size.to_string()));
    }
    if k.get(LONGEST).is_some() {
        h.longest_side = k.count(LONGEST, 0..=MAX_IMAGE, None)?.value;
    }
    Ok(())
}

fn feature(k: &mut Keys<'_>) -> Result<Feature, Error> {
    let (gelu, silu) = (k.flag("use_gelu", false)?, k.flag("use_silu", false)?);
    match (gelu, silu) {
        (true, true) => {
            let key = k.full("use_silu");
            Err(k.bad(key, "false beside clip.use_gelu", "true"))
        }
        (true, false) => Ok(Feature::Gelu),
        (false, true) => Ok(Feature::Silu),
        (false, false) => Ok(Feature::QuickGelu),
    }
}

/// Reads one number per colour, finite and above `above`.
fn colours(k: &mut Keys<'_>, suffix: &str, above: f32) -> Result<[f32; 3], Error> {
    let key = k.full(suffix);
    let expected = match above {
        f32::NEG_INFINITY => "3 finite numbers".to_owned(),
        _ => format!("3 finite numbers above {above}"),
    };
    let Some(value) = k.get(suffix) else {
        return Err(k.missing(key, expected));
    };
    let numbers: Option<Vec<f32>> = match &value {
        Value::Array(all) => all
            .iter()
            .map(|v| match v {
                Value::F32(x) => Some(x).filter(|x| x.is_finite() && *x > above),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    let numbers = numbers.and_then(|all| <[f32; 3]>::try_from(all).ok());
    let numbers = numbers.ok_or_else(|| k.bad(key.clone(), expected, show(&value)))?;
    let shown: Vec<serde_json::Value> = numbers.map(octavo_model::keys::json_f32).to_vec();
    k.note(key, shown, Source::File);
    Ok(numbers)
}
