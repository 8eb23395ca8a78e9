//! Phi 3, 3.5 and 4: fused Q, K and V, fused gate and up projections, and optionally LongRoPE. The
//! sliding window of the first models is ignored, as in llama.cpp.

use super::glm4::fused_layer;
use super::{Block, DECODER, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "phi3",
    longrope: true,
    block: Block::Sequential { residual: None },
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_factors(),
    layer: fused_layer,
    ..DECODER
};
