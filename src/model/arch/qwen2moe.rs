//! Qwen 2 with experts in every layer, whose weights are not normalized to sum 1, and a gated
//! shared expert.

use super::{Binder, DECODER, Error, Ffn, Layer, Spec, blk, pre_norm_layer};
use crate::hparams::{EXPERT_KEYS, ExpertRules, MIXTURE, SharedWidth, experts};
use crate::weights::Experts;

pub(super) const SPEC: Spec = Spec {
    name: "qwen2moe",
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        let rules = ExpertRules {
            normalized: Some(false),
            shared: SharedWidth::LikeDense,
            ..MIXTURE
        };
        h.experts = Some(experts(k, h, rules)?);
        Ok(())
    },
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| gated_experts(b, l))
}

/// Binds the experts and a gated shared expert.
pub(super) fn gated_experts(b: &mut Binder<'_>, l: usize) -> Result<Ffn, Error> {
    let experts = b.experts(l)?;
    let gate = b.matrix(&blk(l, "ffn_gate_inp_shexp.weight"), 1, b.h.n_embd())?;
    Ok(Ffn::Experts(Experts {
        shared_gate: Some(gate),
        ..experts
    }))
}
