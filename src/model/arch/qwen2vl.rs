//! Qwen 2 VL's and 2.5 VL's text model: Qwen 2 whose heads turn by the axes of pictures.

use super::{Sections, Spec, qwen2};

pub(super) const SPEC: Spec = Spec {
    name: "qwen2vl",
    sections: Some(Sections::Blocks),
    ..qwen2::SPEC
};
