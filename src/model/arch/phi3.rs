//! Phi 3, 3.5 and 4: fused Q, K and V, a gate fused with what it gates, and angles that may depend
//! on the context's length. The window of the first models is not used, as in llama.cpp.

use super::{Binder, Block, DECODER, Error, Ffn, Layer, Spec, bare_layer, taps};

pub(super) const SPEC: Spec = Spec {
    name: "phi3",
    longrope: true,
    block: Block::Sequential { residual: None },
    ends: |b| b.ends_with_rope_factors(),
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))?;
    Ok(Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ffn_norm: Some(b.layer_norm(l, "ffn_norm", taps::FFN_NORM)?),
        ..bare
    })
}
