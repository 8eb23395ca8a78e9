//! Granite with experts in every layer, as wide as the file's feed-forward blocks.

use super::Spec;
use super::granite::{GRANITE, numbers};
use crate::hparams::{DefaultWidth, ExpertRules, MIXTURE, experts};

pub(super) const SPEC: Spec = Spec {
    name: "granitemoe",
    reads: &[
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
        "expert_count",
        "expert_used_count",
    ],
    numbers: |k, h| {
        numbers(k, h, None)?;
        h.experts = Some(experts(k, h, WIDE)?);
        Ok(())
    },
    ..GRANITE
};

/// Experts as wide as the file's feed-forward blocks.
pub(super) const WIDE: ExpertRules = ExpertRules {
    n_ff: DefaultWidth::Whole,
    ..MIXTURE
};
