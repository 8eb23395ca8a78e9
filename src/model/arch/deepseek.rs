//! DeepSeek's first mixture: LLaMA with experts and shared ones in all but the first layers.

use super::{DECODER, Pairing, Spec, experts_after_dense};
use crate::hparams::{self, DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, RouterKeys};

pub(super) const SPEC: Spec = Spec {
    name: "deepseek",
    pairing: Pairing::Norm,
    full_rotary: true,
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| hparams::experts_after_dense(k, h, RULES),
    layer: experts_after_dense,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    router_keys: RouterKeys::Scale,
    normalized: Some(false),
    n_ff: DefaultWidth::Required,
    ..MIXTURE
};
