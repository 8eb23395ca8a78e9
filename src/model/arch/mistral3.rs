//! Mistral 3 and Ministral: LLaMA with YaRN, whose ramp the file sets and whose magnitude is partly
//! undone, and queries scaled by their position.

use super::llama::mixture;
use super::{DECODER, Error, Hparams, Images, Keys, Pairing, Spec, biased_layer};
use crate::hparams::Temperature;

pub(super) const SPEC: Spec = Spec {
    name: "mistral3",
    images: Images::Causal,
    pairing: Pairing::Norm,
    full_rotary: true,
    longrope: true,
    reads: &[
        "expert_count",
        "expert_used_count",
        "attention.temperature_scale",
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    ],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: biased_layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    mixture(k, h)?;
    h.ropes[0].log_multiplier = k.not_negative("rope.scaling.yarn_log_multiplier", 0.0)?;
    let rate = k.not_negative("attention.temperature_scale", 0.0)?;
    h.temperature = (rate > 0.0).then_some(Temperature {
        rate,
        step: h.ropes[0].original_context.value,
        offset: 0,
        unrotated_only: false,
    });
    Ok(())
}
