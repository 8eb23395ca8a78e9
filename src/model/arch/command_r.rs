//! Command R: parallel attention and gated feed-forward block, one layer norm without a bias for
//! both, a factor on logits, tied output.

use super::{Binder, Block, DECODER, Error, Ffn, Hparams, Keys, Layer, Norm, Pairing, Spec};
use super::{bare_layer, taps};

pub(super) const SPEC: Spec = Spec {
    name: "command-r",
    read_hparams: logit_factor,
    ..COMMAND
};

/// Settings Command R and its successor share.
pub(super) const COMMAND: Spec = Spec {
    pairing: Pairing::Norm,
    norm: Norm::Layer,
    block: Block::Parallel,
    reads: &["logit_scale"],
    layer,
    ..DECODER
};

/// Reads the factor on logits; a missing key or 0 leaves them as they are.
pub(super) fn logit_factor(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    h.factors.logits = k.factor("logit_scale", Some(1.0))?;
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let bare = bare_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))?;
    Ok(Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ..bare
    })
}
