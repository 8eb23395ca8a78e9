//! Multi-head latent attention (MLA): keys and values come from one latent row for all heads.
//! Either they are expanded from it for each head, or each head's query is projected so that it can
//! read the row itself.

use super::architecture::Rotated;
use super::hparams::Latent;
use super::layer::Layer;
use super::math::{Attention, columns};
use super::norms::whole_norm;
use crate::Error;

/// Queries, and the keys and values they read.
struct Memory {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    n_head_kv: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Layer<'_, '_> {
    /// Computes `Wo · attention(h)`.
    pub(super) fn latent_attention(
        &mut self,
        latent: &Latent,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let (n_head, n_embd) = (self.dims.n_head, self.hp.n_embd);
        let own = latent
            .indexer
            .as_ref()
            .filter(|indexer| indexer.own[self.il]);
        let index_keys = own.map(|indexer| self.index_keys(indexer, h)).transpose()?;
        let (q, low_rank) = self.latent_queries(latent, h)?;
        let memory = match latent.absorbed {
            true => self.absorbed(latent, &q, h)?,
            false => self.materialised(latent, q, h)?,
        };
        let chosen = self.choice(latent, &low_rank, h, index_keys.as_deref())?;
        let attention = Attention {
            head_dim: memory.key_dim,
            value_dim: memory.value_dim,
            n_head,
            n_head_kv: memory.n_head_kv,
            scale: self.hp.score_scale,
            cap: None,
            window: None,
            chunked: false,
            causal: true,
            sinks: None,
            chosen: chosen.as_deref(),
            slopes: None,
        };
        let mut mixed = attention.run(&memory.q, &memory.k, &memory.v);
        let width = n_head * latent.value;
        if latent.absorbed {
            mixed = self.by_head("attn_v_b", [latent.rank, latent.value], &mixed)?;
            self.tap("kqv_mla", width, &mut mixed);
        }
        self.tap("kqv_out", width, &mut mixed);
        let mut out = self.product("attn_output", width, n_embd, &mixed)?;
        if let Some(name) = self.hp.architecture.names.attn_out {
            self.tap(name, n_embd, &mut out);
        }
        Ok(out)
    }

    /// Shows a part of queries or keys, if llama.cpp names these.
    fn tap_part(&mut self, name: &str, width: usize, x: &mut [f64]) {
        if self.hp.architecture.names_latent {
            self.tap(name, width, x);
        }
    }

    /// Computes queries before RoPE, and the low-rank row of those that have one.
    fn latent_queries(
        &mut self,
        latent: &Latent,
        h: &[f64],
    ) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let n_embd = self.hp.n_embd;
        let width = self.dims.n_head * (latent.plain + latent.rotated);
        let mut low_rank = Vec::new();
        let mut q = match latent.query_rank {
            None => self.product("attn_q", n_embd, width, h)?,
            Some(rank) => {
                let name = if latent.indexer.is_some() { "qr" } else { "q" };
                let mut narrow = self.product("attn_q_a", n_embd, rank, h)?;
                self.tap_part(name, rank, &mut narrow);
                let norm = self.name("attn_q_a_norm");
                low_rank = whole_norm(self.hp, self.weights, &norm, rank, &narrow)?;
                self.tap_part(name, rank, &mut low_rank);
                self.product("attn_q_b", rank, width, &low_rank)?
            }
        };
        self.tap_part("q", width, &mut q);
        Ok((q, low_rank))
    }

    /// Computes the latent row, normed, and the part of keys to be rotated.
    fn narrow_row(&mut self, latent: &Latent, h: &[f64]) -> Result<[Vec<f64>; 2], Error> {
        let width = latent.rank + latent.rotated;
        let mut both = self.product("attn_kv_a_mqa", self.hp.n_embd, width, h)?;
        self.tap_part("kv_cmpr_pe", width, &mut both);
        let row = columns(&both, width, 0..latent.rank);
        let norm = self.name("attn_kv_a_norm");
        let mut row = whole_norm(self.hp, self.weights, &norm, latent.rank, &row)?;
        self.tap_part("kv_cmpr", latent.rank, &mut row);
        Ok([row, columns(&both, width, latent.rank..width)])
    }

    /// Rotates the last `rotated` of each head's `head_dim` values.
    fn rotate_ends(&self, latent: &Latent, n_head: usize, head_dim: usize, x: &mut [f64]) {
        if self.hp.architecture.rotated == Rotated::Never {
            return;
        }
        let rope = &self.hp.rope;
        let rows = x.chunks_mut(n_head * head_dim);
        for (&at, row) in self.shared.positions.iter().zip(rows) {
            let rotation = rope.rotation(at);
            row.chunks_mut(head_dim)
                .for_each(|head| rope.rotate(&mut head[head_dim - latent.rotated..], &rotation));
        }
    }

    /// Rotates the part of keys that all heads share.
    fn rotated_key(&mut self, latent: &Latent, mut k: Vec<f64>) -> Vec<f64> {
        self.rotate_ends(latent, 1, latent.rotated, &mut k);
        self.tap_part("k_pe", latent.rotated, &mut k);
        k
    }

    /// Builds one key for all heads, the latent row and the rotated part; its first part is the
    /// value.
    fn absorbed(&mut self, latent: &Latent, q: &[f64], h: &[f64]) -> Result<Memory, Error> {
        let (n_head, head_dim) = (self.dims.n_head, latent.plain + latent.rotated);
        let (key_dim, rotated) = (latent.rank + latent.rotated, latent.rotated);
        let plain = columns(q, head_dim, 0..latent.plain);
        let mut turned = self.by_head("attn_k_b", [latent.plain, latent.rank], &plain)?;
        self.tap("q_nope_absorbed", n_head * latent.rank, &mut turned);
        let mut ends = columns(q, head_dim, latent.plain..head_dim);
        self.rotate_ends(latent, n_head, rotated, &mut ends);
        self.tap_part("q_pe", n_head * rotated, &mut ends);
        let mut q = joined(&turned, latent.rank, &ends, rotated);
        self.tap("Qcur", n_head * key_dim, &mut q);
        self.scale_queries(n_head * key_dim, &mut q);
        let [row, k] = self.narrow_row(latent, h)?;
        let k = self.rotated_key(latent, k);
        let mut k = joined(&row, latent.rank, &k, rotated);
        self.tap("Kcur", key_dim, &mut k);
        Ok(Memory {
            q,
            k,
            v: row,
            n_head_kv: 1,
            key_dim,
            value_dim: latent.rank,
        })
    }

    /// Builds a key and a value for each head.
    fn materialised(
        &mut self,
        latent: &Latent,
        mut q: Vec<f64>,
        h: &[f64],
    ) -> Result<Memory, Error> {
        let (n_head, head_dim) = (self.dims.n_head, latent.plain + latent.rotated);
        self.rotate_ends(latent, n_head, head_dim, &mut q);
        self.tap("Qcur", n_head * head_dim, &mut q);
        self.scale_queries(n_head * head_dim, &mut q);
        let [row, k] = self.narrow_row(latent, h)?;
        let each = latent.plain + latent.value;
        let mut both = self.product("attn_kv_b", latent.rank, n_head * each, &row)?;
        self.tap("kv", n_head * each, &mut both);
        let mut v = columns(&both, each, latent.plain..each);
        self.tap("Vcur_cont", n_head * latent.value, &mut v);
        let k = self.rotated_key(latent, k);
        let ends: Vec<f64> = k
            .chunks(latent.rotated)
            .flat_map(|row| row.repeat(n_head))
            .collect();
        let plain = columns(&both, each, 0..latent.plain);
        let mut k = joined(&plain, latent.plain, &ends, latent.rotated);
        self.tap("Kcur", n_head * head_dim, &mut k);
        Ok(Memory {
            q,
            k,
            v,
            n_head_kv: n_head,
            key_dim: head_dim,
            value_dim: latent.value,
        })
    }

    /// Multiplies each head's part of a row with that head's matrix.
    fn by_head(
        &self,
        tensor: &str,
        [n_in, n_out]: [usize; 2],
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let n_head = self.dims.n_head;
        let name = self.name(&format!("{tensor}.weight"));
        let matrices = self.weights.experts(&name, [n_in, n_out, n_head])?;
        let mut y = vec![0.0; x.len() / n_in * n_out];
        if x.is_empty() {
            return Ok(y); // only the names and dims of tensors are checked
        }
        for head in 0..n_head {
            let own = columns(x, n_head * n_in, head * n_in..(head + 1) * n_in);
            let product = matrices.get(head)?.times(&own);
            for (row, product) in y.chunks_mut(n_head * n_out).zip(product.chunks(n_out)) {
                row[head * n_out..][..n_out].copy_from_slice(product);
            }
        }
        Ok(y)
    }
}

/// Joins the rows of two arrays: one of `a`, then one of `b`.
fn joined(a: &[f64], a_width: usize, b: &[f64], b_width: usize) -> Vec<f64> {
    let rows = a.chunks(a_width).zip(b.chunks(b_width));
    rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect()
}
