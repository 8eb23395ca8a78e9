//! Binds the layers that architectures are made of.

use super::kinds::Recurrent;
use crate::error::Error;
use crate::taps;
use crate::weights::{Attention, Binder, Experts, Ffn, Layer, NormWeights, Recurrence, blk};

/// Binds a pre-norm layer with a gated feed-forward block, without optional weights.
pub(super) fn dense_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))
}

/// Binds a pre-norm layer with experts, or a dense one where the model has none.
pub(super) fn expert_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    match b.h.experts {
        Some(_) => pre_norm_layer(b, l, |b| Ok(Ffn::Experts(b.experts(l)?))),
        None => dense_layer(b, l),
    }
}

/// Binds a pre-norm layer with the feed-forward block that `ffn` binds.
pub(super) fn pre_norm_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    pre_norm_layer_with(b, l, ["ffn_norm", taps::FFN_NORM], ffn)
}

/// Does the same with another tensor and tap name for the norm before the feed-forward block.
pub(super) fn pre_norm_layer_with<'b>(
    b: &mut Binder<'b>,
    l: usize,
    [ffn_norm, tap]: [&'static str; 2],
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let attn_norm = b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?;
    let bare = bare_layer(b, l, ffn)?;
    Ok(Layer {
        attn_norm: Some(attn_norm),
        ffn_norm: Some(b.layer_norm(l, ffn_norm, tap)?),
        ..bare
    })
}

/// Binds such a layer, dense among the first ones.
pub(super) fn experts_after_dense(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| dense_or_experts(b, l))
}

/// Binds such a layer, whose experts are chosen by scores plus a bias.
pub(super) fn biased_experts_after_dense(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| match l < b.h.leading_dense {
        true => Ok(Ffn::Dense(b.gated_ffn(l)?)),
        false => Ok(Ffn::Experts(b.experts_with_selection_bias(l)?)),
    })
}

/// Binds such a layer with a norm of each query and key head.
pub(super) fn qk_normed_experts_after_dense(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_after_dense(b, l)?;
    with_head_norms(b, l, layer)
}

/// Binds the dense feed-forward block of one of the first layers, or experts.
fn dense_or_experts(b: &mut Binder<'_>, l: usize) -> Result<Ffn, Error> {
    if l < b.h.leading_dense {
        return Ok(Ffn::Dense(b.gated_ffn(l)?));
    }
    Ok(Ffn::Experts(b.experts(l)?))
}

/// Binds such a layer with the biases that the file has, on attention's output and in the dense
/// feed-forward block.
pub(super) fn biased_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    let layer = with_output_bias(b, l, layer)?;
    Ok(Layer {
        ffn: match layer.ffn {
            Ffn::Dense(ffn) => Ffn::Dense(b.ffn_biases(l, ffn)?),
            others => others,
        },
        ..layer
    })
}

/// Adds the bias of attention's output projection, where the file has one.
pub(super) fn with_output_bias(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    layer.attending(|attention| {
        let bo = b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?;
        Ok(Attention { bo, ..attention })
    })
}

/// Binds such a layer with a norm of each query and key head.
pub(super) fn qk_normed_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    with_head_norms(b, l, layer)
}

/// Adds a norm of each query and key head.
pub(super) fn with_head_norms(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    let widths = [b.h.layers[l].head_dim; 2];
    with_qk_norms(b, l, layer, widths)
}

/// Adds a norm of all queries together, and one of all keys.
pub(super) fn with_whole_norms(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    let sizes = &b.h.layers[l];
    let widths = [sizes.q_width(), sizes.kv_width()];
    with_qk_norms(b, l, layer, widths)
}

/// Adds norms of queries and keys over groups of `widths` values.
pub(super) fn with_qk_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    widths: [usize; 2],
) -> Result<Layer, Error> {
    let names = b.h.arch.spec().qk_normed;
    layer.attending(|attention| {
        Ok(Attention {
            q_norm: Some(b.norm(&blk(l, "attn_q_norm"), widths[0], names[0])?),
            k_norm: Some(b.norm(&blk(l, "attn_k_norm"), widths[1], names[1])?),
            ..attention
        })
    })
}

/// Adds a gate of `rows` values of attention's result, where the file has one or it is `required`.
pub(super) fn with_result_gate(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    (rows, required): (usize, bool),
) -> Result<Layer, Error> {
    let (name, n_embd) = (blk(l, "attn_gate.weight"), b.h.n_embd());
    layer.attending(|attention| {
        let gate = match required {
            true => Some(b.matrix(&name, rows, n_embd)?),
            false => b.optional_matrix(&name, rows, n_embd)?,
        };
        Ok(Attention { gate, ..attention })
    })
}

/// Binds a pre-norm layer with experts where the file has a router for it, and a dense block
/// elsewhere.
pub(super) fn experts_where_routed(
    b: &mut Binder<'_>,
    l: usize,
    experts: impl FnOnce(&mut Binder<'_>) -> Result<Experts, Error>,
) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| {
        if !b.has(&blk(l, "ffn_gate_inp.weight")) {
            return Ok(Ffn::Dense(b.gated_ffn(l)?));
        }
        Ok(Ffn::Experts(experts(b)?))
    })
}

/// Tap names of the norms after attention and after the feed-forward block.
pub(super) struct PostNorms {
    pub(super) attn: &'static str,
    pub(super) ffn: &'static str,
    /// Whether the second name carries the layer's number.
    pub(super) ffn_is_numbered: bool,
}

/// The usual names.
pub(super) const POST_NORMS: PostNorms = PostNorms {
    attn: taps::ATTN_POST_NORM,
    ffn: taps::FFN_POST_NORM,
    ffn_is_numbered: false,
};

/// The usual names, both with the layer's number.
pub(super) const NUMBERED_POST_NORMS: PostNorms = PostNorms {
    ffn_is_numbered: true,
    ..POST_NORMS
};

/// Adds norms of the results of attention and the feed-forward block.
pub(super) fn with_post_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    names: &PostNorms,
) -> Result<Layer, Error> {
    Ok(Layer {
        attn_post_norm: Some(b.layer_norm(l, "post_attention_norm", names.attn)?),
        ffn_post_norm: Some(NormWeights {
            numbered: names.ffn_is_numbered,
            ..b.layer_norm(l, "post_ffw_norm", names.ffn)?
        }),
        ..layer
    })
}

/// Binds a layer without norms.
pub(super) fn bare_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let sizes = &b.h.layers[l];
    let (attends, recurs) = (sizes.attends(), sizes.recurs());
    let latent = b.h.arch.spec().latent;
    Ok(Layer {
        latent: (attends && latent)
            .then(|| b.latent_attention(l))
            .transpose()?,
        attention: (attends && !latent).then(|| attention(b, l)).transpose()?,
        recurrence: recurs.then(|| recurrence(b, l)).transpose()?,
        ..Layer::new(ffn(b)?)
    })
}

pub(super) fn attention(b: &mut Binder<'_>, l: usize) -> Result<Attention, Error> {
    let (n_embd, sizes) = (b.h.n_embd(), b.h.layers[l]);
    let qkv = b.qkv(l)?;
    let values = sizes.n_head * sizes.value_dim;
    let wo = b.matrix(&blk(l, "attn_output.weight"), n_embd, values)?;
    let padding = sizes.head_dim.abs_diff(sizes.value_dim);
    let padding = (padding > 0).then(|| b.made_vector("(padding)", vec![0.0; padding]));
    Ok(Attention {
        padding,
        gated: b.h.arch.spec().gated_attention,
        wk: Some(qkv.w[1]),
        wv: Some(qkv.w[2]),
        bq: qkv.b[0],
        bk: qkv.b[1],
        bv: qkv.b[2],
        ..Attention::new(qkv.w[0], wo)
    })
}

pub(super) fn recurrence(b: &mut Binder<'_>, l: usize) -> Result<Recurrence, Error> {
    let recurrent = b.h.arch.spec().recurrent;
    Ok(match recurrent.expect("it has recurrent layers") {
        Recurrent::DeltaNet(_) => Recurrence::DeltaNet(b.delta_net(l)?),
        Recurrent::KimiDelta => Recurrence::KimiDelta(b.kimi_delta(l)?),
        Recurrent::ShortConv => Recurrence::ShortConv(b.short_conv(l)?),
        Recurrent::Mamba1 => Recurrence::Mamba1(b.mamba1(l)?),
        Recurrent::Plamo2 => Recurrence::Plamo2(b.plamo2_mamba(l)?),
        Recurrent::Rwkv7 => Recurrence::TimeMix(b.time_mix(l)?),
        Recurrent::Mamba2 => Recurrence::Mamba2(b.mamba2(l, taps::MAMBA_OUT, false)?),
        Recurrent::Mamba2Beside => Recurrence::Mamba2(b.mamba2(l, taps::SSM_OUT, true)?),
    })
}
