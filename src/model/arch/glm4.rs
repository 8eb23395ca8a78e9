//! GLM 4: norms before and after attention and the feed-forward block, whose gate and up
//! projections are one fused tensor. Only a part of each head is rotated.

use super::{Binder, DECODER, Error, Ffn, Layer, Pairing, PostNorms, Spec};
use super::{pre_norm_layer, taps, with_post_norms};
use crate::hparams::{SECTIONS, sections_if_any};

pub(super) const SPEC: Spec = Spec {
    name: "glm4",
    pairing: Pairing::Norm,
    reads: &["nextn_predict_layers", SECTIONS],
    read_hparams: sections_if_any,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = fused_layer(b, l)?;
    with_post_norms(b, l, layer, &POST_NORMS)
}

/// Binds a pre-norm layer with fused gate and up projections.
pub(super) fn fused_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))
}

const POST_NORMS: PostNorms = PostNorms {
    attn: taps::POST_ATTN_NORM,
    ffn: taps::POST_MLP_NORM,
    ffn_is_numbered: true,
};
