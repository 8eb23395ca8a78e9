//! The model-level oracle: a forward pass written from the definition, in f64, with weights
//! dequantized to f32.
//!
//! Processing token by token would give the same numbers; all positions are processed together only
//! so that each matrix is dequantized once. There is no cache, no fusion, no quantized activation
//! and no thread.

mod architecture;
mod assistant;
mod attention;
mod delta_net;
mod experts;
mod feed_forward;
mod hparams;
mod indexer;
mod latent;
mod layer;
mod mamba;
mod math;
mod norms;
mod per_layer;
mod prompt;
mod rope;
mod rwkv;
mod selective_scan;
mod short_conv;
#[cfg(test)]
mod tests;
mod vision;
mod weights;

use crate::Error;
use architecture::{WindowRope, Windows};
pub use assistant::{AssistantOracle, CachedRows, Predicted};
use gguf_rs_lite::{Gguf, TensorInfo};
use hparams::{Hparams, Rows};
use layer::Layer;
use math::{add_bias, add_into, cap, scale};
use norms::whole_norm;
use prompt::Start;
pub use prompt::{ImageRows, Piece};
pub use rope::Position;
pub use vision::{Pixels, Prepared, Rgb, VisionOracle};
use weights::Weights;

const EMBEDDING: &str = "token_embd.weight";
const ROPE_DIVISORS: &str = "rope_freqs.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";

const KEYS_AND_VALUES: &[&str] = &["attn_k.weight", "attn_k_norm.weight", "attn_v.weight"];

/// A model opened for the plain f64 forward pass.
#[derive(Debug)]
pub struct Oracle<'a> {
    gguf: &'a Gguf,
    hparams: Hparams,
    n_vocab: usize,
}

/// Receives every named intermediate: llama.cpp's name without the layer, the layer, the width of
/// one row, and `(n_tokens, width)` values. The pass continues with any values it writes: this is
/// how faults are injected, and how routing is forced (`ffn_moe_topk` holds indices of experts).
pub type Tap<'t> = dyn FnMut(&str, Option<usize>, usize, &mut [f64]) + 't;

impl<'a> Oracle<'a> {
    /// Reads the hyperparameters and checks that the forward pass uses every tensor of the file,
    /// with the dims that the hyperparameters imply.
    ///
    /// # Errors
    /// Names the key or tensor that is missing, misshapen or unknown.
    pub fn open(gguf: &'a Gguf) -> Result<Self, Error> {
        Self::open_for(gguf, None)
    }

    /// Does the same as [`Oracle::open`] for contexts of up to `n_ctx` positions: some models use
    /// other RoPE factors in long contexts. The default is the length the file states.
    ///
    /// # Errors
    /// As [`Oracle::open`].
    pub fn open_for(gguf: &'a Gguf, n_ctx: Option<usize>) -> Result<Self, Error> {
        let hparams = Hparams::read(gguf)?;
        let weights = Weights::new(gguf, false);
        let n_vocab = match gguf.tensor(EMBEDDING) {
            Some(info) => info.dims.get(1).copied().unwrap_or(1) as usize,
            None => {
                return Err(weights.missing(EMBEDDING, format!("[{}, n_vocab]", hparams.n_embd)));
            }
        };
        let mut oracle = Self {
            gguf,
            hparams,
            n_vocab,
        };
        if let Some(divisors) = oracle.rope_divisors(&weights, n_ctx)? {
            let windows = oracle.hparams.architecture.windows;
            let ignores = |windows: Windows| {
                windows.own_heads || matches!(windows.rope, WindowRope::Undivided(_))
            };
            if !windows.is_some_and(ignores) {
                oracle.hparams.window_rope.divisors.clone_from(&divisors);
            }
            let n_pairs = oracle.hparams.rope.n_rot / 2;
            oracle.hparams.rope.divisors = divisors;
            oracle.hparams.rope.divisors.truncate(n_pairs);
        }
        oracle.check_tensors()?;
        Ok(oracle)
    }

    /// Returns the divisor of each pair's angle, if the file has such a tensor.
    fn rope_divisors(
        &self,
        weights: &Weights<'_>,
        n_ctx: Option<usize>,
    ) -> Result<Option<Vec<f64>>, Error> {
        let ropes = [&self.hparams.rope, &self.hparams.window_rope];
        let n_pairs = ropes[0].n_rot.max(ropes[1].n_rot) / 2;
        let divisors = weights.vector(ROPE_DIVISORS, n_pairs)?;
        let contexts = self.hparams.contexts;
        let by_length = weights.has(LONG_FACTORS) || weights.has(SHORT_FACTORS);
        if !contexts.choose_factors || !by_length {
            return Ok(divisors);
        }
        let original = contexts.original.unwrap_or(0.0);
        let n_ctx = n_ctx.map_or(contexts.trained.unwrap_or(0.0), |n_ctx| n_ctx as f64);
        let long = weights.required_vector(LONG_FACTORS, n_pairs)?;
        let short = weights.required_vector(SHORT_FACTORS, n_pairs)?;
        let chosen = if n_ctx > original { long } else { short };
        Ok(divisors.or(Some(chosen)))
    }

    /// Returns the vocabulary size: the length of one row of logits, where there are any.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns the logits of every position, `(n_tokens, n_vocab)`, with positions counted from 0;
    /// for a model without logits its rows, `(n_tokens, n_embd)`.
    ///
    /// # Errors
    /// A token outside the vocabulary, a text longer than the table of position embeddings, or a
    /// tensor that cannot be dequantized.
    pub fn forward(&self, tokens: &[u32]) -> Result<Vec<f64>, Error> {
        self.forward_tapped(tokens, &mut |_, _, _, _| {})
    }

    /// Does the same as [`Oracle::forward`], and passes every intermediate to `tap` in the order of
    /// llama.cpp's graph. A name may occur several times in a layer, as in llama.cpp: `Qcur` after
    /// the product, after the bias and after RoPE.
    ///
    /// # Errors
    /// As [`Oracle::forward`].
    pub fn forward_tapped(&self, tokens: &[u32], tap: &mut Tap<'_>) -> Result<Vec<f64>, Error> {
        self.forward_pieces(&[Piece::Tokens(tokens)], tap)
    }

    /// Does the same as [`Oracle::forward_tapped`] for a prompt with images, at the positions of
    /// [`Oracle::positions`]. Every row, of a token or of an image, sees those before it.
    ///
    /// # Errors
    /// As [`Oracle::forward`], and for images: the architecture takes none, or the number or width
    /// of their rows is wrong.
    pub fn forward_pieces(
        &self,
        pieces: &[Piece<'_>],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        self.forward_at(pieces, &Self::positions(pieces), tap)
    }

    /// Does the same as [`Oracle::forward_pieces`] at other positions, one for each row.
    ///
    /// # Errors
    /// As [`Oracle::forward_pieces`]; also if the numbers of positions and rows differ.
    pub fn forward_at(
        &self,
        pieces: &[Piece<'_>],
        positions: &[Position],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        self.pass(&Weights::new(self.gguf, false), pieces, positions, tap)
    }

    fn pass(
        &self,
        weights: &Weights<'_>,
        pieces: &[Piece<'_>],
        positions: &[Position],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        let hp = &self.hparams;
        let Start {
            mut x,
            deep,
            mut shared,
        } = self.embed(weights, pieces, positions, tap)?;
        for (il, dims) in hp.layers.iter().enumerate() {
            let mut layer = Layer {
                hp,
                weights,
                il,
                dims: *dims,
                chosen: None,
                beside: None,
                shared: &mut shared,
                tap: &mut *tap,
            };
            layer.run(&mut x)?;
            if let Some(rows) = deep.get(il) {
                add_into(&mut x, rows);
                tap("deepstack_out", Some(il), hp.n_embd, &mut x);
            }
        }
        match hp.architecture.output_norm {
            Some(norm) => {
                x = whole_norm(hp, weights, norm, hp.n_embd, &x)?;
                tap(hp.architecture.names.output_norm, None, hp.n_embd, &mut x);
            }
            None => tap("result_embd", None, hp.n_embd, &mut x),
        }
        match hp.rows {
            Some(rows) => self.rows(weights, rows, x, tap),
            None => self.logits(weights, &x, tap),
        }
    }

    /// Returns the rows of an embedding model, after its last products. These are linear, so
    /// pooling may come after them.
    fn rows(
        &self,
        weights: &Weights<'_>,
        rows: Rows,
        x: Vec<f64>,
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hparams.n_embd;
        let Some(width) = rows.dense else {
            return Ok(x);
        };
        let x = weights.matrix("dense_2.weight", n_embd, width)?.times(&x);
        let mut x = weights.matrix("dense_3.weight", width, n_embd)?.times(&x);
        tap("result_embd_pooled", None, n_embd, &mut x);
        Ok(x)
    }

    fn logits(
        &self,
        weights: &Weights<'_>,
        x: &[f64],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        let hp = &self.hparams;
        let output = weights.optional_matrix("output.weight", hp.n_embd, self.n_vocab)?;
        let mut logits = match output {
            Some(output) => {
                let mut logits = output.times(x);
                weights.scale_product("output", &mut logits)?;
                logits
            }
            None => weights.matrix(EMBEDDING, hp.n_embd, self.n_vocab)?.times(x),
        };
        if let Some(bias) = weights.vector("output.bias", self.n_vocab)? {
            if let Some(name) = hp.architecture.names.unbiased_logits {
                tap(name, None, self.n_vocab, &mut logits);
            }
            add_bias(&mut logits, &bias);
        }
        scale(&mut logits, hp.factors.logits);
        if let Some(c) = hp.logit_cap {
            logits.iter_mut().for_each(|x| *x = cap(*x, c));
        }
        tap("result_output", None, self.n_vocab, &mut logits);
        Ok(logits)
    }

    /// Checks the tensors: runs the pass over no tokens, with weights that are checked but not
    /// read, and looks for tensors it did not request. The list of tensors thus exists only in the
    /// pass itself.
    fn check_tensors(&self) -> Result<(), Error> {
        let weights = Weights::new(self.gguf, true);
        self.rope_divisors(&weights, None)?;
        self.pass(&weights, &[], &[], &mut |_, _, _, _| {})?;
        let used = weights.used.into_inner();
        let unused = |info: &&TensorInfo| !used.contains(&info.name) && !self.skips(&info.name);
        match self.gguf.tensors().iter().find(unused) {
            None => Ok(()),
            Some(info) => Err(Error::UnusedTensor {
                file: self.gguf.name().into(),
                tensor: info.name.clone(),
                architecture: self.hparams.architecture.name,
            }),
        }
    }

    /// Returns whether a tensor belongs to a multi-token prediction layer, or makes keys and values
    /// in a layer that reads another layer's.
    fn skips(&self, tensor: &str) -> bool {
        let rest = tensor.strip_prefix("blk.").unwrap_or("");
        let Some((layer, rest)) = rest.split_once('.') else {
            return false;
        };
        let Ok(il) = layer.parse::<usize>() else {
            return false;
        };
        match self.hparams.layers.get(il) {
            Some(layer) => layer.kv_from.is_some() && KEYS_AND_VALUES.contains(&rest),
            None => il - self.hparams.layers.len() < self.hparams.n_skipped,
        }
    }
}
