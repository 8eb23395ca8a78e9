//! Nemotron H: every layer is one of Mamba 2, attention without RoPE, and an ungated feed-forward
//! block of squared ReLU.

use super::{Binder, Block, DECODER, Error, Feature, Ffn, Layer, Recurrent, Spec, taps};
use super::{bare_layer, with_output_bias};
use crate::hparams::LAYER_EPSILON;

pub(super) const SPEC: Spec = Spec {
    name: "nemotron_h",
    rotates: false,
    feature: Feature::SquaredRelu,
    block: Block::OneOfBoth,
    recurrent: Some(Recurrent::Mamba2),
    ffn_out: taps::L_OUT,
    reads: &[LAYER_EPSILON],
    layer: |b, l| {
        one_of_both(b, l, |b| {
            let ffn = b.plain_ffn(l)?;
            Ok(Ffn::Dense(b.ffn_biases(l, ffn)?))
        })
    },
    ..DECODER
};

/// Binds a layer with a token mixer, or with the feed-forward block that `ffn` binds.
pub(super) fn one_of_both<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let norm = b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?;
    let feeds = b.h.layers[l].n_ff > 0;
    let layer = bare_layer(b, l, |b| match feeds {
        true => ffn(b),
        false => Ok(Ffn::Absent),
    })?;
    let layer = with_output_bias(b, l, layer)?;
    Ok(Layer {
        attn_norm: Some(norm),
        ..layer
    })
}
