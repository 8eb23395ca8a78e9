//! A block of a vision encoder.

use super::super::math::{Activation, Attention, add_into, columns, layer_norm, rms_norm, scale};
use super::super::rope::RopePairs;
use super::Tower;
use super::hparams::Kind;
use crate::Error;

/// A feed-forward block, `n_in` to `n_inner` to `n_out`.
pub(super) struct FeedForward<'n> {
    pub(super) up: &'n str,
    /// Gate of `up`, if there is one.
    pub(super) gate: Option<&'n str>,
    pub(super) down: &'n str,
    pub(super) dims: [usize; 3],
    pub(super) activation: Activation,
    /// Block number in names.
    pub(super) block: Option<usize>,
}

impl Tower<'_, '_> {
    /// Runs the residual stream `x`, `(n_patches, n_embd)`, through a block.
    pub(super) fn block(&mut self, block: usize, x: &mut [f64]) -> Result<(), Error> {
        let (n_embd, own) = (self.hp.n_embd, Some(block));
        let name = |tensor: &str| format!("v.blk.{block}.{tensor}");
        let normed = match self.hp.kind.is_qwen() {
            true => "ln1",
            false => "layer_inp_normed",
        };
        let h = self.norm(&name("ln1"), [normed; 2], own, n_embd, x)?;
        let mixed = self.attention(block, &h)?;
        let mut attended = self.linear(&name("attn_out"), n_embd, n_embd, &mixed)?;
        self.tap("attn_out", own, n_embd, &mut attended);
        self.scale_values(&name("ls1"), ("attn_out_scaled", own), &mut attended)?;
        let is_gemma4 = self.hp.kind == Kind::Gemma4;
        if is_gemma4 {
            let tap = ["attn_post_normed"; 2];
            attended = self.norm(&name("attn_post_norm"), tap, own, n_embd, &attended)?;
        }
        add_into(x, &attended);
        self.tap("ffn_inp", own, n_embd, x);
        let h = self.norm(&name("ln2"), ["ffn_inp_normed"; 2], own, n_embd, x)?;
        let gate = name("ffn_gate");
        let [up, down] = self.names_of_feed_forward(block);
        let feed = FeedForward {
            up: &up,
            gate: self.hp.kind.has_rms_norms().then_some(&*gate),
            down: &down,
            dims: [n_embd, self.hp.n_ff, n_embd],
            activation: self.hp.activation,
            block: own,
        };
        let mut fed = self.feed_forward(&feed, &h)?;
        self.tap("ffn_out", own, n_embd, &mut fed);
        if is_gemma4 {
            let tap = ["ffn_post_normed"; 2];
            fed = self.norm(&name("ffn_post_norm"), tap, own, n_embd, &fed)?;
        }
        self.scale_values(&name("ls2"), ("ffn_out_scaled", own), &mut fed)?;
        add_into(x, &fed);
        self.tap("layer_out", own, n_embd, x);
        if is_gemma4 && let Some(factor) = self.weights.vector(&name("out_scale.weight"), 1)? {
            scale(x, factor.first().copied().unwrap_or(1.0));
            self.tap("layer_out_scaled", own, n_embd, x);
        }
        Ok(())
    }

    /// Multiplies rows with InternVL's factors for each value, if the file has them.
    fn scale_values(
        &mut self,
        tensor: &str,
        (name, own): (&str, Option<usize>),
        x: &mut [f64],
    ) -> Result<(), Error> {
        let n_embd = self.hp.n_embd;
        if self.hp.kind != Kind::InternVl {
            return Ok(());
        }
        let Some(factors) = self.weights.vector(&format!("{tensor}.weight"), n_embd)? else {
            return Ok(());
        };
        let values = x.iter_mut().zip(factors.iter().cycle());
        values.for_each(|(x, factor)| *x *= factor);
        self.tap(name, own, n_embd, x);
        Ok(())
    }

    /// Returns the names of the products up and down. Old files of SigLIP have them the other way
    /// round, as the second one's input shows.
    fn names_of_feed_forward(&self, block: usize) -> [String; 2] {
        let [up, down] = ["ffn_up", "ffn_down"].map(|part| format!("v.blk.{block}.{part}"));
        let dims = self.weights.dims(&format!("{down}.weight"));
        let is_swapped = dims.and_then(<[u64]>::first) == Some(&(self.hp.n_embd as u64));
        match self.hp.kind.swaps_feed_forward() && is_swapped {
            true => [down, up],
            false => [up, down],
        }
    }

    /// Norms rows of `width` values. `names` are llama.cpp's names of an RMS norm's result and of a
    /// LayerNorm's; the latter's values before the bias are `norm_w`.
    pub(super) fn norm(
        &mut self,
        tensor: &str,
        names: [&str; 2],
        own: Option<usize>,
        width: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        match self.hp.kind.has_rms_norms() {
            true => self.rms_norm(tensor, names[0], own, width, x),
            false => self.layer_norm(tensor, names[1], own, (width, self.hp.norm_eps), x),
        }
    }

    /// Computes an RMS norm with this name.
    pub(super) fn rms_norm(
        &mut self,
        tensor: &str,
        name: &str,
        own: Option<usize>,
        width: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let weight = format!("{tensor}.weight");
        let weight = self.weights.required_vector(&weight, width)?;
        let mut h = rms_norm(x, &weight, self.hp.norm_eps);
        self.tap(name, own, width, &mut h);
        Ok(h)
    }

    /// Computes a layer norm whose result has this name, and before the bias `norm_w`.
    pub(super) fn layer_norm(
        &mut self,
        tensor: &str,
        name: &str,
        own: Option<usize>,
        (width, eps): (usize, f64),
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let weight = format!("{tensor}.weight");
        let weight = self.weights.required_vector(&weight, width)?;
        let mut h = layer_norm(x, width, &weight, eps);
        self.tap("norm_w", own, width, &mut h);
        self.add_bias(tensor, width, &mut h)?;
        self.tap(name, own, width, &mut h);
        Ok(h)
    }

    /// Computes attention over the patches that each patch sees.
    fn attention(&mut self, block: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, own) = (self.hp.n_embd, Some(block));
        let (head_dim, kind) = (self.hp.head_dim(), self.hp.kind);
        let n_kv = self.hp.n_head_kv * head_dim;
        let [mut q, mut k, mut v] = self.qkv(block, h)?;
        for (x, part, width) in [(&mut q, "q", n_embd), (&mut k, "k", n_kv)] {
            let name = format!("{}cur", part.to_uppercase());
            self.tap(&name, own, width, x);
            if kind == Kind::Gemma4 {
                let norm = format!("v.blk.{block}.attn_{part}_norm.weight");
                let norm = self.weights.required_vector(&norm, head_dim)?;
                *x = rms_norm(x, &norm, self.hp.norm_eps);
            }
            if !kind.has_rope() {
                continue;
            }
            self.rotate(x, width);
            let rotated = if kind.is_qwen() { "rope" } else { "pos" };
            self.tap(&format!("{name}_{rotated}"), own, width, x);
        }
        self.tap("Vcur", own, n_kv, &mut v);
        if kind == Kind::Gemma4 {
            v = rms_norm(&v, &vec![1.0; head_dim], self.hp.norm_eps);
            self.tap("Vcur_normed", own, n_kv, &mut v);
        }
        let attention = Attention {
            head_dim,
            value_dim: head_dim,
            n_head: self.hp.n_head,
            n_head_kv: self.hp.n_head_kv,
            scale: match kind {
                Kind::Gemma4 => 1.0,
                _ => 1.0 / (head_dim as f64).sqrt(),
            },
            cap: None,
            window: None,
            chunked: false,
            causal: false,
            sinks: None,
            chosen: None,
            slopes: None,
        };
        let whole = |every: usize| (block + 1).is_multiple_of(every);
        let sees_all = self.hp.windows.is_none_or(|w| whole(w.whole_every));
        let mut mixed = match sees_all {
            true => attention.run(&q, &k, &v),
            false => {
                let windows = self.layout.windows.iter();
                let values = windows.map(|w| w.start * n_embd..w.end * n_embd);
                let own = values.map(|w| attention.run(&q[w.clone()], &k[w.clone()], &v[w]));
                own.flatten().collect()
            }
        };
        self.tap("kqv_out", own, n_embd, &mut mixed);
        Ok(mixed)
    }

    /// Computes queries, keys and values with their biases, from one matrix or from three.
    fn qkv(&self, block: usize, h: &[f64]) -> Result<[Vec<f64>; 3], Error> {
        let n_embd = self.hp.n_embd;
        let n_kv = self.hp.n_head_kv * self.hp.head_dim();
        let name = |tensor: &str| format!("v.blk.{block}.{tensor}");
        let part = |tensor: &str, width: usize| self.linear(&name(tensor), n_embd, width, h);
        if !self.weights.has(&name("attn_qkv.weight")) {
            return Ok([
                part("attn_q", n_embd)?,
                part("attn_k", n_kv)?,
                part("attn_v", n_kv)?,
            ]);
        }
        let width = n_embd + 2 * n_kv;
        let qkv = part("attn_qkv", width)?;
        let ends = [0, n_embd, n_embd + n_kv, width];
        Ok([0, 1, 2].map(|i| columns(&qkv, width, ends[i]..ends[i + 1])))
    }

    /// Applies 2D RoPE to every head: one half of its pairs is rotated by the patch's row, the
    /// other by its column. Qwen pairs the halves of a head, and either axis begins with the
    /// highest frequency. Pixtral pairs neighbours, and deals out frequencies in turn. Kimi-VL too
    /// pairs them, the first half by column. Gemma 4 does with each half of a head what others do
    /// with a head, the first by column.
    fn rotate(&self, x: &mut [f64], width: usize) {
        let (head_dim, kind) = (self.hp.head_dim(), self.hp.kind);
        let base: f64 = if kind == Kind::Gemma4 {
            100.0
        } else {
            10_000.0
        };
        let turns = |place: usize, shift: f64| {
            let of_pair = move |i: usize| {
                let exponent = -(4.0 * i as f64 + shift) / head_dim as f64;
                let angle = place as f64 * base.powf(exponent);
                (angle.cos(), angle.sin())
            };
            (0..head_dim / 4).map(of_pair).collect::<Vec<(f64, f64)>>()
        };
        let second = if kind == Kind::Pixtral { 2.0 } else { 0.0 };
        for (&[row, column], x) in self.layout.places.iter().zip(x.chunks_mut(width)) {
            if kind == Kind::Gemma4 {
                let turns = [turns(column, 0.0), turns(row, 0.0)];
                let halves = x.chunks_mut(head_dim / 2).zip(turns.iter().cycle());
                halves.for_each(|(half, turns)| RopePairs::Halves.rotate(half, turns));
                continue;
            }
            let (first, other) = match kind {
                Kind::KimiVl => (column, row),
                _ => (row, column),
            };
            let rotation = [turns(first, 0.0), turns(other, second)].concat();
            let pairs = match kind {
                Kind::Pixtral | Kind::KimiVl => RopePairs::Adjacent,
                _ => RopePairs::Halves,
            };
            x.chunks_mut(head_dim)
                .for_each(|head| pairs.rotate(head, &rotation));
        }
    }

    /// Computes `Wdown · (activation(Wgate · x) ⊙ Wup · x)` or `Wdown · activation(Wup · x)`, with
    /// biases everywhere. The result has no name yet.
    pub(super) fn feed_forward(
        &mut self,
        feed: &FeedForward<'_>,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let ([n_in, n_inner, n_out], block) = (feed.dims, feed.block);
        let gate = match feed.gate {
            Some(gate) => Some(self.biased("ffn_gate", gate, [n_in, n_inner], block, x)?),
            None => None,
        };
        let up = self.biased("ffn_up", feed.up, [n_in, n_inner], block, x)?;
        let activation = feed.activation;
        let (mut inner, name) = match gate {
            Some(gate) => {
                let name = format!("ffn_{}", activation.gated_name());
                (activation.gated(&gate, &up), name)
            }
            None => {
                let inner = up.into_iter().map(|x| activation.of(x)).collect();
                (inner, activation.plain_name().to_owned())
            }
        };
        self.tap(&name, block, n_inner, &mut inner);
        let mut out = self.product(feed.down, n_inner, n_out, &inner)?;
        if self.has_bias(feed.down) {
            self.tap("ffn_down", block, n_out, &mut out);
            self.add_bias(feed.down, n_out, &mut out)?;
        }
        Ok(out)
    }

    /// Computes a product, tapped before and after its bias.
    fn biased(
        &mut self,
        name: &str,
        tensor: &str,
        [n_in, n_out]: [usize; 2],
        block: Option<usize>,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let mut y = self.product(tensor, n_in, n_out, x)?;
        self.tap(name, block, n_out, &mut y);
        if self.has_bias(tensor) {
            self.add_bias(tensor, n_out, &mut y)?;
            self.tap(&format!("{name}_b"), block, n_out, &mut y);
        }
        Ok(y)
    }
}
