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
}

impl Kind {
    /// Returns llama.cpp's name of the projector.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3vl_merger",
            Self::Qwen25 => "qwen2.5vl_merger",
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
    /// Side of a patch in pixels.
    pub(super) patch: usize,
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
        let n_head = keys.count("attention.head_count")?;
        // each of the two axes rotates half of a head, in pairs
        if !n_embd.is_multiple_of(n_head) || !(n_embd / n_head).is_multiple_of(4) {
            let expected = format!("heads of a multiple of 4 values of {n_embd}");
            return Err(keys.bad("attention.head_count", expected, n_head));
        }
        let n_block = keys.count("block_count")?;
        if n_block > gguf.tensors().len() {
            let expected = "no more blocks than the file has tensors";
            return Err(keys.bad("block_count", expected, n_block));
        }
        check_merge(&keys)?;
        let patch = read_width(&keys, "patch_size")?;
        const EPSILON: &str = "attention.layer_norm_epsilon";
        Ok(Self {
            kind,
            n_embd,
            n_ff: read_width(&keys, "feed_forward_length")?,
            n_block,
            n_head,
            patch,
            n_projected: read_width(&keys, "projection_dim")?,
            norm_eps: keys.number(EPSILON)?.ok_or_else(|| keys.missing(EPSILON))?,
            activation: read_activation(gguf)?,
            windows: read_windows(&keys, kind, patch)?,
            deepstack: match kind {
                Kind::Qwen3 => deepstack_blocks(gguf, n_block),
                Kind::Qwen25 => Vec::new(),
            },
        })
    }

    /// Returns the width of a head.
    pub(super) fn head_dim(&self) -> usize {
        self.n_embd / self.n_head
    }

    /// Returns the width of the concatenated rows of 2 x 2 patches.
    pub(super) fn n_merged(&self) -> usize {
        4 * self.n_embd
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
    match got {
        "qwen3vl_merger" => Ok(Kind::Qwen3),
        "qwen2.5vl_merger" | "qwen2.5o" => Ok(Kind::Qwen25),
        _ => Err(Error::BadKey {
            file: gguf.name().into(),
            key: key.into(),
            expected: "qwen3vl_merger, qwen2.5vl_merger or qwen2.5o".into(),
            got: got.into(),
        }),
    }
}

fn read_width(keys: &Keys<'_>, key: &str) -> Result<usize, Error> {
    let width = keys.count(key)?;
    if width > MAX_WIDTH {
        return Err(keys.bad(key, format!("at most {MAX_WIDTH}"), width));
    }
    Ok(width)
}

fn check_merge(keys: &Keys<'_>) -> Result<(), Error> {
    const MERGE: &str = "spatial_merge_size";
    match keys.integer(MERGE)? {
        None | Some(2) => Ok(()),
        Some(other) => Err(keys.bad(MERGE, 2, other)),
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
    if kind == Kind::Qwen3 {
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
