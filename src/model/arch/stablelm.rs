//! StableLM 2 and Zephyr 3B: layer norms with biases, and only a part of each head is rotated. The
//! 12B model, which has parallel blocks and norms of heads with weights of their own, is refused.

use super::{DECODER, Norm, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "stablelm",
    norm: Norm::Layer,
    attn_out: None,
    // llama.cpp looks at the tensors instead
    reads: &["use_parallel_residual"],
    ..DECODER
};
