//! EXAONE 3 and 3.5: LLaMA, but RoPE pairs a head's halves.

use super::{DECODER, Spec, dense_layer};

pub(super) const SPEC: Spec = Spec {
    name: "exaone",
    full_rotary: true,
    attn_out: None,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: dense_layer,
    ..DECODER
};
