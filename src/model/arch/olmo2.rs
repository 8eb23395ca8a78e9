//! OLMo 2 and 3: norms after attention and the feed-forward block instead of before; queries and
//! keys are normed as whole rows. OLMo 3 has windows, whose layers use RoPE without YaRN.

use super::{Binder, DECODER, Error, Ffn, Hparams, Keys, Layer, Spec, bare_layer};
use super::{POST_NORMS, with_post_norms, with_qk_norms};
use crate::hparams::{ScalingKind, windows_or_none, windows_turn_by};

pub(super) const SPEC: Spec = Spec {
    name: "olmo2",
    reads: &["attention.sliding_window"],
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    windows_or_none(k, h, 4)?;
    windows_turn_by(h, |rope| {
        rope.scaling.value = ScalingKind::None;
        rope.attn_factor.value = 1.0;
    });
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let (q_width, kv_width) = (b.h.layers[l].q_width(), b.h.layers[l].kv_width());
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?;
    let layer = with_qk_norms(b, l, bare, [q_width, kv_width])?;
    with_post_norms(b, l, layer, &POST_NORMS)
}
