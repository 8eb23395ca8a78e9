//! Text model of Qwen 2 VL and 2.5 VL: Qwen 2 with M-RoPE.

use super::{Sections, Spec, qwen2};

pub(super) const SPEC: Spec = Spec {
    name: "qwen2vl",
    sections: Some(Sections::Blocks),
    ..qwen2::SPEC
};
