//! Hunyuan A13B: norms of query and key heads after RoPE, and experts and a shared one, each as
//! wide as `feed_forward_length`, in every layer.

use super::with_head_norms;
use super::{Binder, DECODER, Error, Ffn, Layer, QkNorm, Spec, pre_norm_layer, taps};
use crate::hparams::{DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, SharedWidth, experts};
use crate::weights::Experts;

pub(super) const SPEC: Spec = Spec {
    name: "hunyuan-moe",
    full_rotary: true,
    qk_norm: QkNorm::AfterRope,
    qk_normed: [taps::Q_CUR_NORM, taps::K_CUR_NORM],
    rotated: [Some(taps::Q_CUR), None],
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, RULES)?);
        k.warn_of_unheard("rope.scaling.alpha", &[0.0]);
        Ok(())
    },
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    n_ff: DefaultWidth::Whole,
    shared: SharedWidth::LikeDense,
    ..MIXTURE
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = pre_norm_layer(b, l, |b| {
        Ok(Ffn::Experts(Experts {
            shared_tap: taps::FFN_MLP,
            ..b.experts(l)?
        }))
    })?;
    with_head_norms(b, l, layer)
}
