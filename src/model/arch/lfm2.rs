//! LFM 2: short convolutions between gates in most layers, attention with per-head norms in the
//! others.

use super::{Binder, Block, DECODER, Error, Ffn, Images, Layer, NormWeights, Recurrent, Spec};
use super::{EmbeddingsAndHead, pre_norm_layer_with, taps, with_head_norms};
use crate::hparams::windows_or_none;

pub(super) const SPEC: Spec = Spec {
    name: "lfm2",
    images: Images::Causal,
    block: Block::Sequential { residual: None },
    recurrent: Some(Recurrent::ShortConv),
    embedding: taps::EMBED_TOKENS,
    scaled_embedding: taps::EMBED_TOKENS,
    qk_normed: [taps::Q_LAYERNORM, taps::K_LAYERNORM],
    attn_out: Some(taps::SELF_ATTN_OUT_PROJ),
    reads: &["attention.sliding_window"],
    read_hparams: |k, h| windows_or_none(k, h, 0).map(|_| ()),
    bind_embeddings_and_head,
    layer: |b, l| normed_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?))),
    ..DECODER
};

/// Binds the final norm, which these files call `token_embd_norm`.
fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    b.bind_embeddings_and_head_with_norm("token_embd_norm")
}

/// Binds a layer with the feed-forward block that `ffn` binds.
pub(super) fn normed_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let layer = pre_norm_layer_with(b, l, ["ffn_norm", taps::LFM2_FFN_OUT], ffn)?;
    let attn_norm = layer.attn_norm.map(|norm| NormWeights {
        tap: Some(taps::OPERATOR_NORM),
        ..norm
    });
    with_head_norms(b, l, Layer { attn_norm, ..layer })
}
