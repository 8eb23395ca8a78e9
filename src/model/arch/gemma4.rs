//! Gemma 4: two kinds of layers that differ in window, heads and RoPE. The last layers may reuse
//! the KV cache of earlier ones, every layer may get a per-layer embedding of the token, and
//! experts may run beside the dense feed-forward block.

use super::gemma::{GEMMA, scaled_embedding};
use super::{Attention, Binder, Block, Error, Ffn, Hparams, Images, Keys, Layer, NormWeights};
use super::{NUMBERED_POST_NORMS, Spec, blk, taps, with_post_norms};
use crate::hparams::{DefaultWidth, ExpertRules, MAX_WIDTH, MIXTURE, experts_if_any};
use crate::hparams::{flagged_windows, share_caches, windows_have_heads};

pub(super) const SPEC: Spec = Spec {
    name: "gemma4",
    images: Images::BidirectionalInWindows,
    block: Block::Sequential {
        residual: Some(taps::ATTN_OUT),
    },
    attn_out: None,
    rotated: [Some(taps::Q_CUR_POS), Some(taps::K_CUR_POS)],
    reads: &[
        "attention.sliding_window",
        "attention.shared_kv_layers",
        "final_logit_softcapping",
        "expert_count",
        "expert_used_count",
    ],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_per_layer_inputs(),
    layer,
    ..GEMMA
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    scaled_embedding(k, h)?;
    flagged_windows(k, h)?;
    windows_have_heads(k, h)?;
    h.set_attention_scale(1.0);
    share_caches(k, h)?;
    let most = MAX_WIDTH / h.n_layer();
    h.n_embd_per_layer = k
        .count("embedding_length_per_layer_input", 0..=most, Some(0))?
        .value;
    let cap = k.not_negative("final_logit_softcapping", 0.0)?;
    h.factors.logit_cap = (cap > 0.0).then_some(cap);
    let rules = ExpertRules {
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    h.experts = experts_if_any(k, h, rules)?;
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = Layer {
        attn_norm: Some(b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?),
        ffn_norm: Some(b.layer_norm(l, "ffn_norm", taps::FFN_NORM)?),
        ..bare(b, l)?
    };
    let layer = with_post_norms(b, l, layer, &NUMBERED_POST_NORMS)?;
    let scale = b.optional_vector(&blk(l, "layer_output_scale.weight"), 1)?;
    Ok(Layer {
        per_layer: b.per_layer(l)?,
        output_scale: scale.map(|scale| b.values(scale)[0]),
        ..layer
    })
}

/// Binds the layer without its norms before and after the blocks.
fn bare(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let sizes = b.h.layers[l];
    let (n_embd, head_dim) = (b.h.n_embd(), sizes.head_dim);
    let wq = b.matrix(&blk(l, "attn_q.weight"), sizes.q_width(), n_embd)?;
    let wo = b.matrix(&blk(l, "attn_output.weight"), n_embd, sizes.q_width())?;
    let mut attention = Attention {
        q_norm: Some(b.norm(&blk(l, "attn_q_norm"), head_dim, taps::Q_CUR_NORMED)?),
        ..Attention::new(wq, wo)
    };
    if sizes.kv_layer != l {
        // some files have these tensors though nothing reads them
        for name in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            b.ignore(&blk(l, name));
        }
    } else {
        let ones = b.made_vector("(no weight)", vec![1.0; head_dim]);
        attention = Attention {
            wk: Some(b.matrix(&blk(l, "attn_k.weight"), sizes.kv_width(), n_embd)?),
            wv: b.optional_matrix(&blk(l, "attn_v.weight"), sizes.kv_width(), n_embd)?,
            k_norm: Some(b.norm(&blk(l, "attn_k_norm"), head_dim, taps::K_CUR_NORMED)?),
            v_norm: Some(NormWeights::plain(ones, taps::V_CUR_NORMED)),
            ..attention
        };
    }
    let dense = b.gated_ffn(l)?;
    let ffn = match b.h.experts {
        Some(_) => Ffn::Both(b.dense_and_experts(l, dense)?),
        None => Ffn::Dense(dense),
    };
    Ok(Layer {
        attention: Some(attention),
        ..Layer::new(ffn)
    })
}
