//! Gemma: embeddings times the root of their width, GELU, an output that is the embedding. The
//! converter has added 1 to the weights of the norms.

use super::{Block, DECODER, Error, Feature, Hparams, Keys, Spec, taps};

pub(super) const SPEC: Spec = Spec {
    name: "gemma",
    numbers: scaled_embedding,
    ..GEMMA
};

/// What all Gemmas have in common.
pub(super) const GEMMA: Spec = Spec {
    feature: Feature::Gelu,
    block: Block::Sequential {
        residual: Some(taps::SA_OUT),
    },
    scaled_embedding: taps::INP_SCALED,
    ..DECODER
};

/// The factor on embeddings, which no key has.
pub(super) fn scaled_embedding(_: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    h.factors.embedding = (h.n_embd() as f32).sqrt();
    Ok(())
}
