//! Qwen 3 Next, the predecessor of Qwen 3.5, with experts: neighbouring value heads share a key
//! head, and old files have one matrix for all inputs of a delta net.

use super::{GateTaps, Images, KeyHeads, Recurrent, Spec, qwen35moe, taps};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3next",
    recurrent: Some(Recurrent::DeltaNet(KeyHeads::Grouped)),
    embedding: taps::EMBED_TOKENS,
    scaled_embedding: taps::EMBED_TOKENS,
    gate: GateTaps {
        gate: taps::GATE,
        ..qwen35moe::SPEC.gate
    },
    reads: &["nextn_predict_layers", "expert_count", "expert_used_count"],
    sections: None,
    images: Images::None,
    ..qwen35moe::SPEC
};
