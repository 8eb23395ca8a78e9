//! Nemotron H with ungated experts, which may read and yield fewer values than the embedding has,
//! and a shared one, in place of its feed-forward blocks.

use super::nemotron_h::{self, one_of_both};
use super::{Ffn, Spec};
use crate::hparams::{ExpertRules, Gating, LAYER_EPSILON, MIXTURE, RouterKeys, experts};

pub(super) const SPEC: Spec = Spec {
    name: "nemotron_h_moe",
    reads: &[
        LAYER_EPSILON,
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
    ],
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, RULES)?);
        Ok(())
    },
    layer: |b, l| {
        one_of_both(b, l, |b| {
            Ok(Ffn::Experts(b.experts_with_selection_bias(l)?))
        })
    },
    ..nemotron_h::SPEC
};

const RULES: ExpertRules = ExpertRules {
    gating: Gating::Sigmoid,
    router_keys: RouterKeys::Scale,
    normalized: None,
    latent: true,
    ..MIXTURE
};
