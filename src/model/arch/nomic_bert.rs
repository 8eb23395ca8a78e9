//! Nomic's BERT: RoPE instead of position embeddings, and a gated feed-forward block.

use super::bert::{BERT, normed_sums_layer};
use super::{Ffn, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "nomic-bert",
    layer: |b, l| {
        normed_sums_layer(b, l, |b| {
            let ffn = b.gated_ffn(l)?;
            Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
        })
    },
    ..BERT
};
