//! BitNet b1.58: norms before the last projections of attention and of the feed-forward block, a
//! factor beside each matrix, and an output matrix that is always the token embedding.

use super::{Attention, DECODER, EmbeddingsAndHead, Ffn, Spec, blk, pre_norm_layer, taps};
use crate::weights::FeedForward;

pub(super) const SPEC: Spec = Spec {
    name: "bitnet",
    heads_fill_width: true,
    ffn_out: taps::FFN_DOWN,
    bind_embeddings_and_head: |b| {
        let weights = b.rows_only()?;
        Ok(EmbeddingsAndHead {
            output_norm: Some(b.norm("output_norm", b.h.n_embd(), taps::RESULT_NORM)?),
            output: Some(weights.token_embd),
            ..weights
        })
    },
    layer: |b, l| {
        let (n_embd, n_ff) = (b.h.n_embd(), b.h.layers[l].n_ff);
        let layer = pre_norm_layer(b, l, |b| {
            let norm = b.norm(&blk(l, "ffn_sub_norm"), n_ff, taps::FFN_SUB_NORM)?;
            Ok(Ffn::Dense(FeedForward {
                sub_norm: Some(norm),
                ..b.gated_ffn(l)?
            }))
        })?;
        layer.attending(|attention| {
            let norm = b.norm(&blk(l, "attn_sub_norm"), n_embd, taps::ATTN_SUB_NORM)?;
            Ok(Attention {
                sub_norm: Some(norm),
                ..attention
            })
        })
    },
    ..DECODER
};
