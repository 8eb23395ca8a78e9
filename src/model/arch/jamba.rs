//! Jamba: Mamba 1 in layers without KV heads, attention without RoPE in the others, and experts in
//! layers with a router, as wide as dense blocks.

use super::olmoe::RULES;
use super::{Block, DECODER, Recurrent, Spec, dense_layer, experts_where_routed, taps};
use crate::hparams::{EXPERT_KEYS, experts_if_any};

pub(super) const SPEC: Spec = Spec {
    name: "jamba",
    rotates: false,
    block: Block::Sequential { residual: None },
    recurrent: Some(Recurrent::Mamba1),
    attn_out: Some(taps::FFN_INP),
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = experts_if_any(k, h, RULES)?;
        Ok(())
    },
    layer: |b, l| match b.h.experts {
        Some(_) => experts_where_routed(b, l, |b| b.experts(l)),
        None => dense_layer(b, l),
    },
    ..DECODER
};
