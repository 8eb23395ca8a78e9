//! OLMo: layer norms without weights, and limits of queries, keys and values.

use super::{DECODER, Error, Ffn, Hparams, Keys, Layer, Norm, Pairing, Spec, bare_layer, taps};

pub(super) const CLAMP: &str = "attention.clamp_kqv";

pub(super) const SPEC: Spec = Spec {
    name: "olmo",
    pairing: Pairing::Norm,
    full_rotary: true,
    heads_fill_width: true,
    norm: Norm::Layer,
    attn_out: None,
    reads: &[CLAMP],
    read_hparams: qkv_limit,
    bind_embeddings_and_head: |b| {
        let weights = b.rows_only()?;
        let norm = b.unweighted_norm(taps::RESULT_NORM);
        b.bind_head_after(weights, norm)
    },
    layer: |b, l| {
        let layer = bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?;
        Ok(Layer {
            attn_norm: Some(b.unweighted_norm(taps::ATTN_NORM)),
            ffn_norm: Some(b.unweighted_norm(taps::FFN_NORM)),
            ..layer
        })
    },
    ..DECODER
};

/// Reads the limit of queries, keys and values; 0 or no key is none.
pub(super) fn qkv_limit(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let most = k.not_negative(CLAMP, 0.0)?;
    h.qkv_limit = (most > 0.0).then_some(most);
    Ok(())
}
