//! ModernBERT: norms before attention and the feed-forward block, without biases, a fused gated
//! feed-forward block, and symmetric windows in all but every third layer.

use super::eurobert::ENCODER;
use super::glm4::fused_layer;
use super::{
    Binder, Classifier, EmbeddingsAndHead, Error, Feature, Ffn, Hparams, Keys, Layer, Norm, Spec,
    bare_layer, taps,
};
use crate::hparams::{CAUSAL, ScalingKind, see_all, windows_after_dense, windows_turn_by};

const ACTIVATION: &str = "hidden_activation";

pub(super) const SPEC: Spec = Spec {
    name: "modern-bert",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    classifier: Some(Classifier::Gelu),
    reads: &[CAUSAL, "attention.sliding_window", ACTIVATION],
    read_hparams,
    bind_embeddings_and_head,
    layer,
    ..ENCODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    windows_after_dense(k, h, 3)?;
    let base = k.positive("rope.freq_base_swa", f32::INFINITY, Some(10000.0))?;
    windows_turn_by(h, |rope| {
        rope.freq_base = base;
        rope.scaling.value = ScalingKind::None;
    });
    h.activation = match k.text(ACTIVATION)? {
        None | Some("gelu" | "geglu") => None,
        Some("silu" | "swiglu" | "swish") => Some(Feature::Silu),
        Some(other) => {
            let expected = "gelu, or silu";
            return Err(k.unsupported(ACTIVATION, expected, other.to_owned()));
        }
    };
    see_all(k, h, None)
}

fn bind_embeddings_and_head(b: &mut Binder<'_>) -> Result<EmbeddingsAndHead, Error> {
    let n_embd = b.h.n_embd();
    Ok(EmbeddingsAndHead {
        embd_norm: Some(b.norm("token_embd_norm", n_embd, taps::INP_NORM)?),
        output_norm: Some(b.norm("output_norm", n_embd, taps::FINAL_NORM_OUT)?),
        ..b.rows_only()?
    })
}

/// Binds a layer. The first has no norm before attention: its input is normed already.
fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    if l > 0 || b.has("blk.0.attn_norm.weight") {
        return fused_layer(b, l);
    }
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))?;
    Ok(Layer {
        ffn_norm: Some(b.layer_norm(l, "ffn_norm", taps::FFN_NORM)?),
        ..bare
    })
}
