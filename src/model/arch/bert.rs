//! BERT: learned position embeddings, post-norm (each residual sum is normed), biases everywhere,
//! GELU without a gate. Attention is bidirectional.

use super::{
    Binder, Block, Classifier, DECODER, EmbeddingsAndHead, Error, Feature, Ffn, Hparams, Keys,
    Layer, Norm, NormWeights, Spec, bare_layer, taps, with_output_bias,
};
use crate::hparams::{CAUSAL, see_all, token_types};

pub(super) const SPEC: Spec = Spec {
    name: "bert",
    feature: Feature::Gelu,
    embeds_positions: true,
    ..BERT
};

/// Settings all BERT variants share.
pub(super) const BERT: Spec = Spec {
    norm: Norm::Layer,
    block: Block::NormedSums,
    attn_out: Some(taps::KQV_OUT),
    causal: false,
    classifier: Some(Classifier::Tanh),
    reads: &[CAUSAL],
    read_hparams,
    bind_embeddings_and_head,
    layer: |b, l| {
        normed_sums_layer(b, l, |b| {
            let ffn = b.plain_ffn(l)?;
            Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
        })
    },
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    h.n_token_types = token_types(k)?;
    see_all(k, h, None)
}

/// Binds the embeddings of tokens, of the first token type (used for every token) and, where there
/// is no RoPE, of positions; and the norm of their sum.
fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    let n_embd = b.h.n_embd();
    let positions = match b.h.arch.spec().embeds_positions {
        true => Some(b.matrix("position_embd.weight", b.h.n_ctx_train(), n_embd)?),
        false => None,
    };
    Ok(EmbeddingsAndHead {
        positions,
        token_type: b.first_token_type()?,
        embd_norm: Some(b.norm("token_embd_norm", n_embd, taps::INP_NORM)?),
        ..b.rows_only()?
    })
}

/// Binds a post-norm layer. The last layer's result is the model's output; results of the others
/// have no name.
pub(super) fn normed_sums_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, ffn)?;
    let layer = with_output_bias(b, l, bare)?;
    Ok(Layer {
        attn_post_norm: Some(b.layer_norm(l, "attn_output_norm", taps::FFN_INP)?),
        ffn_post_norm: Some(NormWeights {
            tap: (l + 1 == b.h.n_layer()).then_some(taps::RESULT_EMBD),
            numbered: false,
            ..b.layer_norm(l, "layer_output_norm", taps::RESULT_EMBD)?
        }),
        ..layer
    })
}
