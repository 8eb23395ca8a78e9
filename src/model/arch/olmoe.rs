//! OLMoE: norms of all queries and all keys together, and experts in every layer whose weights are
//! not normalized.

use super::{Binder, DECODER, Error, Layer, Spec, expert_layer, with_whole_norms};
use crate::hparams::{DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, experts};

pub(super) const SPEC: Spec = Spec {
    name: "olmoe",
    full_rotary: true,
    heads_fill_width: true,
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, RULES)?);
        k.warn_of_unheard("attention.clamp_kqv", &[0.0]);
        Ok(())
    },
    layer,
    ..DECODER
};

pub(super) const RULES: ExpertRules = ExpertRules {
    normalized: Some(false),
    n_ff: DefaultWidth::Whole,
    ..MIXTURE
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    with_whole_norms(b, l, layer)
}
