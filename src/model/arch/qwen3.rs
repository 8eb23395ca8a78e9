//! Qwen 3: query and key heads are normed before RoPE, and heads need not fill the width.

use super::{DECODER, Images, Spec, qk_normed_layer};
use crate::hparams::{CAUSAL, see_all_if_asked};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3",
    images: Images::Causal,
    reads: &[CAUSAL],
    read_hparams: see_all_if_asked,
    bind_embeddings_and_head: |b| {
        // a reranker's classifier: not part of the forward pass to logits
        b.ignore("cls.output.weight");
        b.bind_embeddings_and_head()
    },
    layer: qk_normed_layer,
    ..DECODER
};
