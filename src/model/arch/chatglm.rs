//! ChatGLM 3 and GLM 4 9B: RoPE rotates neighbouring pairs of half of each head, and gate and up
//! projections are one tensor.

use super::{Binder, DECODER, Error, Ffn, Layer, Pairing, Spec, pre_norm_layer};

pub(super) const SPEC: Spec = Spec {
    name: "chatglm",
    pairing: Pairing::Norm,
    attn_out: None,
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))
}
