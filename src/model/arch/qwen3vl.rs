//! Qwen 3 VL's text model: Qwen 3 whose heads turn by the axes of pictures, and whose first layers
//! gain parts of what a picture's tower gives.

use super::{Sections, Spec, qwen3};
use crate::hparams::DEEPSTACK;

pub(super) const SPEC: Spec = Spec {
    name: "qwen3vl",
    sections: Some(Sections::Interleaved),
    reads: &[DEEPSTACK],
    ..qwen3::SPEC
};
