//! Qwen 2 and 2.5: halves pair up, Q, K and V have biases, heads fill the width; the output may
//! have a bias.

use super::{Binder, Ends, Error, Pairing, Spec, dense_layer, pre_norm_block};

pub(super) const SPEC: Spec = Spec {
    name: "qwen2",
    pairing: Pairing::Neox,
    full_rotary: false,
    heads_fill_width: true,
    reads: &[],
    ends,
    layer: dense_layer,
    block: pre_norm_block,
};

fn ends(b: &mut Binder<'_>) -> Result<Ends, Error> {
    let ends = b.ends()?;
    Ok(Ends {
        output_bias: b.optional_vector("output.bias", b.h.n_vocab())?,
        ..ends
    })
}
