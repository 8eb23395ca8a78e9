//! Baichuan 7B: LLaMA's layers. The 13B model, which llama.cpp recognizes by its 40 layers, has
//! ALiBi in place of RoPE, and is refused.

use super::{DECODER, Pairing, Spec};

/// Constant of llama.cpp's graph; no key says which kind of positions a model has.
const LAYERS: usize = 32;

pub(super) const SPEC: Spec = Spec {
    name: "baichuan",
    pairing: Pairing::Norm,
    full_rotary: true,
    heads_fill_width: true,
    attn_out: None,
    read_hparams: |k, h| match h.n_layer() {
        LAYERS => Ok(()),
        other => {
            let expected = format!("{LAYERS} layers, which have RoPE");
            Err(k.unsupported("block_count", expected, other.to_string()))
        }
    },
    ..DECODER
};
