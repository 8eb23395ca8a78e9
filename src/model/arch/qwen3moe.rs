//! Qwen 3 with experts in every layer.

use super::{DECODER, Images, Spec, qk_normed_layer};
use crate::hparams::{EXPERT_KEYS, MIXTURE, experts};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3moe",
    images: Images::Causal,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, MIXTURE)?);
        Ok(())
    },
    layer: qk_normed_layer,
    ..DECODER
};
