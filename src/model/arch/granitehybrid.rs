//! Granite 4: Granite with Mamba 2 instead of attention in most layers, and experts in some models.

use super::granite::{GRANITE, numbers, turns_if_finetuned};
use super::granitemoe::WIDE;
use super::{Recurrent, Spec};
use crate::hparams::experts_if_any;

pub(super) const SPEC: Spec = Spec {
    name: "granitehybrid",
    recurrent: Some(Recurrent::Mamba2),
    reads: &[
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
        "expert_count",
        "expert_used_count",
    ],
    numbers: |k, h| {
        // the divisor of the logits is optional in these files
        numbers(k, h, Some(1.0))?;
        turns_if_finetuned(k, h)?;
        h.experts = experts_if_any(k, h, WIDE)?;
        Ok(())
    },
    ..GRANITE
};
