//! Granite: LLaMA with factors on embeddings, on each block's result, on scores and on logits (a
//! divisor). A file may switch RoPE off.

use super::{DECODER, Error, Hparams, Keys, Pairing, Spec, biased_layer};

pub(super) const SPEC: Spec = Spec {
    name: "granite",
    longrope: true,
    read_hparams: |k, h| {
        read_hparams(k, h, None)?;
        rotates_if_finetuned(k, h)
    },
    ..GRANITE
};

/// Settings all Granite models share.
pub(super) const GRANITE: Spec = Spec {
    pairing: Pairing::Norm,
    reads: &[
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
    ],
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: biased_layer,
    ..DECODER
};

/// Removes RoPE from all layers where the file asks for it.
pub(super) fn rotates_if_finetuned(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if !k.flag("rope.scaling.finetuned", true)? {
        for layer in &mut h.layers {
            layer.rope = None;
        }
    }
    Ok(())
}

/// Reads the factors; `divisor` is the default for the divisor of the logits.
pub(super) fn read_hparams(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    divisor: Option<f32>,
) -> Result<(), Error> {
    h.factors.embedding = k.factor("embedding_scale", Some(1.0))?;
    h.factors.residual = k.factor("residual_scale", Some(1.0))?;
    h.factors.logits = 1.0 / k.factor("logit_scale", divisor)?;
    let usual = h.layers[0].scores.scale;
    h.set_attention_scale(k.factor("attention.scale", Some(usual))?);
    Ok(())
}
