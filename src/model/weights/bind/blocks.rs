//! Binds the blocks of a layer: attention's projections, feed-forward blocks and mixtures of
//! experts.

use super::{Binder, blk};
use crate::error::Error;
use crate::hparams::{KeyChoice, LatentHparams};
use crate::taps;
use crate::weights::{
    DenseAndExperts, ExpertBank, ExpertInputs, ExpertScale, Experts, FeedForward, Indexer,
    LatentAttention, LatentHeads, LatentQuery, NormWeights, PerLayer, VecId, WeightId,
};

/// A layer's query, key and value projections, separate or cut out of one fused tensor.
pub(crate) struct Qkv {
    pub(crate) w: [WeightId; 3],
    pub(crate) b: [Option<VecId>; 3],
}

impl Binder<'_> {
    /// Binds a layer's Q, K and V: three tensors, or one with the rows of Q, then K, then V. Biases
    /// are optional.
    pub(crate) fn qkv(&mut self, l: usize) -> Result<Qkv, Error> {
        let n_embd = self.h.n_embd();
        let layer = &self.h.layers[l];
        let of_query = if self.h.arch.spec().gated_attention {
            2
        } else {
            1
        };
        let rows = [
            of_query * layer.q_width(),
            layer.kv_width(),
            layer.v_width(),
        ];
        let names = ["attn_q", "attn_k", "attn_v"];
        let total = rows.iter().sum();
        let Some(fused) = self.optional_matrix(&blk(l, "attn_qkv.weight"), total, n_embd)? else {
            let mut qkv = Qkv {
                w: [WeightId(0); 3],
                b: [None; 3],
            };
            for i in 0..3 {
                qkv.w[i] =
                    self.matrix(&blk(l, &format!("{}.weight", names[i])), rows[i], n_embd)?;
                qkv.b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
            }
            return Ok(qkv);
        };
        let w = self.split_matrix(fused, rows);
        if let Some(bias) = self.optional_vector(&blk(l, "attn_qkv.bias"), total)? {
            return Ok(Qkv {
                w,
                b: self.split_vector(bias, rows).map(Some),
            });
        }
        let mut b = [None; 3];
        for i in 0..3 {
            b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
        }
        // llama.cpp adds separate biases to a fused product only when all three are there, else
        // silently none
        if let Some(i) = b
            .iter()
            .position(Option::is_none)
            .filter(|_| b.iter().any(Option::is_some))
        {
            return Err(self.missing(&blk(l, &format!("{}.bias", names[i])), &[rows[i]]));
        }
        Ok(Qkv { w, b })
    }

    /// Binds multi-head latent attention.
    pub(crate) fn latent_attention(&mut self, l: usize) -> Result<LatentAttention, Error> {
        let sizes = self.h.latent.expect("read by whoever attends so");
        let (n_embd, n_head) = (self.h.n_embd(), self.h.layers[l].n_head);
        let queries = n_head * sizes.query();
        let query = match sizes.query_rank {
            None => LatentQuery::Whole(self.matrix(&blk(l, "attn_q.weight"), queries, n_embd)?),
            Some(rank) => LatentQuery::LowRank {
                down: self.matrix(&blk(l, "attn_q_a.weight"), rank, n_embd)?,
                norm: self.norm(&blk(l, "attn_q_a_norm"), rank, self.h.low_rank_query_tap())?,
                up: self.matrix(&blk(l, "attn_q_b.weight"), queries, rank)?,
            },
        };
        let low_rank = blk(l, "attn_kv_a_mqa.weight");
        Ok(LatentAttention {
            query,
            low_rank: self.matrix(&low_rank, sizes.rank + sizes.rotated, n_embd)?,
            norm: self.norm(&blk(l, "attn_kv_a_norm"), sizes.rank, taps::KV_CMPR)?,
            heads: self.latent_heads(l, &sizes)?,
            indexer: self.indexer(l)?,
            wo: self.matrix(&blk(l, "attn_output.weight"), n_embd, n_head * sizes.value)?,
        })
    }

    /// Binds a layer's indexer, where it has one.
    fn indexer(&mut self, l: usize) -> Result<Option<Indexer>, Error> {
        let latent = self.h.latent.expect("read by whoever attends so");
        let sizes = self.h.indexer.zip(latent.query_rank);
        let own = self.h.layers[l].choice == KeyChoice::Own;
        let Some((sizes, rank)) = sizes.filter(|_| own) else {
            return Ok(None);
        };
        let n_embd = self.h.n_embd();
        let name = |rest: &str| blk(l, &format!("indexer.{rest}"));
        let queries = sizes.n_head * sizes.key_dim;
        let norm = self.vector(&name("k_norm.weight"), sizes.key_dim)?;
        Ok(Some(Indexer {
            queries: self.matrix(&name("attn_q_b.weight"), queries, rank)?,
            keys: self.matrix(&name("attn_k.weight"), sizes.key_dim, n_embd)?,
            norm: NormWeights {
                bias: Some(self.vector(&name("k_norm.bias"), sizes.key_dim)?),
                ..NormWeights::plain(norm, taps::INDEXER_K)
            },
            weights: self.matrix(&name("proj.weight"), sizes.n_head, n_embd)?,
        }))
    }

    fn latent_heads(&mut self, l: usize, sizes: &LatentHparams) -> Result<LatentHeads, Error> {
        let n_head = self.h.layers[l].n_head;
        if !sizes.absorbed {
            let rows = n_head * (sizes.plain + sizes.value);
            let both = self.matrix(&blk(l, "attn_kv_b.weight"), rows, sizes.rank)?;
            return Ok(LatentHeads::Materialised(both));
        }
        let numbers = (0..n_head).map(|head| head as f32).collect();
        Ok(LatentHeads::Absorbed {
            keys: self.matrices(
                &blk(l, "attn_k_b.weight"),
                [sizes.plain, sizes.rank, n_head],
            )?,
            values: self.matrices(
                &blk(l, "attn_v_b.weight"),
                [sizes.rank, sizes.value, n_head],
            )?,
            all: self.made_vector("(numbers of heads)", numbers),
        })
    }

    /// Binds a stack of matrices, which is required.
    fn matrices(&mut self, name: &str, shape: [usize; 3]) -> Result<WeightId, Error> {
        let found = self.matrix_of(name, &shape)?;
        found.ok_or_else(|| self.missing(name, &shape))
    }

    /// Binds a feed-forward block with a gate, without biases.
    pub(crate) fn gated_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let gate = self.matrix(&blk(l, "ffn_gate.weight"), n_ff, n_embd)?;
        Ok(FeedForward {
            gate: Some(gate),
            ..self.plain_ffn(l)?
        })
    }

    /// Binds a feed-forward block without a gate and without biases.
    pub(crate) fn plain_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        Ok(FeedForward {
            gate: None,
            gate_bias: None,
            up: self.matrix(&blk(l, "ffn_up.weight"), n_ff, n_embd)?,
            up_bias: None,
            sub_norm: None,
            down: self.matrix(&blk(l, "ffn_down.weight"), n_embd, n_ff)?,
            down_bias: None,
        })
    }

    /// Adds those biases to a block that the file has.
    pub(crate) fn ffn_biases(&mut self, l: usize, ffn: FeedForward) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let gate_bias = match ffn.gate {
            Some(_) => self.optional_vector(&blk(l, "ffn_gate.bias"), n_ff)?,
            None => None,
        };
        Ok(FeedForward {
            gate_bias,
            up_bias: self.optional_vector(&blk(l, "ffn_up.bias"), n_ff)?,
            down_bias: self.optional_vector(&blk(l, "ffn_down.bias"), n_embd)?,
            ..ffn
        })
    }

    /// Binds a feed-forward block whose `ffn_up` has the gate's rows and then those of up.
    pub(crate) fn fused_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let both = self.matrix(&blk(l, "ffn_up.weight"), 2 * n_ff, n_embd)?;
        let [gate, up] = self.split_matrix(both, [n_ff, n_ff]);
        Ok(FeedForward {
            gate: Some(gate),
            gate_bias: None,
            up,
            up_bias: None,
            sub_norm: None,
            down: self.matrix(&blk(l, "ffn_down.weight"), n_embd, n_ff)?,
            down_bias: None,
        })
    }

    /// Binds the experts of a layer; a bias of the router, and of experts, is optional.
    pub(crate) fn experts(&mut self, l: usize) -> Result<Experts, Error> {
        let n_embd = self.h.n_embd();
        let rules = self
            .h
            .experts
            .expect("read by whoever has layers with experts");
        let (count, n_ff) = (rules.count, rules.n_ff);
        let router = self.matrix(&blk(l, "ffn_gate_inp.weight"), count, n_embd)?;
        let router_bias = self.optional_vector(&blk(l, "ffn_gate_inp.bias"), count)?;
        let selection_bias = self.optional_vector(&blk(l, "exp_probs_b.bias"), count)?;
        let ones = rules
            .weighs_inputs
            .then(|| self.made_vector("(no weight)", vec![1.0; rules.used]));
        let width = rules.latent.unwrap_or(n_embd);
        let latent = match rules.latent {
            Some(width) => Some([
                self.matrix(&blk(l, "ffn_latent_down.weight"), width, n_embd)?,
                self.matrix(&blk(l, "ffn_latent_up.weight"), n_embd, width)?,
            ]),
            None => None,
        };
        Ok(Experts {
            router,
            router_bias,
            selection_bias,
            latent,
            input: self.expert_inputs(l, n_ff, width)?,
            down: self.expert_outputs(l, n_ff, width)?,
            shared: self.shared_expert(l, rules.shared_n_ff)?,
            shared_tap: taps::FFN_SHEXP,
            merged_tap: self.h.arch.spec().ffn_out,
            tap: taps::FFN_MOE_OUT,
            ones,
            shared_gate: None,
        })
    }

    /// Binds the experts of a layer, which are chosen by scores plus a bias.
    pub(crate) fn experts_with_selection_bias(&mut self, l: usize) -> Result<Experts, Error> {
        let experts = self.experts(l)?;
        if experts.selection_bias.is_none() {
            let count = self.h.experts.map_or(0, |rules| rules.count);
            return Err(self.missing(&blk(l, "exp_probs_b.bias"), &[count]));
        }
        Ok(experts)
    }

    /// Binds the experts' gate and up projections: two tensors, or one fused; up alone where the
    /// activation has no gate.
    fn expert_inputs(
        &mut self,
        l: usize,
        n_ff: usize,
        n_embd: usize,
    ) -> Result<ExpertInputs, Error> {
        let both = blk(l, "ffn_gate_up_exps");
        if self.has(&format!("{both}.weight")) {
            let bank = self.bank(&both, 2 * n_ff, n_embd)?;
            let bank = self.scaled_by_rows(&both, bank, 2 * n_ff);
            return Ok(ExpertInputs::Together(bank));
        }
        let is_gated = self.h.feature().is_gated();
        let mut bank = |name: &str| -> Result<ExpertBank, Error> {
            let name = blk(l, name);
            let bank = self.bank(&name, n_ff, n_embd)?;
            Ok(self.scaled_by_rows(&name, bank, n_ff))
        };
        if !is_gated {
            return Ok(ExpertInputs::Plain(bank("ffn_up_exps")?));
        }
        Ok(ExpertInputs::Apart {
            gate: bank("ffn_gate_exps")?,
            up: bank("ffn_up_exps")?,
        })
    }

    /// Binds the experts' down projections: where a bias follows, factors cannot go into the
    /// experts' weights.
    fn expert_outputs(
        &mut self,
        l: usize,
        n_ff: usize,
        n_embd: usize,
    ) -> Result<ExpertBank, Error> {
        let name = blk(l, "ffn_down_exps");
        let bank = self.bank(&name, n_embd, n_ff)?;
        Ok(match bank.bias {
            Some(_) => self.scaled_by_rows(&name, bank, n_embd),
            None => bank,
        })
    }

    /// Binds one matrix of every expert, stacked in one tensor; with its bias and factors, if the
    /// file has them.
    fn bank(&mut self, name: &str, rows: usize, cols: usize) -> Result<ExpertBank, Error> {
        let count = self.h.experts.map_or(0, |rules| rules.count);
        let (matrix, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let weight = self.matrices(&matrix, [cols, rows, count])?;
        let bias = match self.take(&bias, &[rows, count])? {
            Some((_, info)) => Some(self.vector_of(&bias, info)?),
            None => None,
        };
        let scale = self.scale_of(&matrix, count)?;
        Ok(ExpertBank {
            weight,
            scale: scale.map(ExpertScale::OfExperts),
            bias,
        })
    }

    /// Repeats each factor once per row of its expert, so that the products themselves can be
    /// scaled.
    fn scaled_by_rows(&mut self, name: &str, bank: ExpertBank, rows: usize) -> ExpertBank {
        let Some(ExpertScale::OfExperts(id)) = bank.scale else {
            return bank;
        };
        let of_rows = |scale: &f32| std::iter::repeat_n(*scale, rows);
        let values = self.values(id).iter().flat_map(of_rows).collect();
        let id = self.made_vector(&format!("{name}.scale of every row"), values);
        ExpertBank {
            scale: Some(ExpertScale::OfRows(id)),
            ..bank
        }
    }

    fn shared_expert(&mut self, l: usize, n_ff: usize) -> Result<Option<FeedForward>, Error> {
        if n_ff == 0 {
            return Ok(None);
        }
        let n_embd = self.h.n_embd();
        let down = blk(l, "ffn_down_shexp.weight");
        if self.h.arch.spec().fused_shared {
            let both = self.matrix(&blk(l, "ffn_up_shexp.weight"), 2 * n_ff, n_embd)?;
            let [gate, up] = self.split_matrix(both, [n_ff; 2]);
            return Ok(Some(FeedForward {
                gate: Some(gate),
                gate_bias: None,
                up,
                up_bias: None,
                sub_norm: None,
                down: self.matrix(&down, n_embd, n_ff)?,
                down_bias: None,
            }));
        }
        let gate = match self.h.feature().is_gated() {
            true => Some(self.matrix(&blk(l, "ffn_gate_shexp.weight"), n_ff, n_embd)?),
            false => None,
        };
        Ok(Some(FeedForward {
            gate,
            gate_bias: None,
            up: self.matrix(&blk(l, "ffn_up_shexp.weight"), n_ff, n_embd)?,
            up_bias: None,
            sub_norm: None,
            down: self.matrix(&down, n_embd, n_ff)?,
            down_bias: None,
        }))
    }

    /// Binds a dense block with experts beside it.
    pub(crate) fn dense_and_experts(
        &mut self,
        l: usize,
        dense: FeedForward,
    ) -> Result<DenseAndExperts, Error> {
        let n_embd = self.h.n_embd();
        // the router reads rows divided by their L2 norm, times these
        let scales = self.vector(&blk(l, "ffn_gate_inp.scale"), n_embd)?;
        let unit = 1.0 / (n_embd as f32).sqrt();
        let scales = self
            .values(scales)
            .iter()
            .map(|scale| scale * unit)
            .collect();
        Ok(DenseAndExperts {
            dense,
            dense_post_norm: self.layer_norm(l, "post_ffw_norm_1", taps::FFN_MLP)?,
            experts: self.experts(l)?,
            router_norm: self.made_vector("ffn_gate_inp.scale / sqrt(n_embd)", scales),
            experts_norm: self.layer_norm(l, "pre_ffw_norm_2", taps::FFN_NORM_2)?,
            experts_post_norm: self.layer_norm(l, "post_ffw_norm_2", taps::FFN_MOE)?,
        })
    }

    /// Binds the layer's use of its per-layer input.
    pub(crate) fn per_layer(&mut self, l: usize) -> Result<Option<PerLayer>, Error> {
        let (width, n_embd) = (self.h.n_embd_per_layer, self.h.n_embd());
        if width == 0 {
            return Ok(None);
        }
        Ok(Some(PerLayer {
            gate: self.matrix(&blk(l, "inp_gate.weight"), width, n_embd)?,
            projection: self.matrix(&blk(l, "proj.weight"), n_embd, width)?,
            norm: self.layer_norm(l, "post_norm", taps::PER_LAYER_EMBD_OUT)?,
        }))
    }
}
