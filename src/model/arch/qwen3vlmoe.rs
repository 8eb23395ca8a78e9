//! Text model of Qwen 3 VL with experts in every layer.

use super::{Sections, Spec, qwen3moe};
use crate::hparams::{DEEPSTACK, EXPERT_KEYS};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3vlmoe",
    sections: Some(Sections::Interleaved),
    reads: &[DEEPSTACK, EXPERT_KEYS[0], EXPERT_KEYS[1]],
    ..qwen3moe::SPEC
};
