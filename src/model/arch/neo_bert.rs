//! NeoBERT: as EuroBERT, with fused projections, and RoPE of neighbouring dimensions.

use super::eurobert::{ENCODER, rows_normed};
use super::glm4::fused_layer;
use super::{Classifier, Pairing, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "neo-bert",
    pairing: Pairing::Norm,
    classifier: Some(Classifier::Tanh),
    bind_embeddings_and_head: |b| rows_normed(b, "enc.output_norm"),
    layer: fused_layer,
    ..ENCODER
};
