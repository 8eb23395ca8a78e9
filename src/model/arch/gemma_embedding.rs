//! EmbeddingGemma: Gemma 3 with bidirectional attention; windows reach as far ahead as back. Two
//! matrix products may follow.

use super::gemma::{GEMMA, scaled_embedding};
use super::gemma2::sandwiched_layer;
use super::{
    Binder, EmbeddingsAndHead, Error, Hparams, Keys, POST_NORMS, Spec, taps, with_head_norms,
};
use crate::hparams::{CAUSAL, ScalingKind, dense_width, see_all, windows, windows_turn_by};

pub(super) const SPEC: Spec = Spec {
    name: "gemma-embedding",
    attn_out: None,
    causal: false,
    reads: &[CAUSAL, "attention.sliding_window"],
    read_hparams,
    bind_embeddings_and_head,
    layer: |b, l| {
        let layer = sandwiched_layer(b, l, &POST_NORMS)?;
        with_head_norms(b, l, layer)
    },
    ..GEMMA
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    scaled_embedding(k, h)?;
    windows(k, h, 6, None)?;
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(10000.0))?;
    windows_turn_by(h, |rope| {
        rope.freq_base = base;
        rope.scaling.value = ScalingKind::None;
    });
    h.dense = dense_width(k, h)?;
    see_all(k, h, Some(false))
}

fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    let n_embd = b.h.n_embd();
    let dense = match b.h.dense {
        Some(width) => vec![
            b.matrix("dense_2.weight", width, n_embd)?,
            b.matrix("dense_3.weight", n_embd, width)?,
        ],
        None => Vec::new(),
    };
    // the output matrix for logits, which this model does not use
    b.ignore("output.weight");
    Ok(EmbeddingsAndHead {
        output_norm: Some(b.norm("output_norm", n_embd, taps::RESULT_NORM)?),
        dense,
        ..b.rows_only()?
    })
}
