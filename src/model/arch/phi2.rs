//! Phi 2: parallel attention and ungated feed-forward block, one layer norm for both, biases
//! everywhere, and only a part of each head is rotated.

use super::{Binder, Block, DECODER, EmbeddingsAndHead, Error, Feature, Ffn, Layer, Norm, Spec};
use super::{bare_layer, taps, with_output_bias};

pub(super) const SPEC: Spec = Spec {
    name: "phi2",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    block: Block::Parallel,
    bind_embeddings_and_head,
    layer,
    ..DECODER
};

fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    let weights = b.bind_embeddings_and_head()?;
    Ok(EmbeddingsAndHead {
        output_bias: Some(b.vector("output.bias", b.h.n_vocab())?),
        ..weights
    })
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| {
        let ffn = b.plain_ffn(l)?;
        Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
    })?;
    let layer = Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ..bare
    };
    with_output_bias(b, l, layer)
}
