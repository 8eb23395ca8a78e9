//! Gemma 3: Gemma 2 without a cap on scores; queries and keys are normed per head, and layers with
//! windows have a RoPE base of their own.

use super::gemma::{GEMMA, scaled_embedding};
use super::gemma2::{sandwiched_layer, scale_by_width};
use super::{
    Binder, Error, Hparams, Images, Keys, Layer, NUMBERED_POST_NORMS, Spec, with_head_norms,
};
use crate::hparams::{ScalingKind, windows_or_none, windows_turn_by};

pub(super) const SPEC: Spec = Spec {
    name: "gemma3",
    images: Images::Bidirectional,
    reads: &["attention.sliding_window", "final_logit_softcapping"],
    read_hparams,
    layer,
    ..GEMMA
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    scaled_embedding(k, h)?;
    windows_or_none(k, h, 6)?;
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(10000.0))?;
    windows_turn_by(h, |rope| {
        rope.freq_base = base;
        rope.scaling.value = ScalingKind::None;
    });
    let cap = k.not_negative("final_logit_softcapping", 0.0)?;
    h.factors.logit_cap = (cap > 0.0).then_some(cap);
    scale_by_width(h, 62);
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = sandwiched_layer(b, l, &NUMBERED_POST_NORMS)?;
    with_head_norms(b, l, layer)
}
