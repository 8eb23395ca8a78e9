//! Falcon: parallel attention and ungated feed-forward block, layer norms, fused Q, K and V. The
//! 40B model has a separate norm for each of the two.

use super::{
    Binder, Block, DECODER, Error, Feature, Ffn, Layer, Norm, Spec, bare_layer, blk, taps,
};

pub(super) const SPEC: Spec = Spec {
    name: "falcon",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    block: Block::Parallel,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.plain_ffn(l)?)))?;
    let first = b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?;
    let second = b.optional_norm(&blk(l, "attn_norm_2"), b.h.n_embd(), taps::ATTN_NORM_2)?;
    Ok(Layer {
        attn_norm: Some(second.unwrap_or(first)),
        ffn_norm: second.map(|_| first),
        ..bare
    })
}
