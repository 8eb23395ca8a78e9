//! Qwen 3: halves pair up, every query and key head is normalised before it turns, and heads need
//! not fill the width.

use super::{Binder, Ends, Error, Layer, Pairing, Spec, blk, dense_layer, pre_norm_block};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3",
    pairing: Pairing::Neox,
    full_rotary: false,
    heads_fill_width: false,
    reads: &[],
    ends,
    layer,
    block: pre_norm_block,
};

fn ends(b: &mut Binder<'_>) -> Result<Ends, Error> {
    // a reranker's classifier: not part of the forward pass to logits
    b.ignore("cls.output.weight");
    b.ends()
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let head_dim = b.h.layers[l].head_dim;
    let layer = dense_layer(b, l)?;
    Ok(Layer {
        q_norm: Some(b.vector(&blk(l, "attn_q_norm.weight"), head_dim)?),
        k_norm: Some(b.vector(&blk(l, "attn_k_norm.weight"), head_dim)?),
        ..layer
    })
}
