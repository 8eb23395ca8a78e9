//! Granite: LLaMA with factors on embeddings, on what each block adds, on scores and on logits
//! (which are divided). Files may say that nothing turns.

use super::{DECODER, Error, Hparams, Keys, Pairing, Spec, biased_layer};

pub(super) const SPEC: Spec = Spec {
    name: "granite",
    numbers: |k, h| {
        numbers(k, h, None)?;
        turns_if_finetuned(k, h)
    },
    ..GRANITE
};

/// What all Granites have in common.
pub(super) const GRANITE: Spec = Spec {
    pairing: Pairing::Norm,
    reads: &[
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
    ],
    ends: |b| b.ends_with_rope_freqs(),
    layer: biased_layer,
    ..DECODER
};

/// Nothing turns where the file says so.
pub(super) fn turns_if_finetuned(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if !k.flag("rope.scaling.finetuned", true)? {
        for layer in &mut h.layers {
            layer.rope = None;
        }
    }
    Ok(())
}

/// The factors; `divisor` is what logits are divided by where no key says so.
pub(super) fn numbers(
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
