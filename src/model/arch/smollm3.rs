//! SmolLM 3: LLaMA without RoPE in every fourth layer.

use super::{DECODER, Images, Pairing, Spec};
use crate::hparams::no_rope_every;

/// Constant of llama.cpp's loader; no key stores it.
const PERIOD: usize = 4;

pub(super) const SPEC: Spec = Spec {
    name: "smollm3",
    images: Images::Causal,
    pairing: Pairing::Norm,
    read_hparams: |_, h| {
        no_rope_every(PERIOD, h);
        Ok(())
    },
    ..DECODER
};
