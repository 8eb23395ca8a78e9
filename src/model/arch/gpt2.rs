//! GPT-2: learned position embeddings, layer norms with biases, biases everywhere, and GELU without
//! a gate.

use super::starcoder2::plain_layer;
use super::{DECODER, EmbeddingsAndHead, Feature, Norm, Spec, taps};

pub(super) const SPEC: Spec = Spec {
    name: "gpt2",
    rotates: false,
    norm: Norm::Layer,
    feature: Feature::Gelu,
    embeds_positions: true,
    embedding: taps::INPL,
    attn_out: None,
    bind_embeddings_and_head: |b| {
        let (n, n_embd) = (b.h.n_ctx_train(), b.h.n_embd());
        let weights = b.bind_embeddings_and_head()?;
        Ok(EmbeddingsAndHead {
            positions: Some(b.matrix("position_embd.weight", n, n_embd)?),
            ..weights
        })
    },
    layer: plain_layer,
    ..DECODER
};
