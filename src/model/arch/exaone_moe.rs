//! K-EXAONE: sliding windows, and RoPE only in the layers with one; norms of query and key heads;
//! experts and a shared one in all but the first layers.

use super::{Binder, DECODER, Error, Hparams, Keys, Layer, Spec};
use super::{experts_after_dense, with_head_norms};
use crate::hparams::{self, DefaultWidth, ExpertRules, MIXTURE, RouterKeys, SharedWidth};
use crate::hparams::{only_windows_turn, required_windows};

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
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    required_windows(k, h, 4)?;
    only_windows_turn(k, h);
    let rules = ExpertRules {
        router_keys: RouterKeys::RequiredGatingAndScale,
        normalized: None,
        n_ff: DefaultWidth::Required,
        shared: SharedWidth::LikeExpert,
        ..MIXTURE
    };
    hparams::experts_after_dense(k, h, rules)
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_after_dense(b, l)?;
    with_head_norms(b, l, layer)
}
