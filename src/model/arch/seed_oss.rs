//! Seed-OSS: Q, K and V have biases; the norm before the feed-forward block is called
//! `post_attention_norm`.

use super::{Binder, DECODER, Error, Ffn, Layer, Spec, pre_norm_layer_with, taps};

pub(super) const SPEC: Spec = Spec {
    name: "seed_oss",
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let ffn_norm = ["post_attention_norm", taps::ATTN_POST_NORM];
    pre_norm_layer_with(b, l, ffn_norm, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))
}
