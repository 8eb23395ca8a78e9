//! K-EXAONE: sliding windows, and RoPE only in the layers with one; norms of query and key heads;
//! experts and a shared one in all but the first layers.

use super::{DECODER, Error, Hparams, Keys, Spec, qk_normed_experts_after_dense};
use crate::hparams::{ExpertRules, STATED, SharedWidth};
use crate::hparams::{experts_after_dense, only_windows_turn, required_windows};

pub(super) const SPEC: Spec = Spec {
    name: "exaone-moe",
    full_rotary: true,
    reads: &[
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
    ],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: qk_normed_experts_after_dense,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    required_windows(k, h, 4)?;
    only_windows_turn(k, h);
    let rules = ExpertRules {
        shared: SharedWidth::LikeExpert,
        ..STATED
    };
    experts_after_dense(k, h, rules)
}
