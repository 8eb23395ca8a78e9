//! Qwen 2 and 2.5: Q, K and V have biases, heads fill the width; the output may have a bias.

use super::{Binder, DECODER, Ends, Error, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "qwen2",
    heads_fill_width: true,
    ends,
    ..DECODER
};

fn ends(b: &mut Binder<'_>) -> Result<Ends, Error> {
    let ends = b.ends()?;
    Ok(Ends {
        output_bias: b.optional_vector("output.bias", b.h.n_vocab())?,
        ..ends
    })
}
