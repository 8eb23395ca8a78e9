//! InternLM 2 and 3: LLaMA whose heads fill the embedding width.

use super::{DECODER, Pairing, Spec, biased_layer};

pub(super) const SPEC: Spec = Spec {
    name: "internlm2",
    pairing: Pairing::Norm,
    full_rotary: true,
    heads_fill_width: true,
    attn_out: None,
    layer: biased_layer,
    ..DECODER
};
