//! SmolLM 3: LLaMA without RoPE in every fourth layer.

use super::{DECODER, Images, Pairing, Spec};

/// Constant of llama.cpp's loader; no key stores it.
const PERIOD: usize = 4;

pub(super) const SPEC: Spec = Spec {
    name: "smollm3",
    images: Images::Causal,
    pairing: Pairing::Norm,
    read_hparams: |_, h| {
        for layer in h.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
            layer.rope = None;
        }
        Ok(())
    },
    ..DECODER
};
