//! The numbers of a model, straight from its GGUF keys, with llama.cpp's defaults and nothing else.

use super::rope::{Rope, RopePairs};
use crate::Error;
use gguf_rs_lite::{Gguf, Value};

/// The architectures that the oracle defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// Bounds the tables that are allocated from a key alone, before any tensor's dims confirm it.
const MAX_WIDTH: usize = 1 << 20;

/// What differs from layer to layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerDims {
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    pub(super) n_ff: usize,
}

/// Everything the forward pass needs that is not a tensor.
#[derive(Debug)]
pub(super) struct Hparams {
    pub(super) architecture: Architecture,
    pub(super) n_embd: usize,
    pub(super) head_dim: usize,
    pub(super) rms_eps: f64,
    pub(super) rope: Rope,
    pub(super) layers: Vec<LayerDims>,
    /// Per-head RMS norm of queries and keys before the rotation.
    pub(super) qk_norm: bool,
}

impl Hparams {
    pub(super) fn read(gguf: &Gguf) -> Result<Self, Error> {
        let architecture = read_architecture(gguf)?;
        let keys = Keys {
            gguf,
            prefix: architecture.name(),
        };
        let n_embd = keys.count("embedding_length")?;
        let n_layer = keys.count("block_count")?;
        if n_layer > gguf.tensors().len() {
            return Err(keys.bad(
                "block_count",
                "no more layers than the file has tensors".into(),
                n_layer,
            ));
        }
        let n_head = keys
            .per_layer("attention.head_count", n_layer)?
            .ok_or_else(|| keys.missing("attention.head_count"))?;
        let n_head_kv = keys
            .per_layer("attention.head_count_kv", n_layer)?
            .unwrap_or_else(|| n_head.clone());
        let n_ff = keys
            .per_layer("feed_forward_length", n_layer)?
            .ok_or_else(|| keys.missing("feed_forward_length"))?;
        for (il, (&heads, &kv_heads)) in n_head.iter().zip(&n_head_kv).enumerate() {
            if heads % kv_heads != 0 {
                let expected = format!("a divisor of the {heads} query heads of layer {il}");
                return Err(keys.bad("attention.head_count_kv", expected, kv_heads));
            }
        }
        let head_dim = read_head_dim(&keys, n_embd, &n_head)?;
        let layers = (0..n_layer)
            .map(|il| LayerDims {
                n_head: n_head[il],
                n_head_kv: n_head_kv[il],
                n_ff: n_ff[il],
            })
            .collect();
        Ok(Self {
            architecture,
            n_embd,
            head_dim,
            rms_eps: keys
                .number("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
            rope: read_rope(&keys, architecture, head_dim)?,
            layers,
            qk_norm: architecture == Architecture::Qwen3,
        })
    }
}

fn read_architecture(gguf: &Gguf) -> Result<Architecture, Error> {
    match gguf.str("general.architecture")? {
        Some("llama") => Ok(Architecture::Llama),
        Some("qwen2") => Ok(Architecture::Qwen2),
        Some("qwen3") => Ok(Architecture::Qwen3),
        got => Err(Error::Architecture {
            file: gguf.name().into(),
            got: got.unwrap_or("").into(),
        }),
    }
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
        return Err(keys.bad(
            "attention.value_length",
            format!("{head_dim}, the key length"),
            value_length,
        ));
    }
    if head_dim == 0 {
        return Err(keys.bad(
            "attention.head_count",
            format!("at most {n_embd}, the embedding length"),
            n_head[0],
        ));
    }
    let widest = n_head
        .iter()
        .max()
        .and_then(|&heads| heads.checked_mul(head_dim));
    if widest.is_none_or(|width| width > MAX_WIDTH) {
        return Err(keys.bad(
            "attention.key_length",
            format!("heads of at most {MAX_WIDTH} elements together"),
            head_dim,
        ));
    }
    Ok(head_dim)
}

fn read_rope(keys: &Keys<'_>, architecture: Architecture, head_dim: usize) -> Result<Rope, Error> {
    let n_rot = keys
        .optional_count("rope.dimension_count")?
        .unwrap_or(head_dim);
    let allowed = match architecture {
        Architecture::Llama => n_rot == head_dim,
        Architecture::Qwen2 | Architecture::Qwen3 => n_rot <= head_dim,
    };
    if !allowed || n_rot % 2 != 0 {
        return Err(keys.bad(
            "rope.dimension_count",
            format!("an even count within the head width {head_dim}"),
            n_rot,
        ));
    }
    let base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    if base <= 1.0 {
        return Err(keys.bad("rope.freq_base", "more than 1".into(), base));
    }
    let mut rope = Rope {
        pairs: if architecture == Architecture::Llama {
            RopePairs::Adjacent
        } else {
            RopePairs::Halves
        },
        n_rot,
        base,
        scale: 1.0,
        magnitude: keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0),
        yarn: None,
        divisors: vec![1.0; n_rot / 2],
    };
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.number("rope.scale_linear")?.unwrap_or(0.0),
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    match keys.gguf.str(&keys.name("rope.scaling.type"))? {
        Some("none") => {}
        None | Some("linear") => rope.scale = 1.0 / factor,
        Some("yarn") => {
            rope.scale = 1.0 / factor;
            let context = match keys.number("rope.scaling.original_context_length")? {
                Some(length) => length,
                None => keys
                    .number("context_length")?
                    .ok_or_else(|| keys.missing("context_length"))?,
            };
            let beta = |which: &str, usual| Ok::<_, Error>(keys.number(which)?.unwrap_or(usual));
            let betas = (
                beta("rope.scaling.yarn_beta_fast", 32.0)?,
                beta("rope.scaling.yarn_beta_slow", 1.0)?,
            );
            rope.set_yarn(factor, context, betas);
        }
        Some(other) => {
            return Err(keys.bad(
                "rope.scaling.type",
                "none, linear or yarn".into(),
                format!("{other:?}"),
            ));
        }
    }
    Ok(rope)
}

/// Reads keys below the architecture's prefix.
struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn missing(&self, key: &str) -> Error {
        Error::MissingKey {
            file: self.gguf.name().into(),
            key: self.name(key),
            expected: "a number",
        }
    }

    fn bad(&self, key: &str, expected: String, got: impl ToString) -> Error {
        Error::BadKey {
            file: self.gguf.name().into(),
            key: self.name(key),
            expected,
            got: got.to_string(),
        }
    }

    /// A positive integer; zero heads or layers would divide by zero below.
    fn optional_count(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.gguf.u32(&self.name(key))? {
            Some(0) => Err(self.bad(key, "at least 1".into(), 0)),
            value => Ok(value.map(|v| v as usize)),
        }
    }

    fn count(&self, key: &str) -> Result<usize, Error> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    /// A float key, or an integer one such as a context length.
    fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let name = self.name(key);
        let value = match self.gguf.get(&name) {
            Some(Value::F32(_) | Value::F64(_)) => self.gguf.f32(&name)?.map(f64::from),
            _ => self.gguf.u32(&name)?.map(f64::from),
        };
        match value {
            Some(v) if !v.is_finite() || v < 0.0 => {
                Err(self.bad(key, "a finite number, not negative".into(), v))
            }
            value => Ok(value),
        }
    }

    /// A count for each layer: one value for all, or an array with at least one for each.
    fn per_layer(&self, key: &str, n_layer: usize) -> Result<Option<Vec<usize>>, Error> {
        let name = self.name(key);
        let Some(Value::Array(array)) = self.gguf.get(&name) else {
            return Ok(self.optional_count(key)?.map(|count| vec![count; n_layer]));
        };
        if array.len() < n_layer {
            return Err(self.bad(
                key,
                format!("one value for each of {n_layer} layers"),
                array.len(),
            ));
        }
        let count = |value: Value<'_>| value.as_int().and_then(|v| usize::try_from(v).ok());
        array
            .iter()
            .take(n_layer)
            .enumerate()
            .map(|(il, value)| {
                count(value).filter(|&v| v > 0).ok_or_else(|| {
                    self.bad(
                        key,
                        format!("a count of at least 1 for layer {il}"),
                        "another value",
                    )
                })
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }
}
