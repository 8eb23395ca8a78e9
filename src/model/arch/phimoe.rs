//! Phi 3.5 MoE: RMS norms with biases, biases of attention and of the logits, experts as wide as
//! `feed_forward_length`, and LongRoPE.

use super::granitemoe::WIDE;
use super::{Block, DECODER, EmbeddingsAndHead, Norm, Spec, expert_layer, with_output_bias};
use crate::hparams::{EXPERT_KEYS, experts};

pub(super) const SPEC: Spec = Spec {
    name: "phimoe",
    longrope: true,
    heads_fill_width: true,
    norm: Norm::BiasedRms,
    block: Block::Sequential { residual: None },
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, WIDE)?);
        Ok(())
    },
    bind_embeddings_and_head: |b| {
        let weights = b.bind_embeddings_and_head_with_rope_factors()?;
        Ok(EmbeddingsAndHead {
            output_bias: Some(b.vector("output.bias", b.h.n_vocab())?),
            ..weights
        })
    },
    layer: |b, l| {
        let layer = expert_layer(b, l)?;
        with_output_bias(b, l, layer)
    },
    ..DECODER
};
