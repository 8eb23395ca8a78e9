//! Step 3.5: windowed layers have more heads, a gate of each head's result, limits of gated
//! products, and experts with a shared one in layers with a router. Layers without windows rotate
//! only half of the dimensions.

use super::{Binder, DECODER, Error, GateTaps, Hparams, Keys, Layer, Spec, blk, taps};
use super::{experts_where_routed, with_head_norms, with_result_gate};
use crate::hparams::{Clamps, ExpertRules, Gating, RouterKeys, STATED};
use crate::hparams::{experts, flagged_windows, local_windows};
use crate::weights::Experts;

const CLAMPS: [&str; 2] = ["swiglu_clamp_exp", "swiglu_clamp_shexp"];

pub(super) const SPEC: Spec = Spec {
    name: "step35",
    gate: GateTaps {
        before: taps::ATTN_OUT,
        gate: taps::ATTN_GATE,
        sigmoid: taps::ATTN_GATE_SIGMOID,
        after: taps::ATTN_GATED_3D,
    },
    attn_out: Some(taps::ATTN_PROJ),
    rotated: [Some(taps::Q_CUR_POS), Some(taps::K_CUR_POS)],
    reads: &[
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
        CLAMPS[0],
        CLAMPS[1],
    ],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    flagged_windows(k, h)?;
    local_windows(k, h)?;
    let n_rot = &mut h.ropes[0].n_rot.value;
    if !n_rot.is_multiple_of(4) {
        let key = k.full("rope.dimension_count");
        return Err(k.bad(key, "a multiple of 4", n_rot.to_string()));
    }
    *n_rot /= 2;
    let limits = [
        k.limits(CLAMPS[0], h.n_layer())?,
        k.limits(CLAMPS[1], h.n_layer())?,
    ];
    for (l, layer) in h.layers.iter_mut().enumerate() {
        layer.clamps = Clamps {
            experts: limits[0][l],
            dense: limits[1][l],
        };
    }
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        router_keys: RouterKeys::GatingAndScale,
        ..STATED
    };
    h.experts = Some(experts(k, h, rules)?);
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_where_routed(b, l, |b| {
        Ok(Experts {
            shared_tap: taps::FFN_SHARED_OUT,
            ..b.experts(l)?
        })
    })?;
    let n_head = b.h.layers[l].n_head;
    let layer = with_result_gate(b, l, layer, (n_head, false))?;
    match b.has(&blk(l, "attn_q_norm.weight")) {
        true => with_head_norms(b, l, layer),
        false => Ok(layer),
    }
}
