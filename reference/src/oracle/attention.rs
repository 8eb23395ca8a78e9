//! The attention block of a layer: products, norms and RoPE of queries and keys, attention, and the
//! output projection.

use super::architecture::{QkNorm, ResultGate, Sinks};
use super::layer::Layer;
use super::math::{
    Attention, add_bias, columns, layer_norm, rms_norm, rms_norm_groups, scale, sigmoid,
};
use super::norms::whole_norm;
use crate::Error;

/// Queries or keys: both are normed and rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Query,
    Key,
}

impl Side {
    /// Returns the prefix of names of values, and in lower case of tensors.
    fn letters(self) -> (&'static str, &'static str) {
        match self {
            Self::Query => ("Q", "q"),
            Self::Key => ("K", "k"),
        }
    }
}

impl Layer<'_, '_> {
    /// Computes `Wo · attention(h)`.
    pub(super) fn attention(&mut self, h: &[f64]) -> Result<Vec<f64>, Error> {
        let hp = self.hp;
        if let Some(latent) = &hp.latent {
            return self.latent_attention(latent, h);
        }
        let n_embd = hp.n_embd;
        let gated = hp.architecture.names.query_gate;
        let mut gate = None;
        let (q, [k, v]) = match self.dims.kv_from {
            Some(from) => (self.query_or_key(Side::Query, h)?, self.kept(from)),
            None if gated.is_some() => {
                let (q, g) = self.query_and_gate(h)?;
                gate = Some(g);
                (q, self.key_and_value(h)?)
            }
            None => {
                let [q, k, v] = self.qkv(h)?;
                if hp.layers.iter().any(|layer| layer.kv_from == Some(self.il)) {
                    self.shared.kept.insert(self.il, [k.clone(), v.clone()]);
                }
                (q, [k, v])
            }
        };
        let sinks = self.sinks()?;
        let slopes = hp.max_bias.map(|bias| alibi_slopes(bias, self.dims.n_head));
        let attention = Attention {
            head_dim: self.dims.head_dim,
            value_dim: self.dims.value_dim,
            n_head: self.dims.n_head,
            n_head_kv: self.dims.n_head_kv,
            scale: match hp.architecture.names.scaled_query {
                Some(_) => 1.0,
                None => hp.score_scale,
            },
            cap: hp.score_cap,
            window: self.dims.window,
            chunked: hp.is_chunked(),
            causal: hp.rows.is_none(),
            sinks: sinks.as_deref(),
            chosen: None,
            slopes: slopes.as_deref(),
        };
        let mut mixed = attention.run(&q, &k, &v);
        let n_out = self.dims.n_head * self.dims.value_dim;
        match (gated, gate, hp.architecture.gate) {
            (Some(name), Some(gate), _) => self.apply_gate(name, gate, &mut mixed),
            (_, _, Some(facts)) => self.gate_result(&facts, h, &mut mixed)?,
            _ => self.tap("kqv_out", n_out, &mut mixed),
        }
        if hp.architecture.sub_norms {
            let norm = self.name("attn_sub_norm");
            mixed = whole_norm(hp, self.weights, &norm, n_out, &mixed)?;
            self.tap("attn_sub_norm", n_out, &mut mixed);
        }
        let mut out = self.product("attn_output", n_out, n_embd, &mixed)?;
        if let Some(bias) = self.bias("attn_output", n_embd)? {
            add_bias(&mut out, &bias);
        }
        if let Some(name) = hp.architecture.names.attn_out {
            self.tap(name, n_embd, &mut out);
        }
        if hp.factors.attention != 1.0 {
            scale(&mut out, hp.factors.attention);
            self.tap("attn_out_scaled", n_embd, &mut out);
        }
        Ok(out)
    }

    fn sinks(&self) -> Result<Option<Vec<f64>>, Error> {
        let name = self.name("attn_sinks.weight");
        match self.hp.architecture.sinks {
            Sinks::None => Ok(None),
            Sinks::All => Ok(Some(self.weights.required_vector(&name, self.dims.n_head)?)),
            Sinks::Present => self.weights.vector(&name, self.dims.n_head),
        }
    }

    /// Multiplies attention's result, or each head's, with the sigmoid of a product.
    fn gate_result(&mut self, facts: &ResultGate, h: &[f64], x: &mut [f64]) -> Result<(), Error> {
        let [before, name, sigmoid_name, after] = facts.taps;
        let (n_head, value_dim) = (self.dims.n_head, self.dims.value_dim);
        self.tap(before, n_head * value_dim, x);
        if facts.by_head && !self.weights.has(&self.name("attn_gate.weight")) {
            return Ok(());
        }
        let (width, each) = match facts.by_head {
            true => (n_head, value_dim),
            false => (n_head * value_dim, 1),
        };
        let mut gate = self.product("attn_gate", self.hp.n_embd, width, h)?;
        self.tap(name, width, &mut gate);
        gate.iter_mut().for_each(|x| *x = sigmoid(*x));
        self.tap(sigmoid_name, width, &mut gate);
        for (x, gate) in x.chunks_mut(each).zip(&gate) {
            scale(x, *gate);
        }
        self.tap(after, n_head * value_dim, x);
        Ok(())
    }

    fn width_of(&self, side: Side) -> usize {
        let heads = match side {
            Side::Query => self.dims.n_head,
            Side::Key => self.dims.n_head_kv,
        };
        heads * self.dims.head_dim
    }

    /// Computes queries, keys and values, normed and rotated, in llama.cpp's order: all of Q, then
    /// V and K; but K before V where llama.cpp has two caches, or none, and where V is part of a
    /// fused product.
    fn qkv(&mut self, h: &[f64]) -> Result<[Vec<f64>; 3], Error> {
        let n_kv = self.dims.n_head_kv * self.dims.value_dim;
        if self.weights.has(&self.name("attn_qkv.weight")) {
            let [q, k, mut v] = self.fused_qkv(h)?;
            let q = self.finish(Side::Query, q)?;
            let k = self.finish(Side::Key, k)?;
            self.tap("Vcur", n_kv, &mut v);
            return Ok([q, k, self.finish_values(v)]);
        }
        let q = self.query_or_key(Side::Query, h)?;
        let normed = self.hp.architecture.normed_values;
        if normed && !self.weights.has(&self.name("attn_v.weight")) {
            let both = self.project("Vcur", "attn_k", n_kv, h)?;
            let k = self.finish(Side::Key, both.clone())?;
            return Ok([q, k, self.finish_values(both)]);
        }
        if self.hp.has_windows || self.hp.rows.is_some() {
            let k = self.query_or_key(Side::Key, h)?;
            let v = self.project("Vcur", "attn_v", n_kv, h)?;
            return Ok([q, k, self.finish_values(v)]);
        }
        let [k, v] = self.key_and_value(h)?;
        Ok([q, k, v])
    }

    /// Computes keys and values, values first as in llama.cpp.
    fn key_and_value(&mut self, h: &[f64]) -> Result<[Vec<f64>; 2], Error> {
        let n_v = self.dims.n_head_kv * self.dims.value_dim;
        let v = self.project("Vcur", "attn_v", n_v, h)?;
        Ok([self.query_or_key(Side::Key, h)?, v])
    }

    /// Computes each head's query and gate; the product has a head's query followed by as many gate
    /// values.
    fn query_and_gate(&mut self, h: &[f64]) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let (head_dim, both) = (self.dims.head_dim, 2 * self.dims.head_dim);
        let width = 2 * self.width_of(Side::Query);
        let full = self.project("Qcur_full", "attn_q", width, h)?;
        let q = self.finish(Side::Query, columns(&full, both, 0..head_dim))?;
        Ok((q, columns(&full, both, head_dim..both)))
    }

    fn apply_gate(&mut self, name: &str, mut gate: Vec<f64>, mixed: &mut [f64]) {
        let width = self.width_of(Side::Query);
        self.tap("attn_pregate", width, mixed);
        self.tap(name, width, &mut gate);
        gate.iter_mut().for_each(|x| *x = sigmoid(*x));
        self.tap("gate_sigmoid", width, &mut gate);
        mixed.iter_mut().zip(&gate).for_each(|(x, gate)| *x *= gate);
        self.tap("attn_gated", width, mixed);
    }

    /// Returns keys and values of an earlier layer.
    fn kept(&self, layer: usize) -> [Vec<f64>; 2] {
        self.shared.kept.get(&layer).cloned().unwrap_or_default()
    }

    fn finish_values(&mut self, v: Vec<f64>) -> Vec<f64> {
        if !self.hp.architecture.normed_values {
            return v;
        }
        let ones = vec![1.0; self.dims.head_dim];
        let mut v = rms_norm(&v, &ones, self.hp.norm_eps);
        self.tap("Vcur_normed", self.width_of(Side::Key), &mut v);
        v
    }

    fn query_or_key(&mut self, side: Side, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (value, tensor) = side.letters();
        let width = self.width_of(side);
        let x = self.project(&format!("{value}cur"), &format!("attn_{tensor}"), width, h)?;
        self.finish(side, x)
    }

    /// Computes a product and its bias, both tapped under the same name.
    fn project(
        &mut self,
        tap: &str,
        tensor: &str,
        width: usize,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let mut y = self.product(tensor, self.hp.n_embd, width, h)?;
        self.tap(tap, width, &mut y);
        if let Some(bias) = self.bias(tensor, width)? {
            add_bias(&mut y, &bias);
            self.tap(tap, width, &mut y);
        }
        if let Some(limit) = self.hp.qkv_limit {
            y.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
            self.tap(&format!("{tap}_clamped"), width, &mut y);
        }
        Ok(y)
    }

    /// Computes Q, K and V from `attn_qkv`, whose rows are those of Q, K and V; the biases may be
    /// fused too, or separate.
    fn fused_qkv(&mut self, h: &[f64]) -> Result<[Vec<f64>; 3], Error> {
        let (n_q, n_kv) = (self.width_of(Side::Query), self.width_of(Side::Key));
        let n_v = self.dims.n_head_kv * self.dims.value_dim;
        let width = n_q + n_kv + n_v;
        let mut qkv = self.product("attn_qkv", self.hp.n_embd, width, h)?;
        self.tap("wqkv", width, &mut qkv);
        let mut bias = self.bias("attn_qkv", width)?;
        if bias.is_none() {
            let parts = [
                ("attn_q.bias", n_q),
                ("attn_k.bias", n_kv),
                ("attn_v.bias", n_v),
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
        if let Some(limit) = self.hp.qkv_limit {
            qkv.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
            self.tap("wqkv_clamped", width, &mut qkv);
        }
        let cut = |from, to| columns(&qkv, width, from..to);
        Ok([cut(0, n_q), cut(n_q, n_q + n_kv), cut(n_q + n_kv, width)])
    }

    /// Applies norm, RoPE and, to queries, the scale.
    fn finish(&mut self, side: Side, mut x: Vec<f64>) -> Result<Vec<f64>, Error> {
        let hp = self.hp;
        let (width, rotates) = (self.width_of(side), self.dims.rotates);
        let normed = hp.architecture.names.qk_normed[side as usize];
        let rotated = hp.architecture.names.rotated[side as usize];
        let after = QkNorm::HeadAfterRotation;
        let unweighted = matches!(hp.qk_norm, QkNorm::UnweightedUnlessExperts(_));
        if hp.qk_norm != QkNorm::None && hp.qk_norm != after && !unweighted {
            x = self.qk_norm(side, &x)?;
            // without RoPE, the normed value has the rotated one's name, if that is the usual one
            let usual = rotated.filter(|name| name.ends_with("cur") && !rotates);
            let name = usual.unwrap_or(normed);
            self.tap(name, width, &mut x);
        }
        if let Some(rope) = hp.rope_of(&self.dims) {
            for (&at, row) in self.shared.positions.iter().zip(x.chunks_mut(width)) {
                let rotation = rope.rotation(at);
                row.chunks_mut(self.dims.head_dim)
                    .for_each(|head| rope.rotate(head, &rotation));
            }
            if let Some(name) = rotated {
                self.tap(name, width, &mut x);
            }
        }
        if hp.qk_norm == QkNorm::HeadAfterRotation {
            x = self.qk_norm(side, &x)?;
            self.tap(normed, width, &mut x);
        }
        if unweighted && rotates {
            let ones = vec![1.0; self.dims.head_dim];
            x = rms_norm(&x, &ones, hp.norm_eps);
            self.tap(normed, width, &mut x);
        }
        if side == Side::Query {
            self.scale_queries(width, &mut x);
        }
        Ok(x)
    }

    fn qk_norm(&self, side: Side, x: &[f64]) -> Result<Vec<f64>, Error> {
        let (hp, head_dim) = (self.hp, self.dims.head_dim);
        let tensor = self.name(&format!("attn_{}_norm", side.letters().1));
        match hp.qk_norm {
            QkNorm::EachHeadFrom(_) => {
                let n_head = self.width_of(side) / head_dim;
                let name = format!("{tensor}.weight");
                let weight = self.weights.required_rows(&name, head_dim, n_head)?;
                Ok(layer_norm(x, head_dim, &weight, hp.norm_eps))
            }
            QkNorm::EachHead => {
                let n_head = self.width_of(side) / head_dim;
                let name = format!("{tensor}.weight");
                let weight = self.weights.required_rows(&name, head_dim, n_head)?;
                Ok(rms_norm_groups(x, head_dim, &weight, hp.norm_eps))
            }
            QkNorm::Whole => whole_norm(hp, self.weights, &tensor, self.width_of(side), x),
            _ => whole_norm(hp, self.weights, &tensor, head_dim, x),
        }
    }

    pub(super) fn scale_queries(&mut self, width: usize, q: &mut [f64]) {
        if let Some(name) = self.hp.architecture.names.scaled_query {
            scale(q, self.hp.score_scale);
            self.tap(name, width, q);
        }
        let unrotated_only = self.hp.architecture.unrotated_temperature.is_some();
        if let Some(temperature) = self.hp.temperature
            && !(unrotated_only && self.dims.rotates)
        {
            for (pos, row) in q.chunks_mut(width).enumerate() {
                let spans = ((pos + temperature.offset) / temperature.length) as f64;
                scale(row, 1.0 + temperature.strength * spans.ln_1p());
            }
            let name = match unrotated_only {
                true => "Qcur",
                false => "Qcur_attn_temp_scaled",
            };
            self.tap(name, width, q);
        }
    }
}

/// Returns by how much scores of each head fall with each position (Press et al. 2021): for a power
/// of two of heads, the powers of `2^(-max_bias / heads)`; heads beyond a power of two take the odd
/// powers of the root of that factor.
fn alibi_slopes(max_bias: f64, n_head: usize) -> Vec<f64> {
    let mut power = 1;
    while 2 * power <= n_head {
        power *= 2;
    }
    let (factor, root) = (
        2f64.powf(-max_bias / power as f64),
        2f64.powf(-max_bias / 2.0 / power as f64),
    );
    let first = (1..=power).map(|n| factor.powi(n as i32));
    let rest = (0..n_head - power).map(|n| root.powi(2 * n as i32 + 1));
    first.chain(rest).collect()
}
