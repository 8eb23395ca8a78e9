//! GLM 4: norms before and behind attention and the feed-forward block, whose gate is fused with
//! what it gates. A part of each head turns.

use super::{Binder, DECODER, Error, Ffn, Layer, Pairing, Spec, bare_layer, taps, with_post_norms};

pub(super) const SPEC: Spec = Spec {
    name: "glm4",
    pairing: Pairing::Norm,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))?;
    let layer = Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ffn_norm: Some(b.layer_norm(l, "ffn_norm", taps::FFN_NORM)?),
        ..bare
    };
    with_post_norms(b, l, layer, [taps::POST_ATTN_NORM, taps::POST_MLP_NORM])
}
