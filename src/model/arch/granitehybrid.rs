//! Granite 4: Granite with Mamba 2 instead of attention in most layers, and experts in some models.

use super::granite::{GRANITE, read_hparams, rotates_if_finetuned};
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
    read_hparams: |k, h| {
        // the divisor of the logits is optional in these files
        read_hparams(k, h, Some(1.0))?;
        rotates_if_finetuned(k, h)?;
        h.experts = experts_if_any(k, h, WIDE)?;
        Ok(())
    },
    ..GRANITE
};
