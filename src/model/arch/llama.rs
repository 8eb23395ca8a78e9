//! LLaMA and its like: RoPE rotates neighbouring pairs (the converter permutes Q and K for it) over
//! the whole head, and `rope_freqs.weight` carries Llama 3's frequency scaling. Attention output
//! and feed-forward biases are optional.

use super::{DECODER, Error, Hparams, Images, Keys, Pairing, Spec, biased_layer};
use crate::hparams::{CAUSAL, see_all_if_asked};
use crate::hparams::{DefaultWidth, ExpertRules, MIXTURE, experts_if_any};

pub(super) const SPEC: Spec = Spec {
    name: "llama",
    images: Images::Causal,
    pairing: Pairing::Norm,
    full_rotary: true,
    longrope: true,
    reads: &["expert_count", "expert_used_count", CAUSAL],
    read_hparams: |k, h| {
        mixture(k, h)?;
        see_all_if_asked(k, h)
    },
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: biased_layer,
    ..DECODER
};

/// Reads Mixtral's experts, if any: each as wide as `feed_forward_length`.
pub(super) fn mixture(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        n_ff: DefaultWidth::Whole,
        ..MIXTURE
    };
    h.experts = experts_if_any(k, h, rules)?;
    Ok(())
}
