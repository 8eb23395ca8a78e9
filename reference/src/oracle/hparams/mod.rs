//! The numbers of a model, straight from its GGUF keys, with llama.cpp's defaults and nothing else.

mod experts;
mod keys;
mod rope;
mod windows;

use super::architecture::{ARCHITECTURES, Architecture, QkNorm, Rotated, Scales};
use super::rope::Rope;
use crate::Error;
pub(super) use experts::{Groups, LayerExperts, Routing};
use gguf_rs_lite::Gguf;
use keys::Keys;
use rope::Contexts;

/// Bounds the tables that are allocated from a key alone, before any tensor's dims confirm it.
const MAX_WIDTH: usize = 1 << 20;

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerDims {
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    pub(super) n_ff: usize,
    /// A query sees this many keys, its own with them; without it all up to its own.
    pub(super) window: Option<usize>,
    /// Queries and keys are rotated.
    pub(super) rotates: bool,
    /// In place of the dense block.
    pub(super) experts: Option<LayerExperts>,
}

/// Factors of the whole model; 1 where an architecture has none.
#[derive(Debug)]
pub(super) struct Factors {
    pub(super) embedding: f64,
    /// Of both branches, before they are added to the stream.
    pub(super) residual: f64,
    pub(super) logits: f64,
}

/// Queries grow with the position: by `1 + strength · ln(1 + ⌊position / length⌋)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Temperature {
    pub(super) strength: f64,
    pub(super) length: usize,
}

/// Everything the forward pass needs that is not a tensor.
#[derive(Debug)]
pub(super) struct Hparams {
    pub(super) architecture: &'static Architecture,
    pub(super) n_embd: usize,
    pub(super) head_dim: usize,
    pub(super) norm_eps: f64,
    pub(super) rope: Rope,
    /// That of layers with a window.
    pub(super) window_rope: Rope,
    pub(super) contexts: Contexts,
    /// Some layers have windows, or could have: llama.cpp then keeps two caches.
    pub(super) has_windows: bool,
    pub(super) layers: Vec<LayerDims>,
    /// How experts are chosen, where layers have them.
    pub(super) routing: Option<Routing>,
    /// Layers behind these that predict further tokens and have no part in the logits.
    pub(super) n_skipped: usize,
    /// What the norm of queries and keys covers.
    pub(super) qk_norm: QkNorm,
    /// Multiplies scores.
    pub(super) score_scale: f64,
    pub(super) score_cap: Option<f64>,
    pub(super) logit_cap: Option<f64>,
    pub(super) temperature: Option<Temperature>,
    pub(super) factors: Factors,
}

impl Hparams {
    pub(super) fn read(gguf: &Gguf) -> Result<Self, Error> {
        let architecture = read_architecture(gguf)?;
        let keys = Keys {
            gguf,
            prefix: architecture.name,
        };
        let n_embd = keys.count("embedding_length")?;
        let (n_layer, n_skipped) = read_layer_counts(&keys)?;
        let (n_head, n_head_kv) = read_heads(&keys, n_layer)?;
        let n_ff = keys.required_per_layer("feed_forward_length", n_layer)?;
        let head_dim = read_head_dim(&keys, n_embd, &n_head)?;
        let windows = windows::read(&keys, architecture, n_layer)?;
        let rotates = read_rotated(&keys, architecture, &windows)?;
        let (routing, experts) = experts::read(&keys, architecture, &n_ff)?;
        let layers = (0..n_layer)
            .map(|il| LayerDims {
                n_head: n_head[il],
                n_head_kv: n_head_kv[il],
                n_ff: n_ff[il],
                window: windows.as_ref().and_then(|windows| windows[il]),
                rotates: rotates(il),
                experts: experts[il],
            })
            .collect();
        let (rope, window_rope) = rope::read(&keys, architecture, head_dim)?;
        Ok(Self {
            architecture,
            n_embd,
            head_dim,
            norm_eps: read_norm_eps(&keys, architecture)?,
            rope,
            window_rope,
            contexts: rope::read_contexts(&keys, architecture)?,
            has_windows: windows.is_some(),
            layers,
            routing,
            n_skipped,
            qk_norm: read_qk_norm(gguf, architecture, n_layer),
            score_scale: read_score_scale(
                &keys,
                architecture,
                [n_embd, n_head[0]],
                head_dim,
                n_layer,
            )?,
            score_cap: read_score_cap(&keys, architecture)?,
            logit_cap: match keys.number("final_logit_softcapping")? {
                None => architecture.logit_cap,
                cap => cap.filter(|&cap| cap != 0.0),
            },
            temperature: read_temperature(&keys)?,
            factors: read_factors(&keys, architecture, n_embd, n_layer)?,
        })
    }

    /// The rotation of a layer, if it has one.
    pub(super) fn rope_of(&self, layer: &LayerDims) -> Option<&Rope> {
        let rope = match layer.window {
            Some(_) => &self.window_rope,
            None => &self.rope,
        };
        layer.rotates.then_some(rope)
    }
}

fn read_architecture(gguf: &Gguf) -> Result<&'static Architecture, Error> {
    let got = gguf.str("general.architecture")?.unwrap_or("");
    let known = ARCHITECTURES.iter().find(|known| known.name == got);
    known.ok_or_else(|| {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        Error::Architecture {
            file: gguf.name().into(),
            expected: names.join(", "),
            got: got.into(),
        }
    })
}

/// Layers that make logits, and layers behind them that predict further tokens.
fn read_layer_counts(keys: &Keys<'_>) -> Result<(usize, usize), Error> {
    let n_block = keys.count("block_count")?;
    let n_tensors = keys.gguf.tensors().len();
    if n_block > n_tensors {
        let expected = "no more layers than the file has tensors";
        return Err(keys.bad("block_count", expected, n_block));
    }
    let n_skipped = keys.integer("nextn_predict_layers")?.unwrap_or(0);
    if n_skipped >= n_block {
        let expected = format!("fewer than the {n_block} layers");
        return Err(keys.bad("nextn_predict_layers", expected, n_skipped));
    }
    Ok((n_block - n_skipped, n_skipped))
}

/// Query heads and key-value heads of each layer.
fn read_heads(keys: &Keys<'_>, n_layer: usize) -> Result<(Vec<usize>, Vec<usize>), Error> {
    let n_head = keys.required_per_layer("attention.head_count", n_layer)?;
    let n_head_kv = keys
        .per_layer("attention.head_count_kv", n_layer)?
        .unwrap_or_else(|| n_head.clone());
    for (il, (&heads, &kv_heads)) in n_head.iter().zip(&n_head_kv).enumerate() {
        if heads % kv_heads != 0 {
            let expected = format!("a divisor of the {heads} query heads of layer {il}");
            return Err(keys.bad("attention.head_count_kv", expected, kv_heads));
        }
    }
    Ok((n_head, n_head_kv))
}

fn read_norm_eps(keys: &Keys<'_>, architecture: &Architecture) -> Result<f64, Error> {
    let key = architecture.norm.epsilon_key();
    keys.number(key)?.ok_or_else(|| keys.missing(key))
}

/// Values of a head, keys and values alike.
fn read_head_dim(keys: &Keys<'_>, n_embd: usize, n_head: &[usize]) -> Result<usize, Error> {
    // The default head width is taken from layer 0, as in llama.cpp, even when other layers
    // have other head counts.
    let head_dim = keys
        .optional_count("attention.key_length")?
        .unwrap_or(n_embd / n_head[0]);
    let value_length = keys
        .optional_count("attention.value_length")?
        .unwrap_or(n_embd / n_head[0]);
    if value_length != head_dim {
        let expected = format!("{head_dim}, the key length");
        return Err(keys.bad("attention.value_length", expected, value_length));
    }
    if head_dim == 0 {
        let expected = format!("at most {n_embd}, the embedding length");
        return Err(keys.bad("attention.head_count", expected, n_head[0]));
    }
    let widest = n_head
        .iter()
        .max()
        .and_then(|&heads| heads.checked_mul(head_dim));
    if widest.is_none_or(|width| width > MAX_WIDTH) {
        let expected = format!("heads of at most {MAX_WIDTH} elements together");
        return Err(keys.bad("attention.key_length", expected, head_dim));
    }
    Ok(head_dim)
}

/// Which layers rotate queries and keys.
fn read_rotated<'w>(
    keys: &Keys<'_>,
    architecture: &Architecture,
    windows: &'w Option<Vec<Option<usize>>>,
) -> Result<impl Fn(usize) -> bool + use<'w>, Error> {
    let rotated = architecture.rotated;
    let finetuned = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    Ok(move |il: usize| match rotated {
        Rotated::All => true,
        Rotated::ThreeOfFour => !(il + 1).is_multiple_of(4),
        Rotated::Windowed => windows.as_ref().is_none_or(|windows| windows[il].is_some()),
        Rotated::IfFinetuned => finetuned,
    })
}

fn read_qk_norm(gguf: &Gguf, architecture: &Architecture, n_layer: usize) -> QkNorm {
    match architecture.qk_norm {
        QkNorm::EachHeadFrom(least) if n_layer < least => QkNorm::None,
        QkNorm::HeadIfPresent if gguf.tensor("blk.0.attn_q_norm.weight").is_none() => QkNorm::None,
        norm => norm,
    }
}

fn read_score_scale(
    keys: &Keys<'_>,
    architecture: &Architecture,
    [n_embd, n_head]: [usize; 2],
    head_dim: usize,
    n_layer: usize,
) -> Result<f64, Error> {
    let width = if architecture.wide_score_scale_at == Some(n_layer) {
        n_embd as f64 / n_head as f64
    } else {
        head_dim as f64
    };
    let scale = 1.0 / width.sqrt();
    Ok(keys.factor("attention.scale")?.unwrap_or(scale))
}

fn read_score_cap(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<f64>, Error> {
    let Some(default) = architecture.score_cap else {
        return Ok(None);
    };
    let cap = keys.number("attn_logit_softcapping")?.unwrap_or(default);
    if cap == 0.0 {
        return Err(keys.bad("attn_logit_softcapping", "more than 0", cap));
    }
    Ok(Some(cap))
}

fn read_temperature(keys: &Keys<'_>) -> Result<Option<Temperature>, Error> {
    let Some(strength) = keys.factor("attention.temperature_scale")? else {
        return Ok(None);
    };
    let length = match keys.optional_count("rope.scaling.original_context_length")? {
        Some(length) => length,
        None => keys.count("context_length")?,
    };
    Ok(Some(Temperature { strength, length }))
}

fn read_factors(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
    n_layer: usize,
) -> Result<Factors, Error> {
    let keyed = |key, default| Ok::<_, Error>(keys.factor(key)?.unwrap_or(default));
    let mut factors = Factors {
        embedding: 1.0,
        residual: 1.0,
        logits: 1.0,
    };
    let wide = n_embd as f64;
    match architecture.scales {
        Scales::None => {}
        Scales::Embedding => factors.embedding = wide.sqrt(),
        Scales::Logits => factors.logits = keyed("logit_scale", 1.0)?,
        Scales::Granite => {
            let divisor = keys
                .factor("logit_scale")?
                .ok_or_else(|| keys.missing("logit_scale"))?;
            factors = Factors {
                embedding: keyed("embedding_scale", 1.0)?,
                residual: keyed("residual_scale", 1.0)?,
                logits: 1.0 / divisor,
            };
        }
        Scales::MiniCpm => {
            factors = Factors {
                embedding: keyed("embedding_scale", 12.0)?,
                residual: keyed("residual_scale", 1.4 / (n_layer as f64).sqrt())?,
                logits: 1.0 / keyed("logit_scale", 256.0 / wide)?,
            };
        }
    }
    Ok(factors)
}
