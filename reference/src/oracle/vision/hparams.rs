//! The numbers of a vision encoder, straight from its GGUF keys.

use super::super::hparams::{Keys, MAX_WIDTH};
use super::super::math::Activation;
use crate::Error;
use gguf_rs_lite::Gguf;

/// Vision encoders the oracle implements, by projector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// LayerNorm, a table of position embeddings, full attention.
    Qwen3,
    /// RMS norm, gated blocks, window attention in most blocks.
    Qwen25,
    /// SigLIP; squares of patches are averaged.
    Gemma3,
    /// RMS norms everywhere, positions and RoPE by axis, clamped products.
    Gemma4,
    /// Norms and a product, no blocks.
    Gemma4Unified,
    /// RMS norms, gated blocks, RoPE by axis.
    Pixtral,
    /// SigLIP on tiles; squares of patches become one row.
    Idefics3,
    /// A class row after the patches, factors on results of blocks, tiles.
    InternVl,
    /// SigLIP 2 on images of any size, large ones in tiles.
    Lfm2,
    /// CLIP without its last block, a class row, squares or tiles.
    Llava,
    /// Layer norms, RoPE by axis, a table of positions that is resized.
    KimiVl,
}

/// Kinds by llama.cpp's names of their projectors.
const KINDS: [(&str, Kind); 12] = [
    ("qwen3vl_merger", Kind::Qwen3),
    ("qwen2.5vl_merger", Kind::Qwen25),
    ("qwen2.5o", Kind::Qwen25),
    ("gemma3", Kind::Gemma3),
    ("gemma4v", Kind::Gemma4),
    ("gemma4uv", Kind::Gemma4Unified),
    ("pixtral", Kind::Pixtral),
    ("idefics3", Kind::Idefics3),
    ("internvl", Kind::InternVl),
    ("lfm2", Kind::Lfm2),
    ("mlp", Kind::Llava),
    ("kimivl", Kind::KimiVl),
];

impl Kind {
    /// Returns llama.cpp's name of the projector.
    pub(super) fn name(self) -> &'static str {
        let own = KINDS.iter().find(|(_, kind)| *kind == self);
        own.map_or("", |(name, _)| name)
    }

    /// Returns whether it is one of Qwen's.
    pub(super) fn is_qwen(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen25)
    }

    /// Returns whether blocks have RMS norms, and not layer norms.
    pub(super) fn has_rms_norms(self) -> bool {
        matches!(self, Self::Qwen25 | Self::Gemma4 | Self::Pixtral)
    }

    /// Returns whether the products of blocks have biases.
    pub(super) fn has_biases(self) -> bool {
        !matches!(self, Self::Gemma4 | Self::Gemma4Unified | Self::Pixtral)
    }

    /// Returns whether images, or tiles, are squares of one size.
    pub(super) fn is_square(self) -> bool {
        matches!(
            self,
            Self::Gemma3 | Self::Idefics3 | Self::InternVl | Self::Llava
        )
    }

    /// Returns whether queries and keys are rotated.
    pub(super) fn has_rope(self) -> bool {
        !self.is_square() && self != Self::Lfm2
    }

    /// Returns whether a class row follows the patches.
    pub(super) fn has_class_row(self) -> bool {
        matches!(self, Self::InternVl | Self::Llava)
    }

    /// Returns whether old files have the products up and down the other way round.
    pub(super) fn swaps_feed_forward(self) -> bool {
        matches!(self, Self::Gemma3 | Self::Idefics3 | Self::Llava)
    }

    /// Returns whether the table of positions is resized to an image, with weights of all entries
    /// that a patch covers.
    pub(super) fn resizes_positions(self) -> bool {
        matches!(self, Self::Lfm2 | Self::KimiVl)
    }

    /// Returns the key of the side of an image token in patches, and its default.
    fn merge(self) -> (&'static str, Option<usize>) {
        match self {
            Self::Qwen3 | Self::Qwen25 => ("spatial_merge_size", Some(2)),
            Self::Pixtral => ("spatial_merge_size", Some(1)),
            Self::Gemma3 => ("projector.scale_factor", Some(4)),
            Self::Gemma4 | Self::Gemma4Unified => ("projector.scale_factor", Some(3)),
            Self::Idefics3 | Self::Lfm2 | Self::KimiVl => ("projector.scale_factor", None),
            Self::InternVl | Self::Llava => ("projector.scale_factor", Some(1)),
        }
    }
}

/// Window attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    /// Side of a window in image tokens.
    pub(super) side: usize,
    /// Every n-th block has full attention instead.
    pub(super) whole_every: usize,
}

/// Everything the encoder needs that is not a tensor.
#[derive(Debug)]
pub(super) struct Hparams {
    pub(super) kind: Kind,
    /// Embedding width of a patch.
    pub(super) n_embd: usize,
    pub(super) n_ff: usize,
    pub(super) n_block: usize,
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    /// Side of a patch in pixels.
    pub(super) patch: usize,
    /// Side of an image token in patches.
    pub(super) merge: usize,
    /// Side of images or tiles in pixels, where all have one.
    pub(super) image_size: Option<usize>,
    /// Embedding width of the text model.
    pub(super) n_projected: usize,
    pub(super) norm_eps: f64,
    /// Activation of the blocks; the projectors use GELU.
    pub(super) activation: Activation,
    pub(super) windows: Option<Windows>,
    /// Blocks whose results are also projected, for the text model's first layers (deepstack).
    pub(super) deepstack: Vec<usize>,
}

impl Hparams {
    pub(super) fn read(gguf: &Gguf) -> Result<Self, Error> {
        check_file(gguf)?;
        let kind = read_kind(gguf)?;
        let keys = Keys {
            gguf,
            prefix: "clip.vision",
        };
        let n_embd = read_width(&keys, "embedding_length")?;
        let has_blocks = kind != Kind::Gemma4Unified;
        let some = |key: &str| match has_blocks {
            true => keys.count(key),
            false => Ok(0),
        };
        let n_head = some("attention.head_count")?;
        // each of two axes rotates half of a head, in pairs
        let multiple = if kind.has_rope() { 4 } else { 2 };
        if n_head > 0
            && (!n_embd.is_multiple_of(n_head) || !(n_embd / n_head).is_multiple_of(multiple))
        {
            let expected = format!("heads of a multiple of {multiple} values of {n_embd}");
            return Err(keys.bad("attention.head_count", expected, n_head));
        }
        let n_head_kv = match keys.integer("attention.head_count_kv")? {
            Some(_) => keys.count("attention.head_count_kv")?,
            None => n_head,
        };
        let n_block = some("block_count")?;
        // LLaVA's last block is not run
        let n_block = n_block - usize::from(kind == Kind::Llava);
        if n_block > gguf.tensors().len() {
            let expected = "no more blocks than the file has tensors";
            return Err(keys.bad("block_count", expected, n_block));
        }
        let mut merge = read_merge(&keys, kind)?;
        let mut patch = read_width(&keys, "patch_size")?;
        if kind == Kind::Gemma4Unified {
            // its patches are what other encoders merge
            (patch, merge) = (patch * merge, 1);
        }
        const EPSILON: &str = "attention.layer_norm_epsilon";
        Ok(Self {
            kind,
            n_embd,
            n_ff: if has_blocks {
                read_width(&keys, "feed_forward_length")?
            } else {
                0
            },
            n_block,
            n_head,
            n_head_kv,
            patch,
            merge,
            image_size: match kind.is_square() {
                true => Some(read_width(&keys, "image_size")?),
                false => None,
            },
            n_projected: read_width(&keys, "projection_dim")?,
            norm_eps: keys.number(EPSILON)?.ok_or_else(|| keys.missing(EPSILON))?,
            activation: read_activation(gguf)?,
            windows: read_windows(&keys, kind, patch)?,
            deepstack: match kind {
                Kind::Qwen3 => deepstack_blocks(gguf, n_block),
                _ => Vec::new(),
            },
        })
    }

    /// Returns the width of a head.
    pub(super) fn head_dim(&self) -> usize {
        self.n_embd.checked_div(self.n_head).unwrap_or(0)
    }

    /// Returns the width of the concatenated rows of an image token's patches.
    pub(super) fn n_merged(&self) -> usize {
        self.merge * self.merge * self.n_embd
    }
}

fn check_file(gguf: &Gguf) -> Result<(), Error> {
    let architecture = gguf.str("general.architecture")?.unwrap_or("");
    if architecture != "clip" {
        return Err(Error::Architecture {
            file: gguf.name().into(),
            expected: "clip".into(),
            got: architecture.into(),
        });
    }
    const VISION: &str = "clip.has_vision_encoder";
    match gguf.bool(VISION)? {
        Some(true) => Ok(()),
        other => Err(Error::BadKey {
            file: gguf.name().into(),
            key: VISION.into(),
            expected: "true".into(),
            got: other.map_or("nothing".into(), |value| value.to_string()),
        }),
    }
}

/// Reads the projector's type. Files that also have an audio encoder name the projector of each.
fn read_kind(gguf: &Gguf) -> Result<Kind, Error> {
    const BOTH: &str = "clip.projector_type";
    const VISION: &str = "clip.vision.projector_type";
    let (key, got) = match gguf.str(BOTH)? {
        Some(name) => (BOTH, name),
        None => (VISION, gguf.str(VISION)?.unwrap_or("nothing")),
    };
    let known = KINDS.iter().find(|(name, _)| *name == got);
    known.map(|(_, kind)| *kind).ok_or_else(|| Error::BadKey {
        file: gguf.name().into(),
        key: key.into(),
        expected: KINDS.map(|(name, _)| name).join(", "),
        got: got.into(),
    })
}

fn read_width(keys: &Keys<'_>, key: &str) -> Result<usize, Error> {
    let width = keys.count(key)?;
    if width > MAX_WIDTH {
        return Err(keys.bad(key, format!("at most {MAX_WIDTH}"), width));
    }
    Ok(width)
}

fn read_merge(keys: &Keys<'_>, kind: Kind) -> Result<usize, Error> {
    let (key, default) = kind.merge();
    let merge = match (keys.integer(key)?, default) {
        (None, Some(default)) => default,
        _ => keys.count(key)?,
    };
    match kind.is_qwen() && merge != 2 || merge > MAX_WIDTH.isqrt() {
        true => Err(keys.bad(key, 2, merge)),
        false => Ok(merge),
    }
}

fn read_activation(gguf: &Gguf) -> Result<Activation, Error> {
    const GELU: &str = "clip.use_gelu";
    const SILU: &str = "clip.use_silu";
    let flag = |key| Ok::<_, Error>(gguf.bool(key)?.unwrap_or(false));
    match (flag(GELU)?, flag(SILU)?) {
        (true, false) => Ok(Activation::Gelu),
        (false, true) => Ok(Activation::Silu),
        (false, false) => Ok(Activation::GeluQuick),
        (true, true) => Err(Error::BadKey {
            file: gguf.name().into(),
            key: SILU.into(),
            expected: format!("not true beside {GELU}"),
            got: "true".into(),
        }),
    }
}

/// Reads the windows, which are 112 pixels wide.
fn read_windows(keys: &Keys<'_>, kind: Kind, patch: usize) -> Result<Option<Windows>, Error> {
    const SIDE: usize = 112;
    if kind != Kind::Qwen25 {
        return Ok(None);
    }
    let whole_every = keys.count("n_wa_pattern")?;
    match SIDE / (2 * patch) {
        0 => Err(keys.bad("patch_size", format!("at most {}", SIDE / 2), patch)),
        side => Ok(Some(Windows { side, whole_every })),
    }
}

/// Returns the deepstack blocks. A key names these too, but llama.cpp decides by the tensors.
fn deepstack_blocks(gguf: &Gguf, n_block: usize) -> Vec<usize> {
    let has = |block: &usize| {
        let name = format!("v.deepstack.{block}.fc1.weight");
        gguf.tensor(&name).is_some()
    };
    (0..n_block).filter(has).collect()
}
