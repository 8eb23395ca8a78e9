//! gpt-oss: experts weighted by a softmax over the chosen ones, with biases everywhere, windows in
//! every other layer, and an attention sink for each head.

use super::{
    Attention, Binder, DECODER, Error, Feature, Ffn, Hparams, Keys, Layer, Spec, blk,
    pre_norm_layer_with, taps,
};
use crate::hparams::{
    DefaultWidth, ExpertRules, Gating, MIXTURE, experts, sliding_window_rope_base, windows,
};

pub(super) const SPEC: Spec = Spec {
    name: "gpt-oss",
    feature: Feature::SwigluOai,
    reads: &[
        "expert_count",
        "expert_used_count",
        "attention.sliding_window",
    ],
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        gating: Gating::SoftmaxOfChosen,
        normalized: Some(false),
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    windows(k, h, 2, None)?;
    sliding_window_rope_base(k, h)
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let (n_embd, n_head) = (b.h.n_embd(), b.h.layers[l].n_head);
    let ffn_norm = ["post_attention_norm", taps::ATTN_POST_NORM];
    let layer = pre_norm_layer_with(b, l, ffn_norm, |b| Ok(Ffn::Experts(b.experts(l)?)))?;
    layer.attending(|attention| {
        Ok(Attention {
            bo: Some(b.vector(&blk(l, "attn_output.bias"), n_embd)?),
            sinks: Some(b.vector(&blk(l, "attn_sinks.weight"), n_head)?),
            ..attention
        })
    })
}
