//! ERNIE 4.5: LLaMA with an optional bias behind attention.

use super::{Binder, DECODER, Error, Layer, Pairing, Spec, blk, dense_layer};

pub(super) const SPEC: Spec = Spec {
    name: "ernie4_5",
    pairing: Pairing::Norm,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = dense_layer(b, l)?;
    Ok(Layer {
        bo: b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?,
        ..layer
    })
}
