//! Binds recurrent blocks: delta nets, Mamba and short convolutions.

use super::{Binder, blk};
use crate::error::Error;
use crate::hparams::RecurrentHparams;
use crate::taps;
use crate::weights::{
    DeltaInputs, DeltaNet, DeltaRates, GroupNorm, KimiDelta, Mamba1, Mamba2, NormWeights, Plamo2,
    ShortConv, VecId, WeightId,
};

impl Binder<'_> {
    pub(super) fn recurrent(&self) -> RecurrentHparams {
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

    /// Binds Mamba 1. Its parts have norms with weights beside feed-forward blocks, and otherwise
    /// norms without any, if the file asks for them.
    pub(crate) fn mamba1(&mut self, l: usize) -> Result<Mamba1, Error> {
        let RecurrentHparams {
            kernel,
            inner,
            state_size,
            rank,
            ..
        } = self.recurrent();
        let n_embd = self.h.n_embd();
        let widths = [rank, state_size, state_size];
        let names = ["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"];
        let mut norms = None;
        if self.h.arch.spec().feeds_forward {
            let mut all = [VecId(0); 3];
            for ((norm, name), n) in all.iter_mut().zip(names).zip(widths) {
                *norm = self.vector(&blk(l, &format!("{name}.weight")), n)?;
            }
            norms = Some(all);
        } else if self.h.normed_steps {
            norms = Some(widths.map(|n| self.made_vector("(no weight)", vec![1.0; n])));
        }
        let mixed = rank + 2 * state_size;
        let a = self.vector_of_shape(&blk(l, "ssm_a"), &[state_size, inner])?;
        self.transpose(a, state_size);
        Ok(Mamba1 {
            input: self.matrix(&blk(l, "ssm_in.weight"), 2 * inner, n_embd)?,
            conv: self.convolution(&blk(l, "ssm_conv1d.weight"), kernel, inner)?,
            conv_bias: self.vector(&blk(l, "ssm_conv1d.bias"), inner)?,
            mixed: self.matrix(&blk(l, "ssm_x.weight"), mixed, inner)?,
            norms,
            steps: self.matrix(&blk(l, "ssm_dt.weight"), inner, rank)?,
            dt_bias: self.vector(&blk(l, "ssm_dt.bias"), inner)?,
            a,
            d: self.vector(&blk(l, "ssm_d"), inner)?,
            out: self.matrix(&blk(l, "ssm_out.weight"), n_embd, inner)?,
        })
    }

    /// Binds PLaMo 2's Mamba.
    pub(crate) fn plamo2_mamba(&mut self, l: usize) -> Result<Plamo2, Error> {
        let RecurrentHparams {
            kernel,
            inner,
            state_size,
            heads,
            rank,
            ..
        } = self.recurrent();
        let n_embd = self.h.n_embd();
        let mut norm = |name: &str, n: usize, tap: &'static str| {
            Ok::<_, Error>(NormWeights::plain(self.vector(&blk(l, name), n)?, tap))
        };
        let norms = [
            norm("ssm_b_norm", state_size, taps::MAMBA_B_NORMED)?,
            norm("ssm_c_norm", state_size, taps::MAMBA_C_NORMED)?,
            norm("ssm_dt_norm", rank, taps::MAMBA_DT_NORMED)?,
        ];
        let mixed = 2 * state_size + rank;
        Ok(Plamo2 {
            input: self.matrix(&blk(l, "ssm_in.weight"), 2 * inner, n_embd)?,
            conv: self.convolution(&blk(l, "ssm_conv1d.weight"), kernel, inner)?,
            mixed: self.matrix(&blk(l, "ssm_x.weight"), mixed, inner)?,
            norms,
            steps: self.matrix(&blk(l, "ssm_dt.weight"), heads, rank)?,
            dt_bias: self.vector(&blk(l, "ssm_dt.bias"), heads)?,
            a: self.vector(&blk(l, "ssm_a"), heads)?,
            d: self.vector(&blk(l, "ssm_d"), heads)?,
            out: self.matrix(&blk(l, "ssm_out.weight"), n_embd, inner)?,
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
        self.transpose(id, shape[0]);
        Ok(id)
    }

    /// Makes `n` rows of a vector's columns of `n` values each.
    fn transpose(&mut self, id: VecId, n: usize) {
        let data = self.values(id);
        let width = data.len() / n;
        let row = |j: usize| (0..width).map(move |column| data[column * n + j]);
        let rows = (0..n).flat_map(row).collect();
        *self.values_mut(id) = rows;
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

    /// Binds a norm of each of several heads, with weights of its own.
    pub(crate) fn norm_of_heads(
        &mut self,
        name: &str,
        [width, heads]: [usize; 2],
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        let weight = self.vector_of_shape(name, &[width, heads])?;
        Ok(NormWeights {
            ones: Some(self.made_vector("(no weight)", vec![1.0; width])),
            ..NormWeights::plain(weight, tap)
        })
    }

    /// Binds all values of a required tensor of this shape.
    pub(super) fn vector_of_shape(&mut self, name: &str, shape: &[usize]) -> Result<VecId, Error> {
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
