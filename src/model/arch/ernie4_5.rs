//! ERNIE 4.5: LLaMA with an optional bias on attention's output projection.

use super::{Binder, DECODER, Error, Layer, Pairing, Spec, dense_layer, with_output_bias};

pub(super) const SPEC: Spec = Spec {
    name: "ernie4_5",
    pairing: Pairing::Norm,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = dense_layer(b, l)?;
    with_output_bias(b, l, layer)
}
