//! BLOOM: a norm of token embeddings, layer norms with biases, biases everywhere, GELU without a
//! gate, and scores that fall with distance (ALiBi) in place of RoPE.

use super::starcoder2::plain_layer;
use super::{DECODER, EmbeddingsAndHead, Feature, Norm, Spec, taps};
use crate::hparams::alibi;

/// Constant of llama.cpp's graph.
const MAX_BIAS: f32 = 8.0;

pub(super) const SPEC: Spec = Spec {
    name: "bloom",
    rotates: false,
    heads_fill_width: true,
    norm: Norm::Layer,
    feature: Feature::Gelu,
    attn_out: None,
    read_hparams: |_, h| {
        alibi(h, MAX_BIAS);
        Ok(())
    },
    bind_embeddings_and_head: |b| {
        let weights = b.bind_embeddings_and_head()?;
        Ok(EmbeddingsAndHead {
            embd_norm: Some(b.norm("token_embd_norm", b.h.n_embd(), taps::INP_NORM)?),
            ..weights
        })
    },
    layer: plain_layer,
    ..DECODER
};
