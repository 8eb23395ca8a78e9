//! Qwen 2 and 2.5: Q, K and V have biases, heads fill the width; the output may have a bias.

use super::{Binder, DECODER, EmbeddingsAndHead, Error, Images, Spec};
use crate::hparams::{CAUSAL, see_all_if_asked};

pub(super) const SPEC: Spec = Spec {
    name: "qwen2",
    heads_fill_width: true,
    images: Images::Causal,
    reads: &[CAUSAL],
    read_hparams: see_all_if_asked,
    bind_embeddings_and_head,
    ..DECODER
};

fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    let weights = b.bind_embeddings_and_head()?;
    Ok(EmbeddingsAndHead {
        output_bias: b.optional_vector("output.bias", b.h.n_vocab())?,
        ..weights
    })
}
