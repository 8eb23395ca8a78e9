//! StarCoder 2: layer norms with biases, biases everywhere, GELU without a gate.

use super::{Binder, DECODER, Error, Feature, Ffn, Layer, Norm, Spec, bare_layer, blk, taps};

pub(super) const SPEC: Spec = Spec {
    name: "starcoder2",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    layer: plain_layer,
    ..DECODER
};

/// A pre-norm layer without a gate; biases are optional.
pub(super) fn plain_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| {
        let ffn = b.plain_ffn(l)?;
        Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
    })?;
    Ok(Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        bo: b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?,
        ffn_norm: Some(b.layer_norm(l, "ffn_norm", taps::FFN_NORM)?),
        ..bare
    })
}
