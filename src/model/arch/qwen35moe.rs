//! Qwen 3.5 with experts in every layer, and a gated shared expert.

use super::qwen2moe::gated_experts;
use super::qwen35::{self, normed_layer};
use super::{Error, Hparams, Keys, Spec, taps};
use crate::hparams::{ExpertRules, MIXTURE, SharedWidth, experts};

pub(super) const SPEC: Spec = Spec {
    name: "qwen35moe",
    reads: &["nextn_predict_layers", "expert_count", "expert_used_count"],
    shared_gate: [
        taps::SHARED_EXPERT_GATE,
        taps::SHARED_EXPERT_GATE_SIGMOID,
        taps::FFN_SHEXP_GATED,
    ],
    read_hparams,
    layer: |b, l| normed_layer(b, l, |b| gated_experts(b, l)),
    ..qwen35::SPEC
};

pub(super) fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        shared: SharedWidth::LikeDense,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    Ok(())
}
