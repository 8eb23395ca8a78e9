//! LFM 2 with experts, chosen by sigmoid scores plus a bias, in all but the first layers.

use super::lfm2::{self, normed_layer};
use super::{Error, Ffn, Hparams, Keys, Spec};
use crate::hparams::{DefaultWidth, ExpertRules, Gating, MIXTURE, RouterKeys, experts};

pub(super) const SPEC: Spec = Spec {
    name: "lfm2moe",
    reads: &["expert_count", "expert_used_count"],
    read_hparams,
    layer: |b, l| {
        normed_layer(b, l, |b| {
            if l < b.h.leading_dense {
                return Ok(Ffn::Dense(b.gated_ffn(l)?));
            }
            Ok(Ffn::Experts(b.experts(l)?))
        })
    },
    ..lfm2::SPEC
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        router_keys: RouterKeys::Gating,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    h.leading_dense = k
        .count("leading_dense_block_count", 0..=h.n_layer(), Some(0))?
        .value;
    Ok(())
}
