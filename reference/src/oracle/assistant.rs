//! Gemma 4's assistant: a small model that drafts tokens by reading the keys and values of another
//! one, from the definition. Layers with a window read those of the target's last layer but one,
//! the others those of its last layer; a token sees the positions before its own.

use super::hparams::Keys;
use super::math::{Activation, add_into, dot, rms_norm, scale, softmax_rows};
use super::rope::RopePairs;
use super::weights::Weights;
use super::{EMBEDDING, ROPE_DIVISORS};
use crate::Error;
use gguf_rs_lite::{Gguf, Value};

const NAME: &str = "gemma4-assistant";

/// Keys and values of a target's layer, `(n_tokens, n_head_kv * head_dim)` each, keys rotated.
#[derive(Debug, Clone, Copy)]
pub struct CachedRows<'a> {
    /// Keys.
    pub keys: &'a [f64],
    /// Values.
    pub values: &'a [f64],
}

/// Results of an assistant for one token.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// `(n_vocab)`: logits of the next token.
    pub logits: Vec<f64>,
    /// `(n_embd of the target)`: hidden state to draft on from.
    pub hidden: Vec<f64>,
}

/// Sizes of a layer.
#[derive(Debug, Clone, Copy)]
struct LayerSizes {
    n_head_kv: usize,
    head_dim: usize,
    window: Option<usize>,
    rope_base: f64,
}

/// An assistant opened for the plain f64 forward pass.
#[derive(Debug)]
pub struct AssistantOracle<'a> {
    gguf: &'a Gguf,
    n_embd: usize,
    n_embd_target: usize,
    n_vocab: usize,
    n_ff: usize,
    n_head: usize,
    eps: f64,
    layers: Vec<LayerSizes>,
}

impl<'a> AssistantOracle<'a> {
    /// Reads the sizes of an assistant.
    ///
    /// # Errors
    /// Names the key or tensor that is missing or misshapen.
    pub fn open(gguf: &'a Gguf) -> Result<Self, Error> {
        let keys = Keys { gguf, prefix: NAME };
        let n_layer = keys.count("block_count")?;
        let flags = keys.array("attention.sliding_window_pattern", n_layer)?;
        let flags = flags.ok_or_else(|| keys.missing("attention.sliding_window_pattern"))?;
        let heads_kv = keys.required_per_layer("attention.head_count_kv", n_layer)?;
        let window = keys.count("attention.sliding_window")?;
        let (dim, window_dim) = (
            keys.count("attention.key_length")?,
            keys.count("attention.key_length_swa")?,
        );
        let base = |key: &str| Ok::<_, Error>(keys.number(key)?.unwrap_or(10_000.0));
        let (rope, window_rope) = (base("rope.freq_base")?, base("rope.freq_base_swa")?);
        let layer = |(n_head_kv, flag): (usize, Value<'_>)| match flag {
            Value::Bool(true) => LayerSizes {
                n_head_kv,
                head_dim: window_dim,
                window: Some(window),
                rope_base: window_rope,
            },
            _ => LayerSizes {
                n_head_kv,
                head_dim: dim,
                window: None,
                rope_base: rope,
            },
        };
        let eps = keys.number("attention.layer_norm_rms_epsilon")?;
        Ok(Self {
            gguf,
            n_embd: keys.count("embedding_length")?,
            n_embd_target: keys.count("embedding_length_out")?,
            n_vocab: gguf
                .tensor(EMBEDDING)
                .and_then(|info| info.dims.get(1))
                .map_or(0, |&n| n as usize),
            n_ff: keys.count("feed_forward_length")?,
            n_head: keys.count("attention.head_count")?,
            eps: eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
            layers: heads_kv.into_iter().zip(flags).map(layer).collect(),
        })
    }

    /// Predicts what follows a token at `position`, from the target's scaled embedding of it, the
    /// target's hidden state before it, both `(n_embd of the target)`, and the target's last layer
    /// but one and last layer, of `position` tokens or more.
    ///
    /// # Errors
    /// If a tensor is missing or misshapen.
    pub fn predict(
        &self,
        (embedding, hidden): (&[f64], &[f64]),
        position: usize,
        cached: [CachedRows<'_>; 2],
    ) -> Result<Predicted, Error> {
        let weights = Weights::new(self.gguf, false);
        let (d, target) = (self.n_embd, self.n_embd_target);
        let input = weights.matrix("nextn.pre_projection.weight", 2 * target, d)?;
        let mut x = input.times(&[embedding, hidden].concat());
        for (il, sizes) in self.layers.iter().enumerate() {
            let cached = cached[usize::from(sizes.window.is_none())];
            self.layer(&weights, il, &mut x, (position, cached))?;
        }
        let normed = rms_norm(
            &x,
            &weights.required_vector("output_norm.weight", d)?,
            self.eps,
        );
        let output = weights.matrix("nextn.post_projection.weight", d, target)?;
        Ok(Predicted {
            logits: weights.matrix(EMBEDDING, d, self.n_vocab)?.times(&normed),
            hidden: output.times(&normed),
        })
    }

    fn layer(
        &self,
        weights: &Weights<'_>,
        il: usize,
        x: &mut [f64],
        (position, cached): (usize, CachedRows<'_>),
    ) -> Result<(), Error> {
        let (d, sizes) = (self.n_embd, self.layers[il]);
        let name = |tensor: &str| format!("blk.{il}.{tensor}.weight");
        let norm = |tensor: &str, x: &[f64]| {
            let weight = weights.required_vector(&name(tensor), d)?;
            Ok::<_, Error>(rms_norm(x, &weight, self.eps))
        };
        let width = self.n_head * sizes.head_dim;
        let product = |tensor: &str, n_in: usize, n_out: usize, x: &[f64]| {
            Ok::<_, Error>(weights.matrix(&name(tensor), n_in, n_out)?.times(x))
        };
        let q = product("attn_q", d, width, &norm("attn_norm", x)?)?;
        let q_norm = weights.required_vector(&name("attn_q_norm"), sizes.head_dim)?;
        let mut q = rms_norm(&q, &q_norm, self.eps);
        let rotation = self.rotation(weights, sizes, position)?;
        q.chunks_mut(sizes.head_dim)
            .for_each(|head| RopePairs::Halves.rotate(head, &rotation));
        let mixed = self.attention(sizes, &q, position, cached);
        let out = product("attn_output", width, d, &mixed)?;
        add_into(x, &norm("post_attention_norm", &out)?);
        let fed = norm("ffn_norm", x)?;
        let gate = product("ffn_gate", d, self.n_ff, &fed)?;
        let up = product("ffn_up", d, self.n_ff, &fed)?;
        let down = product(
            "ffn_down",
            self.n_ff,
            d,
            &Activation::Gelu.gated(&gate, &up),
        )?;
        add_into(x, &norm("post_ffw_norm", &down)?);
        if let Some(&[factor]) = weights.vector(&name("layer_output_scale"), 1)?.as_deref() {
            scale(x, factor);
        }
        Ok(())
    }

    /// Returns `(cos, sin)` of every pair at a position; `rope_freqs` divides the angles of layers
    /// without a window.
    fn rotation(
        &self,
        weights: &Weights<'_>,
        sizes: LayerSizes,
        position: usize,
    ) -> Result<Vec<(f64, f64)>, Error> {
        let n = sizes.head_dim;
        let divisors = match sizes.window {
            Some(_) => None,
            None => weights.vector(ROPE_DIVISORS, n / 2)?,
        };
        let angle = |i: usize| {
            let divisor = divisors.as_ref().map_or(1.0, |all| all[i]);
            position as f64 * sizes.rope_base.powf(-2.0 * i as f64 / n as f64) / divisor
        };
        Ok((0..n / 2)
            .map(|i| (angle(i).cos(), angle(i).sin()))
            .collect())
    }

    /// Computes attention over the positions before `position`, without a scale.
    fn attention(
        &self,
        sizes: LayerSizes,
        q: &[f64],
        position: usize,
        cached: CachedRows<'_>,
    ) -> Vec<f64> {
        let first = sizes
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window));
        let n = sizes.head_dim;
        let mut out = vec![0.0; q.len()];
        for (h, (q, out)) in q.chunks(n).zip(out.chunks_mut(n)).enumerate() {
            let head = h / (self.n_head / sizes.n_head_kv);
            let at = |t: usize| (t * sizes.n_head_kv + head) * n;
            let scores: Vec<f64> = (first..position)
                .map(|t| dot(q, &cached.keys[at(t)..][..n]))
                .collect();
            for (t, p) in (first..position).zip(softmax_rows(&scores, scores.len())) {
                let value = cached.values[at(t)..][..n].iter();
                out.iter_mut().zip(value).for_each(|(out, v)| *out += p * v);
            }
        }
        out
    }
}
