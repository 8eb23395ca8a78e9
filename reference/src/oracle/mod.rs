//! The model-level oracle: a forward pass written from the definition, in f64, with weights
//! dequantized to f32.
//!
//! One token after another through attention would give the same numbers; all positions go through
//! together only so that each matrix is dequantized once. There is no cache, no fusion, no
//! quantized activation and no thread.

mod hparams;
mod math;
mod rope;
#[cfg(test)]
mod tests;

use crate::Error;
use gguf_rs_lite::{Gguf, TensorInfo};
use hparams::{Architecture, Hparams, LayerDims};
use math::{Matrix, add_bias, add_into, attention, rms_norm, swiglu};
use std::cell::RefCell;
use std::collections::HashSet;

const EMBEDDING: &str = "token_embd.weight";
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// A model opened for the plain f64 forward pass.
#[derive(Debug)]
pub struct Oracle<'a> {
    gguf: &'a Gguf,
    hparams: Hparams,
    n_vocab: usize,
}

/// Receives every named intermediate: llama.cpp's name without the layer, the layer, the width of
/// one row, and `(n_tokens, width)` values. What it writes there is what the pass goes on with: so
/// a fault is planted.
pub type Tap<'t> = dyn FnMut(&str, Option<usize>, usize, &mut [f64]) + 't;

impl<'a> Oracle<'a> {
    /// Reads the hyperparameters and checks that every tensor of the file is one that the forward
    /// pass applies, with the dims that the hyperparameters imply.
    ///
    /// # Errors
    /// Names the key or tensor that is missing, misshapen or unknown.
    pub fn open(gguf: &'a Gguf) -> Result<Self, Error> {
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
        if let Some(divisors) = weights.vector(ROPE_DIVISORS, oracle.hparams.rope.n_rot / 2)? {
            oracle.hparams.rope.divisors = divisors;
        }
        oracle.check_tensors()?;
        Ok(oracle)
    }

    /// Size of the vocabulary: the length of one row of logits.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Logits of every position, `(n_tokens, n_vocab)`, positions counted from 0.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a tensor that cannot be dequantized.
    pub fn forward(&self, tokens: &[u32]) -> Result<Vec<f64>, Error> {
        self.forward_tapped(tokens, &mut |_, _, _, _| {})
    }

    /// [`Oracle::forward`], showing every intermediate to `tap` in the order of llama.cpp's graph.
    /// A name may come several times in a layer, as in llama.cpp: `Qcur` after the product, after
    /// the bias and after the rotation.
    ///
    /// # Errors
    /// As [`Oracle::forward`].
    pub fn forward_tapped(&self, tokens: &[u32], tap: &mut Tap<'_>) -> Result<Vec<f64>, Error> {
        self.pass(&Weights::new(self.gguf, false), tokens, tap)
    }

    fn pass(
        &self,
        weights: &Weights<'_>,
        tokens: &[u32],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        let hp = &self.hparams;
        let embedding = weights.matrix(EMBEDDING, hp.n_embd, self.n_vocab)?;
        // (n_tokens, n_embd): the residual stream
        let mut x = Vec::with_capacity(tokens.len() * hp.n_embd);
        for (index, &id) in tokens.iter().enumerate() {
            let row = embedding.row(id as usize).ok_or(Error::Token {
                index,
                id,
                n_vocab: self.n_vocab,
            })?;
            x.extend(row.iter().map(|&v| f64::from(v)));
        }
        tap("inp_embd", None, hp.n_embd, &mut x);
        for (il, dims) in hp.layers.iter().enumerate() {
            let mut layer = Layer {
                hp,
                weights,
                il,
                dims: *dims,
                tap: &mut *tap,
            };
            layer.attention_block(&mut x)?;
            layer.ffn_block(&mut x)?;
            tap("l_out", Some(il), hp.n_embd, &mut x);
        }
        let mut x = rms_norm(
            &x,
            &weights.required_vector("output_norm.weight", hp.n_embd)?,
            hp.rms_eps,
        );
        tap("result_norm", None, hp.n_embd, &mut x);
        let mut logits = match weights.optional_matrix("output.weight", hp.n_embd, self.n_vocab)? {
            Some(output) => output.times(&x),
            None => embedding.times(&x),
        };
        if hp.architecture == Architecture::Qwen2
            && let Some(bias) = weights.vector("output.bias", self.n_vocab)?
        {
            add_bias(&mut logits, &bias);
        }
        tap("result_output", None, self.n_vocab, &mut logits);
        Ok(logits)
    }

    /// Runs the pass over no tokens, with weights that are checked but not read, and looks for
    /// tensors that it did not ask for. So the list of tensors is written once, in the pass itself.
    fn check_tensors(&self) -> Result<(), Error> {
        let weights = Weights::new(self.gguf, true);
        self.pass(&weights, &[], &mut |_, _, _, _| {})?;
        let used = weights.used.into_inner();
        let unused = |info: &&TensorInfo| info.name != ROPE_DIVISORS && !used.contains(&info.name);
        match self.gguf.tensors().iter().find(unused) {
            None => Ok(()),
            Some(info) => Err(Error::UnusedTensor {
                file: self.gguf.name().into(),
                tensor: info.name.clone(),
                architecture: self.hparams.architecture.name(),
            }),
        }
    }
}

/// One layer at work.
struct Layer<'l, 't> {
    hp: &'l Hparams,
    weights: &'l Weights<'l>,
    il: usize,
    dims: LayerDims,
    tap: &'l mut Tap<'t>,
}

impl Layer<'_, '_> {
    fn tap(&mut self, name: &str, width: usize, x: &mut [f64]) {
        (self.tap)(name, Some(self.il), width, x);
    }

    fn name(&self, tensor: &str) -> String {
        format!("blk.{}.{tensor}", self.il)
    }

    /// `x += Wo · attention(norm(x))`; taps up to `ffn_inp`.
    fn attention_block(&mut self, x: &mut [f64]) -> Result<(), Error> {
        let hp = self.hp;
        let (n_embd, n_q) = (hp.n_embd, self.dims.n_head * hp.head_dim);
        let h = self.norm("attn_norm", x)?;
        let [q, k, v] = self.qkv(&h)?;
        let mut mixed = attention(
            &q,
            &k,
            &v,
            hp.head_dim,
            self.dims.n_head,
            self.dims.n_head_kv,
        );
        self.tap("kqv_out", n_q, &mut mixed);
        let mut out = self
            .weights
            .matrix(&self.name("attn_output.weight"), n_q, n_embd)?
            .times(&mixed);
        if hp.architecture == Architecture::Llama {
            if let Some(bias) = self
                .weights
                .vector(&self.name("attn_output.bias"), n_embd)?
            {
                add_bias(&mut out, &bias);
            }
            self.tap("attn_out", n_embd, &mut out);
        }
        add_into(x, &out);
        self.tap("ffn_inp", n_embd, x);
        Ok(())
    }

    /// Queries, keys and values, normed and rotated, in llama.cpp's order: all of Q, then V, then
    /// K.
    fn qkv(&mut self, h: &[f64]) -> Result<[Vec<f64>; 3], Error> {
        let hp = self.hp;
        let n_q = self.dims.n_head * hp.head_dim;
        let n_kv = self.dims.n_head_kv * hp.head_dim;
        if self.weights.has(&self.name("attn_qkv.weight")) {
            let [mut q, mut k, mut v] = self.fused_qkv(h, n_q, n_kv)?;
            self.norm_and_rotate("Q", "attn_q_norm.weight", n_q, &mut q)?;
            self.tap("Vcur", n_kv, &mut v);
            self.norm_and_rotate("K", "attn_k_norm.weight", n_kv, &mut k)?;
            return Ok([q, k, v]);
        }
        let mut q = self.project("Qcur", "attn_q", n_q, h)?;
        self.norm_and_rotate("Q", "attn_q_norm.weight", n_q, &mut q)?;
        let v = self.project("Vcur", "attn_v", n_kv, h)?;
        let mut k = self.project("Kcur", "attn_k", n_kv, h)?;
        self.norm_and_rotate("K", "attn_k_norm.weight", n_kv, &mut k)?;
        Ok([q, k, v])
    }

    /// One product and its bias, both tapped under the same name.
    fn project(
        &mut self,
        tap: &str,
        tensor: &str,
        width: usize,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let mut y = self
            .weights
            .matrix(&self.name(&format!("{tensor}.weight")), n_embd, width)?
            .times(h);
        self.tap(tap, width, &mut y);
        if let Some(bias) = self
            .weights
            .vector(&self.name(&format!("{tensor}.bias")), width)?
        {
            add_bias(&mut y, &bias);
            self.tap(tap, width, &mut y);
        }
        Ok(y)
    }

    /// Rows of `attn_qkv` are those of Q, K and V; the biases may be fused too, or stand apart.
    fn fused_qkv(&mut self, h: &[f64], n_q: usize, n_kv: usize) -> Result<[Vec<f64>; 3], Error> {
        let (n_embd, width) = (self.hp.n_embd, n_q + 2 * n_kv);
        let mut qkv = self
            .weights
            .matrix(&self.name("attn_qkv.weight"), n_embd, width)?
            .times(h);
        self.tap("wqkv", width, &mut qkv);
        let mut bias = self.weights.vector(&self.name("attn_qkv.bias"), width)?;
        if bias.is_none() {
            let parts = [
                ("attn_q.bias", n_q),
                ("attn_k.bias", n_kv),
                ("attn_v.bias", n_kv),
            ];
            if parts
                .iter()
                .any(|(tensor, _)| self.weights.has(&self.name(tensor)))
            {
                let mut joined = Vec::with_capacity(width);
                for (tensor, len) in parts {
                    joined.extend(self.weights.required_vector(&self.name(tensor), len)?);
                }
                bias = Some(joined);
            }
        }
        if let Some(bias) = bias {
            add_bias(&mut qkv, &bias);
            self.tap("wqkv_b", width, &mut qkv);
        }
        let cut = |from: usize, to: usize| {
            qkv.chunks(width)
                .flat_map(|row| &row[from..to])
                .copied()
                .collect()
        };
        Ok([cut(0, n_q), cut(n_q, n_q + n_kv), cut(n_q + n_kv, width)])
    }

    /// `side` is "Q" or "K".
    fn norm_and_rotate(
        &mut self,
        side: &str,
        norm: &str,
        width: usize,
        x: &mut Vec<f64>,
    ) -> Result<(), Error> {
        let hp = self.hp;
        if hp.qk_norm {
            *x = rms_norm(
                x,
                &self
                    .weights
                    .required_vector(&self.name(norm), hp.head_dim)?,
                hp.rms_eps,
            );
            self.tap(&format!("{side}cur_normed"), width, x);
        }
        for (pos, row) in x.chunks_mut(width).enumerate() {
            let rotation = hp.rope.rotation(pos);
            row.chunks_mut(hp.head_dim)
                .for_each(|head| hp.rope.rotate(head, &rotation));
        }
        self.tap(&format!("{side}cur"), width, x);
        Ok(())
    }

    /// `x += Wdown · (silu(Wgate · norm(x)) ⊙ Wup · norm(x))`; taps up to `ffn_out`.
    fn ffn_block(&mut self, x: &mut [f64]) -> Result<(), Error> {
        let (n_embd, n_ff) = (self.hp.n_embd, self.dims.n_ff);
        let h = self.norm("ffn_norm", x)?;
        let gate = self.ffn_product("ffn_gate", n_ff, &h)?;
        let up = self.ffn_product("ffn_up", n_ff, &h)?;
        let mut gated = swiglu(&gate, &up);
        self.tap("ffn_swiglu", n_ff, &mut gated);
        let mut out = self
            .weights
            .matrix(&self.name("ffn_down.weight"), n_ff, n_embd)?
            .times(&gated);
        if self.hp.architecture == Architecture::Llama
            && let Some(bias) = self.weights.vector(&self.name("ffn_down.bias"), n_embd)?
        {
            self.tap("ffn_down", n_embd, &mut out);
            add_bias(&mut out, &bias);
        }
        self.tap("ffn_out", n_embd, &mut out);
        add_into(x, &out);
        Ok(())
    }

    fn ffn_product(&mut self, tensor: &str, width: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let mut y = self
            .weights
            .matrix(&self.name(&format!("{tensor}.weight")), n_embd, width)?
            .times(h);
        self.tap(tensor, width, &mut y);
        if self.hp.architecture == Architecture::Llama
            && let Some(bias) = self
                .weights
                .vector(&self.name(&format!("{tensor}.bias")), width)?
        {
            add_bias(&mut y, &bias);
            self.tap(&format!("{tensor}_b"), width, &mut y);
        }
        Ok(y)
    }

    fn norm(&mut self, tensor: &str, x: &[f64]) -> Result<Vec<f64>, Error> {
        let hp = self.hp;
        let mut h = rms_norm(
            x,
            &self
                .weights
                .required_vector(&self.name(&format!("{tensor}.weight")), hp.n_embd)?,
            hp.rms_eps,
        );
        self.tap(tensor, hp.n_embd, &mut h);
        Ok(h)
    }
}

/// Tensors by name, dims checked, dequantized when asked for.
struct Weights<'a> {
    gguf: &'a Gguf,
    /// Check names and dims, and return matrices without values (for a pass over no tokens).
    only_check: bool,
    used: RefCell<HashSet<String>>,
}

impl<'a> Weights<'a> {
    fn new(gguf: &'a Gguf, only_check: bool) -> Self {
        Self {
            gguf,
            only_check,
            used: RefCell::new(HashSet::new()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn missing(&self, name: &str, expected: String) -> Error {
        Error::MissingTensor {
            file: self.gguf.name().into(),
            tensor: name.into(),
            expected,
        }
    }

    fn matrix(&self, name: &str, n_in: usize, n_out: usize) -> Result<Matrix, Error> {
        self.optional_matrix(name, n_in, n_out)?
            .ok_or_else(|| self.missing(name, format!("[{n_in}, {n_out}]")))
    }

    fn optional_matrix(
        &self,
        name: &str,
        n_in: usize,
        n_out: usize,
    ) -> Result<Option<Matrix>, Error> {
        let data = self.read(name, &[n_in as u64, n_out as u64])?;
        Ok(data.map(|data| Matrix { n_in, data }))
    }

    fn required_vector(&self, name: &str, len: usize) -> Result<Vec<f64>, Error> {
        self.vector(name, len)?
            .ok_or_else(|| self.missing(name, format!("[{len}]")))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f64>>, Error> {
        let data = self.read(name, &[len as u64])?;
        Ok(data.map(|data| data.into_iter().map(f64::from).collect()))
    }

    fn read(&self, name: &str, dims: &[u64]) -> Result<Option<Vec<f32>>, Error> {
        let Some(info) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        self.used.borrow_mut().insert(name.into());
        if !same_dims(info, dims) {
            return Err(Error::Dims {
                file: self.gguf.name().into(),
                tensor: name.into(),
                expected: format!("{dims:?}"),
                got: info.dims.clone(),
            });
        }
        if self.only_check {
            return Ok(Some(Vec::new()));
        }
        let mut values = vec![0f32; info.n_elements() as usize];
        octavo_quant::dequantize(info.ty, self.gguf.data(info), &mut values).map_err(|source| {
            Error::Dequantize {
                file: self.gguf.name().into(),
                tensor: name.into(),
                source,
            }
        })?;
        Ok(Some(values))
    }
}

/// A tensor may be declared with trailing dims of 1.
fn same_dims(info: &TensorInfo, dims: &[u64]) -> bool {
    let n = info.dims.len().max(dims.len());
    (0..n).all(|i| info.dims.get(i).unwrap_or(&1) == dims.get(i).unwrap_or(&1))
}
