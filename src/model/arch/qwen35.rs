//! Qwen 3.5: gated delta nets, and gated attention in every fourth layer. Only a part of each head
//! is rotated, by sections that matter for images only.

use super::{Binder, Block, DECODER, Error, Ffn, Layer, Recurrent, Spec};
use super::{Images, KeyHeads, Sections, pre_norm_layer_with, taps, with_head_norms};

pub(super) const SPEC: Spec = Spec {
    name: "qwen35",
    block: Block::Sequential {
        residual: Some(taps::ATTN_RESIDUAL),
    },
    recurrent: Some(Recurrent::DeltaNet(KeyHeads::Tiled)),
    gated_attention: true,
    mtp: true,
    embedding: taps::INPUT_EMBED,
    scaled_embedding: taps::INPUT_EMBED,
    attn_out: Some(taps::ATTN_OUTPUT),
    sections: Some(Sections::Interleaved),
    images: Images::Causal,
    reads: &["nextn_predict_layers"],
    layer: |b, l| normed_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?))),
    ..DECODER
};

/// Binds a layer with the feed-forward block that `ffn` binds; the norm before it is named after
/// attention, which it follows.
pub(super) fn normed_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let ffn_norm = ["post_attention_norm", taps::ATTN_POST_NORM];
    let layer = pre_norm_layer_with(b, l, ffn_norm, ffn)?;
    with_head_norms(b, l, layer)
}
