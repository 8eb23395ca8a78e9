//! MPT: layer norms, GELU without a gate, optional limits of queries, keys and values, and scores
//! that fall with distance (ALiBi) in place of RoPE.

use super::olmo::{CLAMP, qkv_limit};
use super::starcoder2::plain_layer;
use super::{DECODER, Feature, Norm, Spec, blk, taps, with_whole_norms};
use crate::hparams::alibi;

const MAX_BIAS: &str = "attention.max_alibi_bias";

pub(super) const SPEC: Spec = Spec {
    name: "mpt",
    rotates: false,
    heads_fill_width: true,
    norm: Norm::Layer,
    feature: Feature::Gelu,
    qk_normed: [taps::Q_CUR, taps::K_CUR],
    attn_out: None,
    reads: &[CLAMP, MAX_BIAS],
    read_hparams: |k, h| {
        qkv_limit(k, h)?;
        let max_bias = k.not_negative(MAX_BIAS, 0.0)?;
        if max_bias > 0.0 {
            alibi(h, max_bias);
        }
        Ok(())
    },
    layer: |b, l| {
        let layer = plain_layer(b, l)?;
        match b.has(&blk(l, "attn_q_norm.weight")) {
            true => with_whole_norms(b, l, layer),
            false => Ok(layer),
        }
    },
    ..DECODER
};
