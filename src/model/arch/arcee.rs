//! Arcee: LLaMA with an ungated feed-forward block of squared ReLU.

use super::starcoder2::plain_layer;
use super::{DECODER, Feature, Pairing, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "arcee",
    pairing: Pairing::Norm,
    full_rotary: true,
    feature: Feature::SquaredRelu,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: plain_layer,
    ..DECODER
};
