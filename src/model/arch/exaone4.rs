//! EXAONE 4: OLMo 2's norms, but queries and keys are normed per head. The model of 64 layers has
//! sliding windows, and no RoPE in the layers without one.

use super::{Binder, DECODER, Error, Ffn, Hparams, Keys, Layer, Spec, bare_layer};
use super::{POST_NORMS, with_head_norms, with_post_norms};
use crate::hparams::{only_windows_turn, windows};

pub(super) const SPEC: Spec = Spec {
    name: "exaone4",
    reads: &["attention.sliding_window", "nextn_predict_layers"],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    // llama.cpp decides by the number of layers: smaller models have the key and no windows
    if h.n_layer() != 64 || !windows(k, h, 4, Some(4096))? {
        return Ok(());
    }
    only_windows_turn(k, h);
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?;
    let layer = with_head_norms(b, l, layer)?;
    with_post_norms(b, l, layer, &POST_NORMS)
}
