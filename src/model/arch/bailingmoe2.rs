//! Ling and Ring 2: Q, K and V in one tensor, norms of query and key heads, and only half of each
//! head is rotated. The first layers are dense, the others have experts and a shared one.

use super::{Block, DECODER, Spec, qk_normed_experts_after_dense, taps};
use crate::hparams::{ExpertRules, STATED, SharedWidth, experts_after_dense};

pub(super) const SPEC: Spec = Spec {
    name: "bailingmoe2",
    block: Block::Sequential {
        residual: Some(taps::SA_OUT),
    },
    attn_out: None,
    reads: &["expert_count", "expert_used_count", "nextn_predict_layers"],
    read_hparams: |k, h| experts_after_dense(k, h, RULES),
    layer: qk_normed_experts_after_dense,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    shared: SharedWidth::Multiplied,
    ..STATED
};
