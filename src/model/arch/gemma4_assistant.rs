//! Gemma 4's assistants: small models that draft tokens for a Gemma 4. Their layers have no keys
//! and values and read those that the target has cached (`src/model/assistant.rs`).

use super::{Error, Hparams, Keys, Spec, gemma4};
use crate::hparams::{MAX_WIDTH, PREDICTION_LAYERS, flagged_windows, windows_have_heads};

pub(super) const SPEC: Spec = Spec {
    name: "gemma4-assistant",
    images: super::Images::None,
    assists: Some("gemma4"),
    reads: &[
        "attention.sliding_window",
        "attention.shared_kv_layers",
        PREDICTION_LAYERS,
    ],
    read_hparams,
    bind_embeddings_and_head: |b| {
        // an approximate head, which is smaller
        b.ignore_all(|name| name.contains("masked_embd_"));
        b.bind_embeddings_and_head_with_rope_freqs()
    },
    ..gemma4::SPEC
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    flagged_windows(k, h)?;
    windows_have_heads(k, h)?;
    h.set_attention_scale(1.0);
    let n_layer = h.n_layer();
    k.count(PREDICTION_LAYERS, n_layer..=n_layer, None)?;
    h.n_embd_target = k.count("embedding_length_out", 1..=MAX_WIDTH, None)?.value;
    for layer in &mut h.layers {
        layer.kv_layer = n_layer;
    }
    Ok(())
}
