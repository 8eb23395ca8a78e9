//! Granite with windows in the layers that flags mark, an attention sink for each head, RoPE in the
//! layers that other flags mark, and optionally experts, whose shared one has gate and up
//! projections in one tensor.

use super::granite::{GRANITE, read_hparams};
use super::granitemoe::WIDE;
use super::{Attention, Spec, biased_layer, blk};
use crate::hparams::{ROPE_PATTERN, experts_if_any, flagged_windows, rope_where_flagged};

pub(super) const SPEC: Spec = Spec {
    name: "granite_swa",
    full_rotary: true,
    longrope: true,
    fused_shared: true,
    reads: &[
        "attention.scale",
        "attention.sliding_window",
        ROPE_PATTERN,
        "embedding_scale",
        "expert_count",
        "expert_used_count",
        "logit_scale",
        "residual_scale",
    ],
    read_hparams: |k, h| {
        read_hparams(k, h, None)?;
        flagged_windows(k, h)?;
        rope_where_flagged(k, h)?;
        h.experts = experts_if_any(k, h, WIDE)?;
        Ok(())
    },
    layer: |b, l| {
        let n_head = b.h.layers[l].n_head;
        biased_layer(b, l)?.attending(|attention| {
            Ok(Attention {
                sinks: Some(b.vector(&blk(l, "attn_sinks.weight"), n_head)?),
                ..attention
            })
        })
    },
    ..GRANITE
};
