//! ERNIE 4.5 with experts in every layer after the first ones, or in every n-th of these.

use super::{Binder, DECODER, Error, Ffn, Hparams, Keys, Layer, Pairing, Spec};
use super::{pre_norm_layer, with_output_bias};
use crate::hparams::{DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, experts_after_dense};

pub(super) const SPEC: Spec = Spec {
    name: "ernie4_5-moe",
    pairing: Pairing::Norm,
    reads: &EXPERT_KEYS,
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    experts_after_dense(k, h, rules)?;
    h.expert_period = k
        .count("interleave_moe_layer_step", 1..=h.n_layer(), Some(1))?
        .value;
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = pre_norm_layer(b, l, |b| {
        if l < b.h.leading_dense || !(l + 1).is_multiple_of(b.h.expert_period) {
            return Ok(Ffn::Dense(b.gated_ffn(l)?));
        }
        Ok(Ffn::Experts(b.experts(l)?))
    })?;
    with_output_bias(b, l, layer)
}
