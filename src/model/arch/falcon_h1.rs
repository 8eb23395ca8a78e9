//! Falcon H1: Mamba 2 parallel to attention in every layer, both reading one norm.

use super::{Binder, DECODER, Error, Ffn, Layer, NormWeights, Recurrent, Spec};
use super::{bare_layer, blk, taps};

pub(super) const SPEC: Spec = Spec {
    name: "falcon-h1",
    recurrent: Some(Recurrent::Mamba2Beside),
    rotated: [Some(taps::Q_CUR_POST_ROPE), Some(taps::K_CUR_POST_ROPE)],
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    // this tensor's name has no `.weight` suffix
    let ffn_norm = b.vector(&blk(l, "ffn_norm"), b.h.n_embd())?;
    Ok(Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ffn_norm: Some(NormWeights::plain(ffn_norm, taps::FFN_NORM)),
        ..bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?
    })
}
