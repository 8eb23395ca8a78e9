//! Mamba 2: no attention and no feed-forward blocks.

use super::{Block, DECODER, Ffn, Layer, Recurrent, Spec, bare_layer, taps};

pub(super) const SPEC: Spec = Spec {
    name: "mamba2",
    block: Block::Sequential { residual: None },
    recurrent: Some(Recurrent::Mamba2),
    feeds_forward: false,
    layer: |b, l| {
        Ok(Layer {
            attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
            ..bare_layer(b, l, |_| Ok(Ffn::Absent))?
        })
    },
    ..DECODER
};
