//! Binds recurrent blocks: delta nets, Mamba 2 and short convolutions.

use super::{Binder, blk};
use crate::error::Error;
use crate::hparams::RecurrentHparams;
use crate::weights::{
    DeltaInputs, DeltaNet, DeltaRates, GroupNorm, KimiDelta, Mamba2, ShortConv, VecId, WeightId,
};

impl Binder<'_> {
    fn recurrent(&self) -> RecurrentHparams {
        self.h
            .recurrent
            .expect("read by whoever has recurrent layers")
    }

    /// Binds a gated delta net.
    pub(crate) fn delta_net(&mut self, l: usize) -> Result<DeltaNet, Error> {
        let sizes = self.recurrent();
        let n_embd = self.h.n_embd();
        let unit = 1.0 / (sizes.state_size as f32).sqrt();
        let unit = vec![unit; sizes.state_size];
        Ok(DeltaNet {
            inputs: self.delta_inputs(l, &sizes)?,
            rates: self.delta_rates(l, sizes.heads)?,
            dt_bias: self.vector(&blk(l, "ssm_dt.bias"), sizes.heads)?,
            a: self.vector(&blk(l, "ssm_a"), sizes.heads)?,
            unit: self.made_vector("1 / sqrt(ssm.state_size)", unit),
            norm: self.vector(&blk(l, "ssm_norm.weight"), sizes.state_size)?,
            out: self.matrix(&blk(l, "ssm_out.weight"), n_embd, sizes.inner)?,
        })
    }

    /// Binds a gated delta net with a decay for each dimension of keys.
    pub(crate) fn kimi_delta(&mut self, l: usize) -> Result<KimiDelta, Error> {
        let RecurrentHparams {
            kernel,
            inner,
            state_size,
            heads,
            ..
        } = self.recurrent();
        let n_embd = self.h.n_embd();
        let unit = vec![1.0 / (state_size as f32).sqrt(); state_size];
        let fused = self.optional_matrix(&blk(l, "attn_qkv.weight"), 3 * inner, n_embd)?;
        let qkv = match fused {
            Some(fused) => self.split_matrix(fused, [inner; 3]),
            None => [
                self.matrix(&blk(l, "attn_q.weight"), inner, n_embd)?,
                self.matrix(&blk(l, "attn_k.weight"), inner, n_embd)?,
                self.matrix(&blk(l, "attn_v.weight"), inner, n_embd)?,
            ],
        };
        let shape = [kernel, 1, inner];
        Ok(KimiDelta {
            qkv,
            convs: [
                self.convolution_of(&blk(l, "ssm_conv1d_q.weight"), &shape)?,
                self.convolution_of(&blk(l, "ssm_conv1d_k.weight"), &shape)?,
                self.convolution_of(&blk(l, "ssm_conv1d_v.weight"), &shape)?,
            ],
            decay: self.low_rank(l, ["ssm_f_a.weight", "ssm_f_b.weight"])?,
            dt_bias: self.vector(&blk(l, "ssm_dt.bias"), inner)?,
            a: self.column(&blk(l, "ssm_a"), heads)?,
            beta: self.matrix(&blk(l, "ssm_beta.weight"), heads, n_embd)?,
            gate: self.low_rank(l, ["ssm_g_a.weight", "ssm_g_b.weight"])?,
            unit: self.made_vector("1 / sqrt(kda.head_dim)", unit),
            norm: self.vector(&blk(l, "ssm_norm.weight"), state_size)?,
            out: self.matrix(&blk(l, "attn_output.weight"), n_embd, inner)?,
        })
    }

    /// Binds two successive projections, through as many values as a key has.
    fn low_rank(&mut self, l: usize, names: [&str; 2]) -> Result<[WeightId; 2], Error> {
        let sizes = self.recurrent();
        let (n_embd, rank) = (self.h.n_embd(), sizes.state_size);
        Ok([
            self.matrix(&blk(l, names[0]), rank, n_embd)?,
            self.matrix(&blk(l, names[1]), sizes.inner, rank)?,
        ])
    }

    /// Binds queries, keys and values: in old files one tensor with the gate.
    fn delta_inputs(&mut self, l: usize, sizes: &RecurrentHparams) -> Result<DeltaInputs, Error> {
        let (n_embd, inner, keys) = (self.h.n_embd(), sizes.inner, sizes.key_width());
        let width = 2 * keys + inner;
        let conv = self.convolution(&blk(l, "ssm_conv1d.weight"), sizes.kernel, width)?;
        let all = blk(l, "ssm_in.weight");
        if let Some(all) = self.optional_matrix(&all, width + inner, n_embd)? {
            let convs = self.split_columns(conv, width, [keys, keys, inner]);
            return Ok(DeltaInputs::ByHeads { all, convs });
        }
        Ok(DeltaInputs::Apart {
            qkv: self.matrix(&blk(l, "attn_qkv.weight"), width, n_embd)?,
            conv,
            gate: self.matrix(&blk(l, "attn_gate.weight"), inner, n_embd)?,
        })
    }

    /// Binds decay and learning rate of the states: one tensor in some files.
    fn delta_rates(&mut self, l: usize, heads: usize) -> Result<DeltaRates, Error> {
        let n_embd = self.h.n_embd();
        let both = blk(l, "ssm_ba.weight");
        if let Some(both) = self.optional_matrix(&both, 2 * heads, n_embd)? {
            return Ok(DeltaRates::ByHeads(both));
        }
        Ok(DeltaRates::Apart {
            alpha: self.matrix(&blk(l, "ssm_alpha.weight"), heads, n_embd)?,
            beta: self.matrix(&blk(l, "ssm_beta.weight"), heads, n_embd)?,
        })
    }

    /// Binds Mamba 2, with its result named `tap`; the norm may be missing if `norm_is_optional`.
    pub(crate) fn mamba2(
        &mut self,
        l: usize,
        tap: &'static str,
        norm_is_optional: bool,
    ) -> Result<Mamba2, Error> {
        let sizes = self.recurrent();
        let (n_embd, inner, heads) = (self.h.n_embd(), sizes.inner, sizes.heads);
        let width = inner + 2 * sizes.key_width();
        let norm = blk(l, "ssm_norm.weight");
        Ok(Mamba2 {
            input: self.matrix(&blk(l, "ssm_in.weight"), inner + width + heads, n_embd)?,
            conv: self.convolution(&blk(l, "ssm_conv1d.weight"), sizes.kernel, width)?,
            conv_bias: self.optional_vector(&blk(l, "ssm_conv1d.bias"), width)?,
            dt_bias: self.vector(&blk(l, "ssm_dt.bias"), heads)?,
            a: self.column(&blk(l, "ssm_a"), heads)?,
            d: self.column(&blk(l, "ssm_d"), heads)?,
            norm: match norm_is_optional && !self.has(&norm) {
                true => None,
                false => Some(self.group_norm(&norm, inner, sizes.groups)?),
            },
            out: self.matrix(&blk(l, "ssm_out.weight"), n_embd, inner)?,
            tap,
        })
    }

    /// Binds a convolution between two gates.
    pub(crate) fn short_conv(&mut self, l: usize) -> Result<ShortConv, Error> {
        let (n_embd, kernel) = (self.h.n_embd(), self.recurrent().kernel);
        Ok(ShortConv {
            input: self.matrix(&blk(l, "shortconv.in_proj.weight"), 3 * n_embd, n_embd)?,
            conv: self.convolution(&blk(l, "shortconv.conv.weight"), kernel, n_embd)?,
            out: self.matrix(&blk(l, "shortconv.out_proj.weight"), n_embd, n_embd)?,
        })
    }

    /// Binds a convolution's weights, transposing them from the file's columns to rows.
    fn convolution(&mut self, name: &str, kernel: usize, width: usize) -> Result<VecId, Error> {
        self.convolution_of(name, &[kernel, width])
    }

    /// Does the same for a tensor of this shape, which begins with the kernel's rows.
    fn convolution_of(&mut self, name: &str, shape: &[usize]) -> Result<VecId, Error> {
        let id = self.vector_of_shape(name, shape)?;
        let (kernel, width) = (shape[0], self.values(id).len() / shape[0]);
        let data = self.values(id);
        let row = |j: usize| (0..width).map(move |column| data[column * kernel + j]);
        let rows = (0..kernel).flat_map(row).collect();
        *self.values_mut(id) = rows;
        Ok(id)
    }

    /// Binds a vector that files store as a matrix of one column.
    fn column(&mut self, name: &str, n: usize) -> Result<VecId, Error> {
        self.vector_of_shape(name, &[1, n])
    }

    /// Binds the weights of a group norm. With one group the shape is a plain norm's.
    fn group_norm(&mut self, name: &str, width: usize, groups: usize) -> Result<GroupNorm, Error> {
        let of_group = width / groups;
        Ok(GroupNorm {
            weight: self.vector_of_shape(name, &[of_group, groups])?,
            ones: self.made_vector("(no weight)", vec![1.0; of_group]),
        })
    }

    /// Binds all values of a required tensor of this shape.
    fn vector_of_shape(&mut self, name: &str, shape: &[usize]) -> Result<VecId, Error> {
        match self.take(name, shape)? {
            Some((_, info)) => self.vector_of(name, info),
            None => Err(self.missing(name, shape)),
        }
    }

    /// Splits rows of `width` into columns.
    fn split_columns<const N: usize>(
        &mut self,
        rows: VecId,
        width: usize,
        parts: [usize; N],
    ) -> [VecId; N] {
        let whole = self.found(rows).clone();
        let mut first = 0;
        parts.map(|n| {
            let columns = first..first + n;
            let part = whole.data.chunks_exact(width);
            let part = part.flat_map(|row| row[columns.clone()].to_vec()).collect();
            first += n;
            self.made_vector(&whole.name, part)
        })
    }
}
