//! AFMoE (Arcee's Trinity): a gate of attention's result, norms around both blocks, experts and
//! shared ones in all but the first layers, and no RoPE in every fourth layer, whichever have
//! windows.

use super::{Binder, DECODER, Error, GateTaps, Hparams, Keys, Layer, NUMBERED_POST_NORMS};
use super::{
    Spec, biased_experts_after_dense, taps, with_head_norms, with_post_norms, with_result_gate,
};
use crate::hparams::{ExpertRules, Gating, RouterKeys, STATED, experts_after_dense};
use crate::hparams::{no_rope_every, sliding_window_rope_base, windows_or_none};

pub(super) const SPEC: Spec = Spec {
    name: "afmoe",
    gate: GateTaps {
        before: taps::ATTN_OUT,
        gate: taps::ATTN_GATE_PROJ,
        sigmoid: taps::ATTN_GATE_SIG,
        after: taps::ATTN_GATED,
    },
    attn_out: Some(taps::ATTN_O_PROJ),
    rotated: [Some(taps::Q_CUR_ROPE), Some(taps::K_CUR_ROPE)],
    scaled_embedding: taps::INP_EMBD_SCALED,
    reads: &[
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
    ],
    read_hparams,
    layer,
    ..DECODER
};

/// Constant of llama.cpp's loader; no key stores it.
const PERIOD: usize = 4;

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    h.factors.embedding = (h.n_embd() as f32).sqrt();
    if windows_or_none(k, h, PERIOD)? {
        sliding_window_rope_base(k, h)?;
    }
    no_rope_every(PERIOD, h);
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        router_keys: RouterKeys::GatingAndScale,
        ..STATED
    };
    experts_after_dense(k, h, rules)
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = biased_experts_after_dense(b, l)?;
    let layer = with_head_norms(b, l, layer)?;
    let layer = with_post_norms(b, l, layer, &NUMBERED_POST_NORMS)?;
    let width = b.h.layers[l].q_width();
    with_result_gate(b, l, layer, (width, true))
}
