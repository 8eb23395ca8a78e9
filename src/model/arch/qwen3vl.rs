//! Text model of Qwen 3 VL: Qwen 3 with M-RoPE; the image encoder's deepstack features are added to
//! the results of the first layers.

use super::{Sections, Spec, qwen3};
use crate::hparams::DEEPSTACK;

pub(super) const SPEC: Spec = Spec {
    name: "qwen3vl",
    sections: Some(Sections::Interleaved),
    reads: &[DEEPSTACK],
    ..qwen3::SPEC
};
