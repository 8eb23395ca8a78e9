//! Jina's third BERT: RoPE instead of position embeddings.

use super::Spec;
use super::bert;

pub(super) const SPEC: Spec = Spec {
    name: "jina-bert-v3",
    embeds_positions: false,
    ..bert::SPEC
};
