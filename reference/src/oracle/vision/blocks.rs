//! A block of a vision encoder.

use super::super::math::{Activation, Attention, add_into, columns, layer_norm, rms_norm};
use super::super::rope::RopePairs;
use super::Tower;
use super::hparams::Kind;
use crate::Error;

/// RoPE base; no key stores it.
const ROPE_BASE: f64 = 10_000.0;

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
        let h = self.norm(&name("ln1"), ["ln1"; 2], block, n_embd, x)?;
        let mixed = self.attention(block, &h)?;
        let mut attended = self.linear(&name("attn_out"), n_embd, n_embd, &mixed)?;
        self.tap("attn_out", own, n_embd, &mut attended);
        add_into(x, &attended);
        self.tap("ffn_inp", own, n_embd, x);
        let h = self.norm(&name("ln2"), ["ffn_inp_normed"; 2], block, n_embd, x)?;
        let gate = name("ffn_gate");
        let feed = FeedForward {
            up: &name("ffn_up"),
            gate: (self.hp.kind == Kind::Qwen25).then_some(&*gate),
            down: &name("ffn_down"),
            dims: [n_embd, self.hp.n_ff, n_embd],
            activation: self.hp.activation,
            block: own,
        };
        let mut fed = self.feed_forward(&feed, &h)?;
        self.tap("ffn_out", own, n_embd, &mut fed);
        add_into(x, &fed);
        self.tap("layer_out", own, n_embd, x);
        Ok(())
    }

    /// Norms rows of `width` values. `names` are llama.cpp's names of an RMS norm's result and of a
    /// LayerNorm's; the latter's values before the bias are `norm_w`.
    pub(super) fn norm(
        &mut self,
        tensor: &str,
        names: [&str; 2],
        block: usize,
        width: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let own = Some(block);
        let weight = format!("{tensor}.weight");
        let weight = self.weights.required_vector(&weight, width)?;
        if self.hp.kind == Kind::Qwen25 {
            let mut h = rms_norm(x, &weight, self.hp.norm_eps);
            self.tap(names[0], own, width, &mut h);
            return Ok(h);
        }
        let mut h = layer_norm(x, width, &weight, self.hp.norm_eps);
        self.tap("norm_w", own, width, &mut h);
        self.add_bias(tensor, width, &mut h)?;
        self.tap(names[1], own, width, &mut h);
        Ok(h)
    }

    /// Computes attention over the patches that each patch sees.
    fn attention(&mut self, block: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        let (n_embd, own) = (self.hp.n_embd, Some(block));
        let [mut q, mut k, mut v] = self.qkv(block, h)?;
        for (x, names) in [
            (&mut q, ["Qcur", "Qcur_rope"]),
            (&mut k, ["Kcur", "Kcur_rope"]),
        ] {
            self.tap(names[0], own, n_embd, x);
            self.rotate(x);
            self.tap(names[1], own, n_embd, x);
        }
        self.tap("Vcur", own, n_embd, &mut v);
        let head_dim = self.hp.head_dim();
        let attention = Attention {
            head_dim,
            value_dim: head_dim,
            n_head: self.hp.n_head,
            n_head_kv: self.hp.n_head,
            scale: 1.0 / (head_dim as f64).sqrt(),
            cap: None,
            window: None,
            causal: false,
            sinks: None,
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
        let name = |tensor: &str| format!("v.blk.{block}.{tensor}");
        let part = |tensor: &str| self.linear(&name(tensor), n_embd, n_embd, h);
        match self.hp.kind {
            Kind::Qwen3 => {
                let width = 3 * n_embd;
                let qkv = self.linear(&name("attn_qkv"), n_embd, width, h)?;
                Ok([0, 1, 2].map(|i| columns(&qkv, width, i * n_embd..(i + 1) * n_embd)))
            }
            Kind::Qwen25 => Ok([part("attn_q")?, part("attn_k")?, part("attn_v")?]),
        }
    }

    /// Applies 2D RoPE to every head: the first half of its pairs is rotated by the patch's row,
    /// the second by its column, both beginning with the highest frequency.
    fn rotate(&self, x: &mut [f64]) {
        let head_dim = self.hp.head_dim();
        let quarter = head_dim / 4;
        let turn = |place: usize, i: usize| {
            let angle = place as f64 * ROPE_BASE.powf(-4.0 * i as f64 / head_dim as f64);
            (angle.cos(), angle.sin())
        };
        let rows = x.chunks_mut(self.hp.n_embd);
        for (&[row, column], x) in self.layout.places.iter().zip(rows) {
            let by_row = (0..quarter).map(|i| turn(row, i));
            let by_column = (0..quarter).map(|i| turn(column, i));
            let rotation: Vec<(f64, f64)> = by_row.chain(by_column).collect();
            x.chunks_mut(head_dim)
                .for_each(|head| RopePairs::Halves.rotate(head, &rotation));
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
        self.tap("ffn_down", block, n_out, &mut out);
        self.add_bias(feed.down, n_out, &mut out)?;
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
        self.add_bias(tensor, n_out, &mut y)?;
        self.tap(&format!("{name}_b"), block, n_out, &mut y);
        Ok(y)
    }
}
