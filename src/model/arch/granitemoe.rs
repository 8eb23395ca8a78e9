//! Granite with experts in every layer, each as wide as `feed_forward_length`.

use super::Spec;
use super::granite::{GRANITE, read_hparams};
use crate::hparams::{DefaultWidth, ExpertRules, MIXTURE, experts};

pub(super) const SPEC: Spec = Spec {
    name: "granitemoe",
    longrope: true,
    reads: &[
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
        "expert_count",
        "expert_used_count",
    ],
    read_hparams: |k, h| {
        read_hparams(k, h, None)?;
        h.experts = Some(experts(k, h, WIDE)?);
        Ok(())
    },
    ..GRANITE
};

/// Experts as wide as `feed_forward_length`.
pub(super) const WIDE: ExpertRules = ExpertRules {
    n_ff: DefaultWidth::Whole,
    ..MIXTURE
};
