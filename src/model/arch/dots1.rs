//! dots.llm1: Qwen 3's attention, then experts and shared ones in all but the first layers.

use super::{DECODER, Spec, qk_normed_experts_after_dense};
use crate::hparams::{EXPERT_KEYS, STATED, experts_after_dense};

pub(super) const SPEC: Spec = Spec {
    name: "dots1",
    full_rotary: true,
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| experts_after_dense(k, h, STATED),
    layer: qk_normed_experts_after_dense,
    ..DECODER
};
