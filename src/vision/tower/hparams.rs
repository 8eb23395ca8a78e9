//! A vision encoder's hyperparameters, checked before any tensor is read, each with its source.

use gguf_rs_lite::{Gguf, Value};
use octavo_kernels::MERGED_ROWS;
use octavo_model::hparams::{MAX_HEADS, MAX_LAYERS, MAX_WIDTH};
use octavo_model::keys::{Entry, Keys, Source, show};
use octavo_model::{Error, graph::Norm};

use super::ARCHITECTURE;

/// Maximum side of a patch: far beyond any real one, and small enough that no product overflows.
const MAX_PATCH: usize = 256;
/// Side of an attention window in pixels, in Qwen 2.5 VL; no key stores it.
const WINDOW_PIXELS: usize = 112;
/// Side in patches of the square that is merged into one image token.
pub(super) const MERGE: usize = 2;
const _: () = assert!(MERGE * MERGE == MERGED_ROWS);

/// Type of the projector, which also determines the encoder's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projector {
    /// Qwen 3 VL: layer norms, a table of position embeddings, full attention.
    Qwen3Vl,
    /// Qwen 2.5 VL: RMS norms, gated feed-forward blocks, window attention.
    Qwen25Vl,
}

impl Projector {
    /// Returns llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            Projector::Qwen3Vl => "qwen3vl_merger",
            Projector::Qwen25Vl => "qwen2.5vl_merger",
        }
    }

    /// Returns the kind of norm.
    pub fn norm(self) -> Norm {
        match self {
            Projector::Qwen3Vl => Norm::Layer,
            Projector::Qwen25Vl => Norm::Rms,
        }
    }
}

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
    /// Side of a patch in pixels.
    pub patch: usize,
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
        let feature = feature(&mut k, projector)?;
        let n_embd = k
            .count("vision.embedding_length", 4..=MAX_WIDTH, None)?
            .value;
        let n_head = k
            .count("vision.attention.head_count", 1..=MAX_HEADS, None)?
            .value;
        // each of the two axes rotates half of a head, in pairs
        if !n_embd.is_multiple_of(n_head) || !(n_embd / n_head).is_multiple_of(4) {
            let key = k.full("vision.attention.head_count");
            let expected = format!("heads of a multiple of 4 values of {n_embd}");
            return Err(k.bad(key, expected, n_head.to_string()));
        }
        let n_block = k.count("vision.block_count", 1..=MAX_LAYERS, None)?.value;
        if n_block > gguf.tensors().len() {
            let expected = format!("at most {}, the tensors of the file", gguf.tensors().len());
            let key = k.full("vision.block_count");
            return Err(k.bad(key, expected, n_block.to_string()));
        }
        k.count("vision.spatial_merge_size", MERGE..=MERGE, Some(MERGE))?;
        let patch = k.count("vision.patch_size", 1..=MAX_PATCH, None)?.value;
        Ok(Hparams {
            projector,
            n_embd,
            n_ff: k
                .count("vision.feed_forward_length", 1..=MAX_WIDTH, None)?
                .value,
            n_block,
            n_head,
            patch,
            n_projected: k.count("vision.projection_dim", 1..=MAX_WIDTH, None)?.value,
            norm_eps: k
                .positive("vision.attention.layer_norm_epsilon", 1.0, None)?
                .value,
            feature,
            mean: colours(&mut k, "vision.image_mean", f32::NEG_INFINITY)?,
            std: colours(&mut k, "vision.image_std", 0.0)?,
            windows: match projector {
                Projector::Qwen3Vl => None,
                Projector::Qwen25Vl => Some(windows(&mut k, patch)?),
            },
            deepstack: match projector {
                Projector::Qwen3Vl => deepstack(gguf, n_block),
                Projector::Qwen25Vl => Vec::new(),
            },
            entries: k.entries,
        })
    }

    /// Returns every value in use, in a fixed order, with its source.
    pub fn report(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the width of a head.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_head
    }

    /// Returns the number of values of a patch's pixels.
    pub fn patch_values(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Returns the side of an image token in pixels.
    pub fn unit(&self) -> usize {
        MERGE * self.patch
    }

    /// Returns whether a block has full attention.
    pub fn sees_all(&self, block: usize) -> bool {
        self.windows
            .is_none_or(|windows| (block + 1).is_multiple_of(windows.whole_every))
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
    const EXPECTED: &str = "qwen3vl_merger, qwen2.5vl_merger or qwen2.5o";
    let name = k.text(suffix)?;
    let name = name.ok_or_else(|| k.missing(k.full("projector_type"), EXPECTED))?;
    let found = match name {
        "qwen3vl_merger" => Projector::Qwen3Vl,
        // the second is Qwen 2.5 Omni's, whose vision encoder is the same
        "qwen2.5vl_merger" | "qwen2.5o" => Projector::Qwen25Vl,
        _ => return Err(k.bad(key, EXPECTED, show(&Value::Str(name.as_bytes())))),
    };
    k.note(key, name, Source::File);
    Ok(found)
}

fn feature(k: &mut Keys<'_>, projector: Projector) -> Result<Feature, Error> {
    let (gelu, silu) = (k.flag("use_gelu", false)?, k.flag("use_silu", false)?);
    match (gelu, silu, projector) {
        (true, true, _) => {
            let key = k.full("use_silu");
            Err(k.bad(key, "false beside clip.use_gelu", "true"))
        }
        (true, false, _) => Ok(Feature::Gelu),
        (false, true, _) => Ok(Feature::Silu),
        (false, false, Projector::Qwen3Vl) => Ok(Feature::QuickGelu),
        (false, false, Projector::Qwen25Vl) => {
            let key = k.full("use_silu");
            Err(k.bad(key, "true, or clip.use_gelu, for gated blocks", "false"))
        }
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

fn windows(k: &mut Keys<'_>, patch: usize) -> Result<Windows, Error> {
    let whole_every = k.count("vision.n_wa_pattern", 1..=MAX_LAYERS, None)?.value;
    match WINDOW_PIXELS / (MERGE * patch) {
        0 => {
            let expected = format!("at most {}", WINDOW_PIXELS / MERGE);
            let key = k.full("vision.patch_size");
            Err(k.bad(key, expected, patch.to_string()))
        }
        side => Ok(Windows { side, whole_every }),
    }
}

/// Returns the deepstack blocks. A key names these too, but llama.cpp decides by the tensors.
fn deepstack(gguf: &Gguf, n_block: usize) -> Vec<usize> {
    let has = |block: &usize| {
        let name = format!("v.deepstack.{block}.fc1.weight");
        gguf.tensor(&name).is_some()
    };
    (0..n_block).filter(has).collect()
}
