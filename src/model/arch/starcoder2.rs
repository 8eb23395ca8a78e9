//! StarCoder 2: layer norms with biases, biases everywhere, GELU without a gate.

use super::{Binder, DECODER, Error, Feature, Ffn, Layer, Norm, Spec, blk, pre_norm_layer};

pub(super) const SPEC: Spec = Spec {
    name: "starcoder2",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    layer: plain_layer,
    ..DECODER
};

/// A pre-norm layer without a gate; biases are optional.
pub(super) fn plain_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = pre_norm_layer(b, l, |b| {
        let ffn = b.plain_ffn(l)?;
        Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
    })?;
    Ok(Layer {
        bo: b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?,
        ..layer
    })
}
