//! GLM 4.5 and later: the first layers are dense, the others have experts, chosen by sigmoid scores
//! plus a bias, and a shared expert. Only a part of each head is rotated.

use super::{Binder, DECODER, Error, Ffn, Hparams, Keys, Layer, Spec, blk, taps};
use super::{pre_norm_layer_with, with_head_norms};
use crate::hparams::{DefaultWidth, ExpertRules, Gating, MIXTURE, RouterKeys, experts_after_dense};
use crate::hparams::{SECTIONS, sections_if_any};
use crate::weights::Experts;

pub(super) const SPEC: Spec = Spec {
    name: "glm4moe",
    mtp: true,
    reads: &[
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
        SECTIONS,
    ],
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        router_keys: RouterKeys::GatingAndScale,
        normalized: None,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    experts_after_dense(k, h, rules)?;
    sections_if_any(k, h)?;
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let ffn_norm = ["post_attention_norm", taps::POST_ATTN_NORM];
    let layer = pre_norm_layer_with(b, l, ffn_norm, |b| {
        if l < b.h.leading_dense {
            return Ok(Ffn::Dense(b.gated_ffn(l)?));
        }
        Ok(Ffn::Experts(Experts {
            shared_tap: taps::FFN_SHEXP_OUT,
            ..b.experts(l)?
        }))
    })?;
    // the smaller models have no norms of query and key heads
    if b.has(&blk(l, "attn_q_norm.weight")) {
        return with_head_norms(b, l, layer);
    }
    Ok(layer)
}
