//! LLaMA and its like: neighbour pairs turn (the converter permutes Q and K so), the whole head
//! turns, and `rope_freqs.weight` carries Llama 3's frequency scaling. Attention output and
//! feed-forward biases are optional.

use super::{Binder, Ends, Error, Layer, Pairing, Spec, blk, dense_layer, pre_norm_block};

pub(super) const SPEC: Spec = Spec {
    name: "llama",
    pairing: Pairing::Norm,
    full_rotary: true,
    heads_fill_width: false,
    reads: &[],
    ends,
    layer,
    block: pre_norm_block,
};

fn ends(b: &mut Binder<'_>) -> Result<Ends, Error> {
    let ends = b.ends()?;
    Ok(Ends {
        rope_freqs: b.rope_freqs()?,
        ..ends
    })
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let (n_embd, n_ff) = (b.h.n_embd(), b.h.layers[l].n_ff);
    let layer = dense_layer(b, l)?;
    Ok(Layer {
        bo: b.optional_vector(&blk(l, "attn_output.bias"), n_embd)?,
        gate_bias: b.optional_vector(&blk(l, "ffn_gate.bias"), n_ff)?,
        up_bias: b.optional_vector(&blk(l, "ffn_up.bias"), n_ff)?,
        down_bias: b.optional_vector(&blk(l, "ffn_down.bias"), n_embd)?,
        ..layer
    })
}
