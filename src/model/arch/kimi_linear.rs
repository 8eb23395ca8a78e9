//! Kimi Linear: delta nets whose state decays by key dimension (KDA) in layers without KV heads,
//! latent attention without RoPE in the others, and experts with a shared one in all but the first
//! layers.

use super::{DECODER, Error, Hparams, Keys, Recurrent, Spec, biased_experts_after_dense, taps};
use crate::hparams::{DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, RouterKeys};
use crate::hparams::{experts_after_dense, unrotated_latent};

pub(super) const SPEC: Spec = Spec {
    name: "kimi-linear",
    rotates: false,
    latent: true,
    names_latent: false,
    recurrent: Some(Recurrent::KimiDelta),
    embedding: taps::EMBED_TOKENS,
    scaled_embedding: taps::EMBED_TOKENS,
    attn_out: Some(taps::MLA_OUT),
    reads: &EXPERT_KEYS,
    read_hparams,
    layer: biased_experts_after_dense,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    unrotated_latent(k, h)?;
    let rules = ExpertRules {
        router_keys: RouterKeys::RequiredGatingAndScale,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    experts_after_dense(k, h, rules)
}
