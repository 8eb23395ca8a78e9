//! The numbers of a model, straight from its GGUF keys, with llama.cpp's defaults and nothing else.

mod experts;
mod factors;
mod heads;
mod keys;
mod latent;
mod per_layer;
mod recurrent;
mod rope;
mod rows;
mod windows;
mod xielu;

use super::architecture::{self, Architecture, MaxBias, NormKind, QkNorm, Rotated, WindowLength};
use super::rope::Rope;
use crate::Error;
pub(super) use experts::{Groups, LayerExperts, Routing};
pub(super) use factors::Factors;
use gguf_rs_lite::{Gguf, Value};
use heads::Heads;
pub(super) use keys::Keys;
pub(super) use latent::{Indexer, Latent};
pub(super) use recurrent::State;
use rope::Contexts;
pub(super) use rows::Rows;

/// Maximum size of tables allocated from a key alone, before any tensor's dims confirm it.
pub(super) const MAX_WIDTH: usize = 1 << 20;

/// Per-layer hyperparameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerDims {
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    /// Width of a query or key head.
    pub(super) head_dim: usize,
    /// Width of a value head.
    pub(super) value_dim: usize,
    /// Layer whose keys and values this one reads, if it has none of its own.
    pub(super) kv_from: Option<usize>,
    pub(super) n_ff: usize,
    /// Number of keys a query sees, including its own; `None` is all up to its own. With
    /// bidirectional attention, keys at most half as far away on either side; `None` is all.
    pub(super) window: Option<usize>,
    /// Whether the layer is recurrent, without keys and values.
    pub(super) recurrent: bool,
    /// Whether queries and keys are rotated.
    pub(super) rotates: bool,
    /// Experts, replacing the dense block.
    pub(super) experts: Option<LayerExperts>,
    /// Limits of gated products: of experts, and of shared experts and dense blocks.
    pub(super) limits: [Option<f64>; 2],
    /// Coefficients of xIELU: of the square, of the exponential, of the line, and the limit of the
    /// exponent.
    pub(super) xielu: Option<[f64; 4]>,
}

/// Position-dependent scale of queries: `1 + strength · ln(1 + ⌊(position + offset) / length⌋)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Temperature {
    pub(super) strength: f64,
    pub(super) length: usize,
    pub(super) offset: usize,
}

/// Everything the forward pass needs that is not a tensor.
#[derive(Debug)]
pub(super) struct Hparams {
    pub(super) architecture: &'static Architecture,
    pub(super) n_embd: usize,
    pub(super) norm_eps: f64,
    pub(super) rope: Rope,
    /// RoPE of layers with a window.
    pub(super) window_rope: Rope,
    pub(super) contexts: Contexts,
    /// Some layers have windows, or could have: llama.cpp then has two caches.
    pub(super) has_windows: bool,
    pub(super) layers: Vec<LayerDims>,
    /// Routing of experts, where layers have them.
    pub(super) routing: Option<Routing>,
    /// State of recurrent layers, if there are any.
    pub(super) state: Option<State>,
    /// Multi-head latent attention, where the architecture has it.
    pub(super) latent: Option<Latent>,
    /// Number of multi-token prediction layers after these; they do not affect the logits.
    pub(super) n_skipped: usize,
    /// Width of the per-layer embeddings of tokens, if there are any.
    pub(super) per_layer_width: Option<usize>,
    /// Extent of the norm of queries and keys.
    pub(super) qk_norm: QkNorm,
    /// Factor on scores.
    pub(super) score_scale: f64,
    /// Attention and feed-forward read the same stream.
    pub(super) parallel: bool,
    /// Limit of the size of queries, keys and values.
    pub(super) qkv_limit: Option<f64>,
    /// Largest bias of scores that fall with distance.
    pub(super) max_bias: Option<f64>,
    pub(super) score_cap: Option<f64>,
    pub(super) logit_cap: Option<f64>,
    pub(super) temperature: Option<Temperature>,
    /// Numbers of a bidirectional model that returns rows instead of logits.
    pub(super) rows: Option<Rows>,
    pub(super) factors: Factors,
    /// Size of the position embedding table, if there is one.
    pub(super) n_positions: Option<usize>,
    /// Number of first layers to whose output image rows are added (deepstack).
    pub(super) n_deepstack: usize,
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
        let n_ff = read_n_ff(&keys, architecture, n_layer)?;
        let windows = windows::read(&keys, architecture, n_layer)?;
        let window = |il: usize| windows.as_ref().and_then(|windows| windows[il]);
        let heads = Heads::read(&keys, architecture, n_embd, n_layer)?;
        let rotates = read_rotated(&keys, architecture, &windows)?;
        let (routing, experts) = experts::read(&keys, architecture, &n_ff)?;
        let (state, recurrent) = recurrent::read(&keys, architecture, n_embd, &heads)?;
        let limits = read_limits(&keys, architecture, n_layer)?;
        let xielu = xielu::read(&keys, architecture, n_layer)?;
        let mut layers: Vec<LayerDims> = (0..n_layer)
            .map(|il| LayerDims {
                n_head: heads.n_head[il],
                n_head_kv: heads.n_head_kv[il],
                head_dim: match window(il) {
                    Some(_) => heads.window_dim,
                    None => heads.dim,
                },
                value_dim: match window(il) {
                    Some(_) if heads.window_dim != heads.dim => heads.window_dim,
                    _ => heads.value_dim,
                },
                kv_from: None,
                n_ff: n_ff[il],
                window: window(il),
                recurrent: recurrent[il],
                rotates: rotates(il),
                experts: experts[il],
                limits: [limits[0][il], limits[1][il]],
                xielu: xielu.as_ref().map(|of| of[il]),
            })
            .collect();
        per_layer::share(&keys, architecture, &mut layers)?;
        let latent = latent::read(&keys, architecture, n_embd, &heads.n_head, heads.dim)?;
        let (rope, window_rope) = rope::read(&keys, architecture, heads.dim, heads.window_dim)?;
        let score_scale = match latent {
            Some(_) => latent::read_score_scale(&keys, heads.dim, rope.magnitude)?,
            None => factors::read_score_scale(&keys, architecture, n_embd, &heads)?,
        };
        Ok(Self {
            architecture,
            n_embd,
            norm_eps: read_norm_eps(&keys, architecture)?,
            state,
            latent,
            rope,
            window_rope,
            contexts: rope::read_contexts(&keys, architecture)?,
            has_windows: windows.is_some(),
            layers,
            routing,
            n_skipped,
            per_layer_width: per_layer::read_width(&keys, architecture, n_layer)?,
            qk_norm: read_qk_norm(&keys, architecture, n_layer)?,
            score_scale,
            parallel: read_parallel(&keys, architecture)?,
            qkv_limit: read_qkv_limit(&keys, architecture)?,
            max_bias: read_max_bias(&keys, architecture)?,
            score_cap: read_score_cap(&keys, architecture)?,
            logit_cap: match keys.number("final_logit_softcapping")? {
                None => architecture.logit_cap,
                cap => cap.filter(|&cap| cap != 0.0),
            },
            temperature: read_temperature(&keys, architecture)?,
            rows: rows::read(&keys, architecture, n_embd)?,
            n_positions: match architecture.embedded.is_some_and(|e| e.positions) {
                true => Some(keys.count("context_length")?),
                false => None,
            },
            factors: factors::read(&keys, architecture, n_embd, n_layer)?,
            n_deepstack: read_n_deepstack(&keys, architecture, n_layer)?,
        })
    }

    /// Returns whether windows begin at multiples of their length.
    pub(super) fn is_chunked(&self) -> bool {
        let windows = self.architecture.windows;
        windows.is_some_and(|windows| matches!(windows.length, WindowLength::Chunks(_)))
    }

    /// Returns the RoPE of a layer, if it has one.
    pub(super) fn rope_of(&self, layer: &LayerDims) -> Option<&Rope> {
        let rope = match layer.window {
            Some(_) => &self.window_rope,
            None => &self.rope,
        };
        layer.rotates.then_some(rope)
    }
}

fn read_parallel(keys: &Keys<'_>, architecture: &Architecture) -> Result<bool, Error> {
    const KEY: &str = "use_parallel_residual";
    match architecture.keyed_parallel {
        true => keys.flag(KEY)?.ok_or_else(|| keys.missing(KEY)),
        false => Ok(architecture.parallel),
    }
}

/// Reads the feed-forward width of each layer.
fn read_n_ff(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<Vec<usize>, Error> {
    const KEY: &str = "feed_forward_length";
    match architecture.feeds_forward {
        true if architecture.one_of_both => keys
            .per_layer_from(0, KEY, n_layer)?
            .ok_or_else(|| keys.missing(KEY)),
        true => keys.required_per_layer(KEY, n_layer),
        false => Ok(vec![0; n_layer]),
    }
}

fn read_architecture(gguf: &Gguf) -> Result<&'static Architecture, Error> {
    let got = gguf.str("general.architecture")?.unwrap_or("");
    let known = architecture::all().find(|known| known.name == got);
    known.ok_or_else(|| {
        let names: Vec<&str> = architecture::all().map(|known| known.name).collect();
        Error::Architecture {
            file: gguf.name().into(),
            expected: names.join(", "),
            got: got.into(),
        }
    })
}

/// Reads the number of layers, and of multi-token prediction layers after them.
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

/// Reads the number of deepstack layers. The last layer cannot be one of them: llama.cpp drops rows
/// in it before it would add the image rows.
fn read_n_deepstack(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<usize, Error> {
    const KEY: &str = "n_deepstack_layers";
    let n_deepstack = match architecture.deepstack {
        true => keys.integer(KEY)?.unwrap_or(0),
        false => 0,
    };
    if n_deepstack >= n_layer {
        let expected = format!("fewer than the {n_layer} layers");
        return Err(keys.bad(KEY, expected, n_deepstack));
    }
    Ok(n_deepstack)
}

fn read_norm_eps(keys: &Keys<'_>, architecture: &Architecture) -> Result<f64, Error> {
    let key = architecture.norm.epsilon_key();
    if architecture.one_of_both
        && let Some(epsilon) = keys.number(NormKind::Layer.epsilon_key())?
    {
        return Ok(keys.number(key)?.unwrap_or(epsilon));
    }
    keys.number(key)?.ok_or_else(|| keys.missing(key))
}

/// Returns a function that tells which layers rotate queries and keys.
fn read_rotated<'w>(
    keys: &Keys<'_>,
    architecture: &Architecture,
    windows: &'w Option<Vec<Option<usize>>>,
) -> Result<impl Fn(usize) -> bool + use<'w>, Error> {
    let rotated = architecture.rotated;
    let finetuned = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    let flagged: Vec<bool> = match keys.array("attention.rope_pattern", 0)? {
        Some(_) if rotated == Rotated::Flagged => {
            windows::read_flags(keys, "attention.rope_pattern")?
        }
        _ => Vec::new(),
    };
    Ok(move |il: usize| match rotated {
        Rotated::All => true,
        Rotated::ThreeOfFour => !(il + 1).is_multiple_of(4),
        Rotated::AfterFirstOfFour => {
            let all = windows.as_ref().is_none_or(|windows| windows.len() == 4);
            all || !il.is_multiple_of(4)
        }
        Rotated::Windowed => windows.as_ref().is_none_or(|windows| windows[il].is_some()),
        Rotated::Flagged => flagged.get(il).copied().unwrap_or(true),
        Rotated::IfFinetuned => finetuned,
        Rotated::Never => false,
    })
}

fn read_qk_norm(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<QkNorm, Error> {
    let has_norm = keys.gguf.tensor("blk.0.attn_q_norm.weight").is_some();
    Ok(match architecture.qk_norm {
        QkNorm::EachHeadFrom(least) if n_layer < least => QkNorm::None,
        QkNorm::HeadIfPresent if !has_norm => QkNorm::None,
        QkNorm::UnweightedUnlessExperts(n) if keys.count("expert_count")? == n => QkNorm::None,
        norm => norm,
    })
}

/// Reads the limits of gated products in each layer; 0 is none.
fn read_limits(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<[Vec<Option<f64>>; 2], Error> {
    let read = |key: &str| -> Result<Vec<Option<f64>>, Error> {
        if !architecture.limited {
            return Ok(vec![None; n_layer]);
        }
        let Some(values) = keys.array(key, n_layer)? else {
            return Ok(vec![keys.factor(key)?; n_layer]);
        };
        let number = |value: &Value<'_>| match value {
            Value::F32(x) => Some(f64::from(*x)),
            _ => None,
        };
        let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
        let numbers = numbers.ok_or_else(|| keys.bad(key, "an array of numbers", "others"))?;
        let limit = |x: f64| Some(x).filter(|x| *x > 1e-6);
        Ok(numbers.into_iter().map(limit).collect())
    };
    Ok([read("swiglu_clamp_exp")?, read("swiglu_clamp_shexp")?])
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

fn read_temperature(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<Option<Temperature>, Error> {
    if let Some((strength, length)) = architecture.unrotated_temperature {
        return Ok(Some(Temperature {
            strength,
            length,
            offset: 1,
        }));
    }
    let Some(strength) = keys.factor("attention.temperature_scale")? else {
        return Ok(None);
    };
    let key = match architecture.latent {
        true => "attention.temperature_length",
        false => "rope.scaling.original_context_length",
    };
    let length = match keys.optional_count(key)? {
        None if architecture.latent => return Err(keys.missing(key)),
        Some(length) => length,
        None => keys.count("context_length")?,
    };
    Ok(Some(Temperature {
        strength,
        length,
        offset: 0,
    }))
}

/// Reads the limit of the size of queries, keys and values.
fn read_qkv_limit(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<f64>, Error> {
    match architecture.clamped {
        true => keys.factor("attention.clamp_kqv"),
        false => Ok(None),
    }
}

/// Reads how steeply scores fall with distance.
fn read_max_bias(keys: &Keys<'_>, architecture: &Architecture) -> Result<Option<f64>, Error> {
    match architecture.alibi {
        MaxBias::None => Ok(None),
        MaxBias::Constant(bias) => Ok(Some(bias)),
        MaxBias::Keyed => keys.factor("attention.max_alibi_bias"),
    }
}
