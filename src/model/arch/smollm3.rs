//! SmolLM 3: LLaMA, but queries and keys of every fourth layer do not turn.

use super::{DECODER, Pairing, Spec};

/// Not a key of the file: llama.cpp's loader has the number.
const PERIOD: usize = 4;

pub(super) const SPEC: Spec = Spec {
    name: "smollm3",
    pairing: Pairing::Norm,
    numbers: |_, h| {
        for layer in h.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
            layer.rope = None;
        }
        Ok(())
    },
    ..DECODER
};
