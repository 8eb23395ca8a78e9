//! PLaMo 2: a Mamba of its own in layers without KV heads, attention in the others, whose heads are
//! normed by weights of their own, norms before and after both blocks, and a fused feed-forward
//! block.

use super::{Attention, Binder, Block, DECODER, Error, Ffn, Layer, NormWeights, Recurrent, Spec};
use super::{blk, pre_norm_layer_with, taps};

pub(super) const SPEC: Spec = Spec {
    name: "plamo2",
    block: Block::Sequential {
        residual: Some(taps::ATTN_RESIDUAL),
    },
    recurrent: Some(Recurrent::Plamo2),
    embedding: taps::EMBEDDING_OUTPUT,
    scaled_embedding: taps::EMBEDDING_OUTPUT,
    rotated: [None; 2],
    layer,
    ..DECODER
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let n_embd = b.h.n_embd();
    let norm = ["ffn_norm", taps::FFN_PRE_NORM];
    let layer = pre_norm_layer_with(b, l, norm, |b| Ok(Ffn::Dense(b.fused_ffn(l)?)))?;
    let sizes = b.h.layers[l];
    let layer = layer.attending(|attention| {
        let mut norm = |name: &str, heads: usize, tap: &'static str| {
            let shape = [sizes.head_dim, heads];
            b.norm_of_heads(&blk(l, &format!("{name}.weight")), shape, tap)
        };
        Ok(Attention {
            q_norm: Some(norm("attn_q_norm", sizes.n_head, taps::Q_CUR_NORMED)?),
            k_norm: Some(norm("attn_k_norm", sizes.n_head_kv, taps::K_CUR_NORMED)?),
            ..attention
        })
    })?;
    let mut post = |name: &str, tap: &'static str| {
        let weight = b.vector(&blk(l, name), n_embd)?;
        Ok::<_, Error>(NormWeights::plain(weight, tap))
    };
    Ok(Layer {
        attn_norm: layer
            .attn_norm
            .map(|norm| NormWeights { tap: None, ..norm }),
        attn_post_norm: Some(post("post_attention_norm", taps::ATTN_POST_NORM)?),
        ffn_post_norm: Some(post("post_ffw_norm", taps::FFN_POST_NORM)?),
        ..layer
    })
}
