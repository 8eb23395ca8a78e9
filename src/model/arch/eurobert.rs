//! EuroBERT: Llama's block with bidirectional attention.

use super::{Binder, DECODER, EmbeddingsAndHead, Error, Spec, taps};
use crate::hparams::{CAUSAL, see_all};

pub(super) const SPEC: Spec = Spec {
    name: "eurobert",
    bind_embeddings_and_head: |b| rows_normed(b, "output_norm"),
    ..ENCODER
};

/// Settings encoders made of decoders' blocks share.
pub(super) const ENCODER: Spec = Spec {
    attn_out: Some(taps::KQV_OUT),
    causal: false,
    reads: &[CAUSAL],
    read_hparams: |k, h| see_all(k, h, None),
    ..DECODER
};

/// Binds the token embedding, and the norm of the last layer's rows, which are the result.
pub(super) fn rows_normed(b: &mut Binder<'_>, norm: &str) -> Result<EmbeddingsAndHead, Error> {
    let n_embd = b.h.n_embd();
    Ok(EmbeddingsAndHead {
        output_norm: Some(b.norm(norm, n_embd, taps::RESULT_EMBD)?),
        ..b.rows_only()?
    })
}
