//! Gemma 2: norms before and after attention and the feed-forward block, windows in every other
//! layer, soft caps on scores and on logits.

use super::gemma::{GEMMA, scaled_embedding};
use super::{Binder, Error, Hparams, Keys, Layer, POST_NORMS, PostNorms, Spec};
use super::{dense_layer, with_post_norms};
use crate::hparams::{sliding_window_rope_base, windows};

pub(super) const SPEC: Spec = Spec {
    name: "gemma2",
    reads: &[
        "attention.sliding_window",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    read_hparams,
    layer: |b, l| sandwiched_layer(b, l, &POST_NORMS),
    ..GEMMA
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    scaled_embedding(k, h)?;
    windows(k, h, 2, Some(4096))?;
    sliding_window_rope_base(k, h)?;
    let cap = k.positive("attn_logit_softcapping", f32::INFINITY, Some(50.0))?;
    for layer in &mut h.layers {
        layer.scores.cap = Some(cap.value);
    }
    let cap = k.positive("final_logit_softcapping", f32::INFINITY, Some(30.0))?;
    h.factors.logit_cap = Some(cap.value);
    scale_by_width(h, 46);
    Ok(())
}

/// Scales scores by `1 / sqrt(n_embd / n_head)` in models of `n_layer` layers: the 27B models,
/// which only their number of layers identifies.
pub(super) fn scale_by_width(h: &mut Hparams, n_layer: usize) {
    if h.n_layer() == n_layer {
        let width = h.n_embd() as f32 / h.layers[0].n_head as f32;
        h.set_attention_scale(1.0 / width.sqrt());
    }
}

/// Binds a layer with norms before and after both of its blocks.
pub(super) fn sandwiched_layer(
    b: &mut Binder<'_>,
    l: usize,
    names: &PostNorms,
) -> Result<Layer, Error> {
    let layer = dense_layer(b, l)?;
    with_post_norms(b, l, layer, names)
}
