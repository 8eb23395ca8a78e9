//! The gated delta net: each head's state is a matrix from keys to values, which decays, and is
//! corrected by the error of its prediction for each new key.

use super::hparams::State;
use super::layer::Layer;
use super::math::{Activation, add_bias, columns, convolve, dot, rms_norm, sigmoid, softplus};
use crate::Error;

/// Inputs of the recurrence.
struct Inputs {
    /// Queries and keys, in rows of `groups` heads.
    q: Vec<f64>,
    k: Vec<f64>,
    /// Values, in rows of `heads` heads.
    v: Vec<f64>,
    /// Logarithm of the state's decay, by token and head, or by dimension of each head's keys too.
    fading: Vec<f64>,
    /// Learning rate (beta) of the correction, by token and head.
    correction: Vec<f64>,
}

impl Layer<'_, '_> {
    pub(super) fn delta_net(
        &mut self,
        state: &State,
        grouped: bool,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let (n_embd, inner) = (self.hp.n_embd, state.inner);
        let [qkv, mut z] = self.delta_products(state, h)?;
        let inputs = self.delta_inputs(state, grouped, qkv, h)?;
        let mixed = recurrence(state, grouped, &inputs);
        let norm = self.name("ssm_norm.weight");
        let norm = self.weights.required_vector(&norm, state.size)?;
        let mixed = rms_norm(&mixed, &norm, self.hp.norm_eps);
        self.tap("z", inner, &mut z);
        let gated = Activation::Silu.gated(&z, &mixed);
        let mut out = self.product("ssm_out", inner, n_embd, &gated)?;
        self.tap("linear_attn_out", n_embd, &mut out);
        Ok(out)
    }

    /// Computes queries, keys and values together, and the gate of the result. Old files have one
    /// matrix for all, with rows grouped by key head.
    fn delta_products(&mut self, state: &State, h: &[f64]) -> Result<[Vec<f64>; 2], Error> {
        let (n_embd, inner) = (self.hp.n_embd, state.inner);
        let keys = state.groups * state.size;
        if !self.weights.has(&self.name("ssm_in.weight")) {
            let qkv = self.product("attn_qkv", n_embd, 2 * keys + inner, h)?;
            return Ok([qkv, self.product("attn_gate", n_embd, inner, h)?]);
        }
        let width = 2 * (keys + inner);
        let mut all = self.product("ssm_in", n_embd, width, h)?;
        self.tap("linear_attn_mixed_qkvz", width, &mut all);
        let (key, value, each) = (state.size, inner / state.groups, width / state.groups);
        let part = |from, len| columns(&all, each, from..from + len);
        let parts = [
            (part(0, key), keys),
            (part(key, key), keys),
            (part(2 * key, value), inner),
        ];
        let rows = 0..all.len() / width;
        let qkv = rows.flat_map(|t| {
            let row = move |(part, width): &(Vec<f64>, usize)| part[t * width..][..*width].to_vec();
            parts.iter().flat_map(row).collect::<Vec<_>>()
        });
        Ok([qkv.collect(), part(2 * key + value, value)])
    }

    fn delta_inputs(
        &mut self,
        state: &State,
        grouped: bool,
        qkv: Vec<f64>,
        h: &[f64],
    ) -> Result<Inputs, Error> {
        let keys = state.groups * state.size;
        let width = 2 * keys + state.inner;
        let kernels = self.name("ssm_conv1d.weight");
        let kernels = self.weights.required_rows(&kernels, state.kernel, width)?;
        let mut x = convolve(&qkv, width, &kernels);
        self.tap("conv_output_raw", width, &mut x);
        x.iter_mut().for_each(|x| *x = Activation::Silu.of(*x));
        self.tap("conv_output_silu", width, &mut x);
        let mut q = self.unit_heads(state, &columns(&x, width, 0..keys));
        let mut k = self.unit_heads(state, &columns(&x, width, keys..2 * keys));
        if !grouped {
            self.tap("q_conv_predelta", keys, &mut q);
            self.tap("k_conv_predelta", keys, &mut k);
        }
        let [fading, correction] = self.rates(state, h)?;
        Ok(Inputs {
            q,
            k,
            v: columns(&x, width, 2 * keys..width),
            fading,
            correction,
        })
    }

    /// L2-normalizes each head.
    fn unit_heads(&self, state: &State, x: &[f64]) -> Vec<f64> {
        let heads = x.chunks(state.size).flat_map(|head| {
            let length = (dot(head, head) + self.hp.norm_eps).sqrt();
            head.iter().map(move |x| x / length)
        });
        heads.collect()
    }

    /// Computes the decay of each head's state, and its learning rate. Some files have one matrix
    /// for both, with rows grouped by key head.
    fn rates(&mut self, state: &State, h: &[f64]) -> Result<[Vec<f64>; 2], Error> {
        let (n_embd, heads) = (self.hp.n_embd, state.heads);
        let both = self.weights.has(&self.name("ssm_ba.weight"));
        let (mut alpha, mut beta) = if both {
            let mut mixed = self.product("ssm_ba", n_embd, 2 * heads, h)?;
            self.tap("linear_attn_mixed_ba", 2 * heads, &mut mixed);
            let (each, own) = (2 * heads / state.groups, heads / state.groups);
            let mut alpha = columns(&mixed, each, own..each);
            self.tap("a", heads, &mut alpha);
            (alpha, columns(&mixed, each, 0..own))
        } else {
            let alpha = self.product("ssm_alpha", n_embd, heads, h)?;
            (alpha, self.product("ssm_beta", n_embd, heads, h)?)
        };
        let bias = self.name("ssm_dt.bias");
        add_bias(&mut alpha, &self.weights.required_vector(&bias, heads)?);
        alpha.iter_mut().for_each(|x| *x = softplus(*x));
        self.tap("a_softplus", heads, &mut alpha);
        let factors = self.weights.required_vector(&self.name("ssm_a"), heads)?;
        for row in alpha.chunks_mut(heads) {
            row.iter_mut().zip(&factors).for_each(|(x, a)| *x *= a);
        }
        self.tap("gate", heads, &mut alpha);
        if both {
            self.tap("b", heads, &mut beta);
        }
        beta.iter_mut().for_each(|x| *x = sigmoid(*x));
        if !both {
            self.tap("beta_sigmoid", heads, &mut beta);
        }
        Ok([alpha, beta])
    }
}

impl Layer<'_, '_> {
    /// Computes a delta net whose state decays by dimension of keys (Kimi Delta Attention).
    pub(super) fn kimi_delta(&mut self, state: &State, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, inner, size) = (self.hp.n_embd, state.inner, state.size);
        let fused = self.weights.has(&self.name("attn_qkv.weight"));
        let all = match fused {
            true => self.product("attn_qkv", n_embd, 3 * inner, h)?,
            false => Vec::new(),
        };
        let mut streams = Vec::new();
        for (at, part) in ["q", "k", "v"].into_iter().enumerate() {
            let x = match fused {
                true => columns(&all, 3 * inner, at * inner..(at + 1) * inner),
                false => self.product(&format!("attn_{part}"), n_embd, inner, h)?,
            };
            let kernels = self.name(&format!("ssm_conv1d_{part}.weight"));
            let kernels = self.weights.planes(&kernels, [state.kernel, 1, inner])?;
            let mut x = convolve(&x, inner, &kernels);
            x.iter_mut().for_each(|x| *x = Activation::Silu.of(*x));
            streams.push(x);
        }
        let [q, k, v] = <[Vec<f64>; 3]>::try_from(streams).unwrap_or_default();
        let narrow = self.product("ssm_f_a", n_embd, size, h)?;
        let mut fading = self.product("ssm_f_b", size, inner, &narrow)?;
        add_bias(
            &mut fading,
            &self
                .weights
                .required_vector(&self.name("ssm_dt.bias"), inner)?,
        );
        let factors = self
            .weights
            .required_rows(&self.name("ssm_a"), 1, state.heads)?;
        for (x, at) in fading.iter_mut().zip((0..inner).cycle()) {
            *x = softplus(*x) * factors[at / size];
        }
        self.tap("kda_g1", inner, &mut fading);
        let mut correction = self.product("ssm_beta", n_embd, state.heads, h)?;
        correction.iter_mut().for_each(|x| *x = sigmoid(*x));
        let inputs = Inputs {
            q: self.unit_heads(state, &q),
            k: self.unit_heads(state, &k),
            v,
            fading,
            correction,
        };
        let mut mixed = recurrence(state, true, &inputs);
        self.tap("attn_output", inner, &mut mixed);
        let norm = self
            .weights
            .required_vector(&self.name("ssm_norm.weight"), size)?;
        let mut mixed = rms_norm(&mixed, &norm, self.hp.norm_eps);
        self.tap("kda_normed", inner, &mut mixed);
        let narrow = self.product("ssm_g_a", n_embd, size, h)?;
        let gate = self.product("ssm_g_b", size, inner, &narrow)?;
        mixed
            .iter_mut()
            .zip(&gate)
            .for_each(|(x, gate)| *x *= sigmoid(*gate));
        let mut out = self.product("attn_output", inner, n_embd, &mixed)?;
        self.tap("kda_out", n_embd, &mut out);
        Ok(out)
    }
}

/// Runs `M ← e^g M`, then `M += β(v − M k) kᵀ`; the result is `M q / √size`.
fn recurrence(state: &State, grouped: bool, inputs: &Inputs) -> Vec<f64> {
    let (size, heads, groups) = (state.size, state.heads, state.groups);
    let mut out = vec![0.0; inputs.v.len()];
    if out.is_empty() {
        return out;
    }
    let mut memory = vec![0.0; size]; // of one value of a head: a row of its matrix
    let n_tokens = out.len() / state.inner;
    for at in 0..state.inner {
        let head = at / size;
        let group = match grouped {
            true => head / (heads / groups),
            false => head % groups,
        };
        memory.fill(0.0);
        for t in 0..n_tokens {
            let key = &inputs.k[(t * groups + group) * size..][..size];
            let query = &inputs.q[(t * groups + group) * size..][..size];
            let decays = inputs.fading.len() / (n_tokens * heads);
            let fading = &inputs.fading[(t * heads + head) * decays..][..decays];
            for (j, m) in memory.iter_mut().enumerate() {
                *m *= fading[j % decays].exp();
            }
            let error = inputs.v[t * state.inner + at] - dot(&memory, key);
            let step = inputs.correction[t * heads + head] * error;
            memory.iter_mut().zip(key).for_each(|(m, k)| *m += step * k);
            out[t * state.inner + at] = dot(&memory, query) / (size as f64).sqrt();
        }
    }
    out
}
