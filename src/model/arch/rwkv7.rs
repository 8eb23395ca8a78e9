//! RWKV 7: no attention; layers of time mixing and channel mixing, which both read the row before.

use super::{Block, DECODER, EmbeddingsAndHead, Feature, Ffn, Norm, NormWeights, Recurrent, Spec};
use super::{pre_norm_layer_with, taps};

pub(super) const SPEC: Spec = Spec {
    name: "rwkv7",
    rotates: false,
    norm: Norm::Layer,
    feature: Feature::SquaredRelu,
    block: Block::Mixes,
    recurrent: Some(Recurrent::Rwkv7),
    bind_embeddings_and_head: |b| {
        let weights = b.bind_embeddings_and_head()?;
        let norm = b.norm("token_embd_norm", b.h.n_embd(), taps::INP_NORM)?;
        Ok(EmbeddingsAndHead {
            embd_norm: Some(NormWeights { tap: None, ..norm }),
            ..weights
        })
    },
    layer: |b, l| {
        let norm = ["attn_norm_2", taps::FFN_NORM];
        pre_norm_layer_with(b, l, norm, |b| Ok(Ffn::ChannelMix(b.channel_mix(l)?)))
    },
    ..DECODER
};
