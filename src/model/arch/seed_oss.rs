//! Seed-OSS: Q, K and V have biases; the norm before the feed-forward block is called
//! `post_attention_norm`.

use super::{Binder, DECODER, Error, Ffn, Layer, Spec, bare_layer, taps};

pub(super) const SPEC: Spec = Spec {
    name: "seed_oss",
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?;
    Ok(Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ffn_norm: Some(b.layer_norm(l, "post_attention_norm", taps::ATTN_POST_NORM)?),
        ..bare
    })
}
