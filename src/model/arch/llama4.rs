//! LLaMA 4: attention within chunks of positions, and in every fourth layer to all, without RoPE
//! and with queries scaled by position; experts whose weights multiply their inputs, with a shared
//! one, in every n-th layer.

use super::{Attention, Spec, pre_norm_layer, taps};
use super::{Binder, DECODER, Error, Ffn, Hparams, Keys, Layer, NormWeights, Pairing, QkNorm};
use crate::hparams::{DefaultWidth, ExpertRules, Gating, MIXTURE, SharedWidth, Temperature};
use crate::hparams::{constant_windows, experts, no_rope_every, sliding_window_rope_base};
use crate::weights::Experts;

const WINDOW: &str = "attention.sliding_window";
/// Constants of llama.cpp's loader; no keys store them.
const PERIOD: usize = 4;
const CHUNK: usize = 8192;
const TEMPERATURE: Temperature = Temperature {
    rate: 0.1,
    step: CHUNK,
    offset: 1,
    unrotated_only: true,
};
/// Number of experts of Maverick, which has no norms of queries and keys.
const MAVERICK: usize = 128;

pub(super) const SPEC: Spec = Spec {
    name: "llama4",
    pairing: Pairing::Norm,
    full_rotary: true,
    qk_norm: QkNorm::AfterRope,
    scaled_query: taps::Q_CUR,
    reads: &[WINDOW, "expert_count", "expert_used_count"],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if k.get(WINDOW)
        .is_some_and(|window| window.as_int() == Some(0))
    {
        return Err(k.unsupported(WINDOW, "chunks of positions", "0"));
    }
    constant_windows(k, h, CHUNK, PERIOD, false)?;
    h.layers
        .iter_mut()
        .for_each(|layer| layer.scores.chunked = layer.scores.window.is_some());
    sliding_window_rope_base(k, h)?;
    no_rope_every(PERIOD, h);
    h.temperature = Some(TEMPERATURE);
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        normalized: Some(false),
        n_ff: DefaultWidth::Required,
        shared: SharedWidth::LikeExpert,
        weighs_inputs: true,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    h.expert_period = k
        .count("interleave_moe_layer_step", 1..=h.n_layer(), None)?
        .value;
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let routed = (l + 1).is_multiple_of(b.h.expert_period);
    let layer = pre_norm_layer(b, l, |b| match routed {
        true => Ok(Ffn::Experts(Experts {
            shared_tap: taps::FFN_MOE_SHEXP,
            merged_tap: taps::FFN_MOE_OUT_MERGED,
            ..b.experts(l)?
        })),
        false => Ok(Ffn::Dense(b.gated_ffn(l)?)),
    })?;
    // llama.cpp gives this norm's name to another value
    let unnamed = |norm: NormWeights| NormWeights {
        tap: norm.tap.filter(|_| !routed),
        ..norm
    };
    let layer = Layer {
        ffn_norm: layer.ffn_norm.map(unnamed),
        ..layer
    };
    let is_normed = b.h.experts.is_some_and(|rules| rules.count != MAVERICK);
    let sizes = b.h.layers[l];
    if sizes.rope.is_none() || !is_normed {
        return Ok(layer);
    }
    let ones = b.made_vector("(no weight)", vec![1.0; sizes.head_dim]);
    layer.attending(|attention| {
        Ok(Attention {
            q_norm: Some(NormWeights::plain(ones, taps::Q_CUR_NORMED)),
            k_norm: Some(NormWeights::plain(ones, taps::K_CUR_NORMED)),
            ..attention
        })
    })
}
