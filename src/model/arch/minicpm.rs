//! MiniCPM: Granite's factors with other defaults, and optionally LongRoPE.

use super::{DECODER, Error, Hparams, Keys, Pairing, Spec, biased_layer};

pub(super) const SPEC: Spec = Spec {
    name: "minicpm",
    pairing: Pairing::Norm,
    longrope: true,
    reads: &["embedding_scale", "residual_scale", "logit_scale"],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_factors(),
    layer: biased_layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    // defaults for old files without these keys
    let residual = 1.4 / (h.n_layer() as f32).sqrt();
    let logits = 256.0 / h.n_embd() as f32;
    h.factors.embedding = k.factor("embedding_scale", Some(12.0))?;
    h.factors.residual = k.factor("residual_scale", Some(residual))?;
    h.factors.logits = 1.0 / k.factor("logit_scale", Some(logits))?;
    Ok(())
}
