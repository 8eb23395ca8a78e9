//! StarCoder 2: layer norms with biases, biases everywhere, GELU without a gate.

use super::{Binder, DECODER, Error, Feature, Ffn, Layer, Norm, Spec};
use super::{pre_norm_layer, with_output_bias};

pub(super) const SPEC: Spec = Spec {
    name: "starcoder2",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    layer: plain_layer,
    ..DECODER
};

/// Binds a pre-norm layer without a gate; biases are optional.
pub(super) fn plain_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = pre_norm_layer(b, l, |b| {
        let ffn = b.plain_ffn(l)?;
        Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
    })?;
    with_output_bias(b, l, layer)
}
