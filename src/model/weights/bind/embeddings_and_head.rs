//! Binds the weights outside the layers: embedding, final norm, output, and divisors of RoPE
//! angles.

use super::{Binder, blk};
use crate::error::Error;
use crate::hparams::ScalingKind;
use crate::taps;
use crate::weights::{
    AssistantProjections, MtpInput, NormWeights, PerLayerInputs, RopeDivisors, VecId, WeightId,
};

/// The weights outside the layers.
pub(crate) struct EmbeddingsAndHead {
    pub(crate) token_embd: WeightId,
    pub(crate) positions: Option<WeightId>,
    pub(crate) token_type: Option<VecId>,
    pub(crate) embd_norm: Option<NormWeights>,
    pub(crate) output_norm: Option<NormWeights>,
    pub(crate) dense: Vec<WeightId>,
    pub(crate) output: Option<WeightId>,
    pub(crate) output_bias: Option<VecId>,
    pub(crate) rope_divisors: RopeDivisors,
    pub(crate) per_layer_inputs: Option<PerLayerInputs>,
}

impl Binder<'_> {
    /// Binds token embedding, final norm and output matrix, which is the embedding if the file has
    /// no other; a model without causal attention has none.
    pub(crate) fn bind_embeddings_and_head(&mut self) -> Result<EmbeddingsAndHead, Error> {
        self.bind_embeddings_and_head_with_norm("output_norm")
    }

    /// Does the same with a final norm of this name.
    pub(crate) fn bind_embeddings_and_head_with_norm(
        &mut self,
        norm: &str,
    ) -> Result<EmbeddingsAndHead, Error> {
        let weights = self.rows_only()?;
        let output_norm = self.norm(norm, self.h.n_embd(), taps::RESULT_NORM)?;
        self.bind_head_after(weights, output_norm)
    }

    /// Returns a norm of rows whose weights are all 1.
    pub(crate) fn unweighted_norm(&mut self, tap: &'static str) -> NormWeights {
        let ones = vec![1.0; self.h.n_embd()];
        NormWeights::plain(self.made_vector("(no weight)", ones), tap)
    }

    /// Adds this final norm and the output matrix to the embeddings.
    pub(crate) fn bind_head_after(
        &mut self,
        weights: EmbeddingsAndHead,
        output_norm: NormWeights,
    ) -> Result<EmbeddingsAndHead, Error> {
        let (n_embd, n_vocab) = (self.h.n_embd(), self.h.n_vocab());
        const OUTPUT: &str = "output.weight";
        // a decoder that became an embedding model has no logits
        let output = match self.h.is_causal() {
            true => self
                .optional_matrix(OUTPUT, n_vocab, n_embd)?
                .or(Some(weights.token_embd)),
            false => None,
        };
        if output.is_none() {
            self.ignore(OUTPUT);
        }
        Ok(EmbeddingsAndHead {
            output_norm: Some(output_norm),
            output,
            ..weights
        })
    }

    /// Binds the token embedding, and nothing after the layers.
    pub(crate) fn rows_only(&mut self) -> Result<EmbeddingsAndHead, Error> {
        let (n_embd, n_vocab) = (self.h.n_embd(), self.h.n_vocab());
        Ok(EmbeddingsAndHead {
            token_embd: self.matrix("token_embd.weight", n_vocab, n_embd)?,
            positions: None,
            token_type: None,
            embd_norm: None,
            output_norm: None,
            dense: Vec::new(),
            output: None,
            output_bias: None,
            rope_divisors: RopeDivisors::default(),
            per_layer_inputs: None,
        })
    }

    /// Binds the first row of `token_types.weight`, which has one row per token type, if the file
    /// has it.
    pub(crate) fn first_token_type(&mut self) -> Result<Option<VecId>, Error> {
        const NAME: &str = "token_types.weight";
        let (n_embd, n_types) = (self.h.n_embd(), self.h.n_token_types);
        let Some((_, info)) = self.take(NAME, &[n_embd, n_types])? else {
            return Ok(None);
        };
        let id = self.vector_of(NAME, info)?;
        self.values_mut(id).truncate(n_embd);
        Ok(Some(id))
    }

    /// Binds embeddings and head with `rope_freqs.weight`, if the file has it; where it asks for
    /// LongRoPE, with both lists of that.
    pub(crate) fn bind_embeddings_and_head_with_rope_freqs(
        &mut self,
    ) -> Result<EmbeddingsAndHead, Error> {
        if self.h.ropes[0].scaling.value == ScalingKind::LongRope {
            return self.bind_embeddings_and_head_with_rope_factors();
        }
        let all = self.rope_divisors("rope_freqs.weight")?;
        let rope_divisors = RopeDivisors {
            all,
            ..RopeDivisors::default()
        };
        Ok(EmbeddingsAndHead {
            rope_divisors,
            ..self.bind_embeddings_and_head()?
        })
    }

    /// Binds `bind_embeddings_and_head_with_rope_freqs`, and the per-layer inputs, if the model has
    /// them.
    pub(crate) fn bind_embeddings_and_head_with_per_layer_inputs(
        &mut self,
    ) -> Result<EmbeddingsAndHead, Error> {
        let weights = self.bind_embeddings_and_head_with_rope_freqs()?;
        let (width, n_embd) = (self.h.n_embd_per_layer, self.h.n_embd());
        if width == 0 {
            return Ok(weights);
        }
        let all = width * self.h.n_layer();
        Ok(EmbeddingsAndHead {
            per_layer_inputs: Some(PerLayerInputs {
                table: self.matrix("per_layer_token_embd.weight", self.h.n_vocab(), all)?,
                projection: self.matrix("per_layer_model_proj.weight", all, n_embd)?,
                norm: self.norm("per_layer_proj_norm", width, taps::PER_LAYER_PROJ)?,
            }),
            ..weights
        })
    }

    /// Binds embeddings and head with `rope_factors_short.weight` and `rope_factors_long.weight`,
    /// both or neither.
    pub(crate) fn bind_embeddings_and_head_with_rope_factors(
        &mut self,
    ) -> Result<EmbeddingsAndHead, Error> {
        const NAMES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
        let (short, long) = (self.rope_divisors(NAMES[0])?, self.rope_divisors(NAMES[1])?);
        for (id, name) in [(short, NAMES[0]), (long, NAMES[1])] {
            if id.is_none() && short.or(long).is_some() {
                return Err(self.missing(name, &[self.n_pairs()]));
            }
        }
        Ok(EmbeddingsAndHead {
            rope_divisors: RopeDivisors {
                all: None,
                short,
                long,
            },
            ..self.bind_embeddings_and_head()?
        })
    }

    /// Binds the input of an MTP layer, where the model is one:
    /// [`mtp_layer`](crate::mtp_layer).
    pub(super) fn mtp_input(&mut self) -> Result<Option<MtpInput>, Error> {
        let n_embd = self.h.n_embd();
        let name = |name: &str| blk(0, &format!("nextn.{name}"));
        let projection = name("eh_proj.weight");
        if !self.has(&projection) {
            return Ok(None);
        }
        Ok(Some(MtpInput {
            embedding_norm: self.norm(&name("enorm"), n_embd, taps::MTP_ENORM)?,
            hidden_norm: self.norm(&name("hnorm"), n_embd, taps::MTP_HNORM)?,
            projection: self.matrix(&projection, n_embd, 2 * n_embd)?,
        }))
    }

    /// Binds the projections of an assistant, where the model is one.
    pub(super) fn assistant_projections(&mut self) -> Result<Option<AssistantProjections>, Error> {
        let (n_embd, target) = (self.h.n_embd(), self.h.n_embd_target);
        if target == 0 {
            return Ok(None);
        }
        Ok(Some(AssistantProjections {
            input: self.matrix("nextn.pre_projection.weight", n_embd, 2 * target)?,
            output: self.matrix("nextn.post_projection.weight", target, n_embd)?,
        }))
    }

    /// Returns the number of rotated pairs of a head, in the layers where these are most.
    fn n_pairs(&self) -> usize {
        let most = self.h.ropes.iter().map(|rope| rope.n_rot.value).max();
        most.expect("a model has a rotary embedding") / 2
    }

    /// Binds a vector of divisors of RoPE angles; layers with fewer pairs use the first ones.
    fn rope_divisors(&mut self, name: &str) -> Result<Option<VecId>, Error> {
        let Some(id) = self.optional_vector(name, self.n_pairs())? else {
            return Ok(None);
        };
        let data = self.values(id);
        match data.iter().position(|&x| x <= 0.0) {
            Some(i) => Err(self.bad_element(name, i, "a divisor above 0", data[i])),
            None => Ok(Some(id)),
        }
    }
}
