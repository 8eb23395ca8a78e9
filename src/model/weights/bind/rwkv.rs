//! Binds the two halves of a layer of RWKV 7.

use super::{Binder, blk};
use crate::error::Error;
use crate::hparams::MixRanks;
use crate::taps;
use crate::weights::{BiasedLowRank, ChannelMix, NormWeights, TimeMix, VecId, WeightId};

impl Binder<'_> {
    /// Binds time mixing. The first layer has no use of its share of the first layer's values.
    pub(crate) fn time_mix(&mut self, l: usize) -> Result<TimeMix, Error> {
        let (n_embd, size) = (self.h.n_embd(), self.recurrent().state_size);
        let MixRanks {
            decay,
            rate,
            value,
            gate,
        } = self.recurrent().mix.expect("read with the other sizes");
        let unit = vec![1.0 / (size as f32).sqrt(); size];
        let of_layer = |name: &str| blk(l, &format!("time_mix_{name}.weight"));
        if l == 0 {
            for name in ["v0", "v1", "v2"] {
                self.ignore(&of_layer(name));
            }
        }
        let norm = NormWeights {
            tap: None,
            ones: Some(self.made_vector("(no weight)", vec![1.0; size])),
            ..self.norm(&blk(l, "time_mix_ln"), n_embd, taps::ATTN_NORM)?
        };
        Ok(TimeMix {
            shift: self.shift(),
            shares: self.shares(&of_layer("lerp_fused"))?,
            rkv: [
                self.matrix(&of_layer("receptance"), n_embd, n_embd)?,
                self.matrix(&of_layer("key"), n_embd, n_embd)?,
                self.matrix(&of_layer("value"), n_embd, n_embd)?,
            ],
            decay: self.biased_low_rank(l, "w", decay)?,
            rate: self.biased_low_rank(l, "a", rate)?,
            value: match l {
                0 => None,
                _ => Some(self.biased_low_rank(l, "v", value)?),
            },
            gate: [
                self.matrix(&of_layer("g1"), gate, n_embd)?,
                self.matrix(&of_layer("g2"), n_embd, gate)?,
            ],
            k_k: self.vector(&of_layer("k_k"), n_embd)?,
            k_a: self.vector(&of_layer("k_a"), n_embd)?,
            r_k: self.by_heads(&of_layer("r_k"), size)?,
            unit: self.made_vector("1 / sqrt(wkv.head_size)", unit),
            norm,
            out: self.matrix(&of_layer("output"), n_embd, n_embd)?,
        })
    }

    /// Binds channel mixing.
    pub(crate) fn channel_mix(&mut self, l: usize) -> Result<ChannelMix, Error> {
        let (n_embd, n_ff) = (self.h.n_embd(), self.h.layers[l].n_ff);
        Ok(ChannelMix {
            shift: self.shift(),
            share: self.vector(&blk(l, "channel_mix_lerp_k.weight"), n_embd)?,
            key: self.matrix(&blk(l, "channel_mix_key.weight"), n_ff, n_embd)?,
            value: self.matrix(&blk(l, "channel_mix_value.weight"), n_embd, n_ff)?,
        })
    }

    /// Returns the convolution that yields the row before less a row.
    fn shift(&mut self) -> VecId {
        let n_embd = self.h.n_embd();
        let data = [vec![1.0; n_embd], vec![-1.0; n_embd]].concat();
        self.made_vector("(row before - row)", data)
    }

    /// Binds the shares of the change that six inputs take.
    fn shares(&mut self, name: &str) -> Result<[VecId; 6], Error> {
        let n_embd = self.h.n_embd();
        let all = self.vector_of_shape(name, &[n_embd, 1, 1, 6])?;
        let data = self.values(all).to_vec();
        let mut parts = data.chunks_exact(n_embd);
        Ok([(); 6].map(|()| {
            let part = parts.next().map(<[f32]>::to_vec);
            self.made_vector(name, part.unwrap_or_default())
        }))
    }

    /// Binds two successive projections through `rank` values, and what is added to their result.
    fn biased_low_rank(
        &mut self,
        l: usize,
        letter: &str,
        rank: usize,
    ) -> Result<BiasedLowRank, Error> {
        let n_embd = self.h.n_embd();
        let name = |number: usize| blk(l, &format!("time_mix_{letter}{number}.weight"));
        let down = self.matrix(&name(1), rank, n_embd)?;
        let up = self.matrix(&name(2), n_embd, rank)?;
        Ok(([down, up], self.vector(&name(0), n_embd)?))
    }

    /// Binds a vector as a matrix: a row for each head of `size` values, with zeros in the places
    /// of other heads.
    fn by_heads(&mut self, name: &str, size: usize) -> Result<WeightId, Error> {
        let n_embd = self.h.n_embd();
        let vector = self.vector(name, n_embd)?;
        let mut rows = vec![0.0; n_embd / size * n_embd];
        for (at, factor) in self.values(vector).iter().enumerate() {
            rows[at / size * n_embd + at] = *factor;
        }
        Ok(self.made_matrix(name, n_embd, &rows))
    }
}
