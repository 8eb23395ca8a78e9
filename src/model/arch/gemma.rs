//! Gemma: embeddings times `sqrt(n_embd)`, GELU, tied output. The converter has already added 1 to
//! the norms' weights.

use super::{Block, DECODER, Error, Feature, Hparams, Keys, Spec, taps};

pub(super) const SPEC: Spec = Spec {
    name: "gemma",
    read_hparams: scaled_embedding,
    ..GEMMA
};

/// Settings all Gemma models share.
pub(super) const GEMMA: Spec = Spec {
    feature: Feature::Gelu,
    block: Block::Sequential {
        residual: Some(taps::SA_OUT),
    },
    scaled_embedding: taps::INP_SCALED,
    ..DECODER
};

/// Sets the factor on embeddings, which no key stores.
pub(super) fn scaled_embedding(_: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    h.factors.embedding = (h.n_embd() as f32).sqrt();
    Ok(())
}
