//! MiMo V2 (Xiaomi): windowed layers have more KV heads and attention sinks, values are narrower
//! than keys, attention's result has a factor, and layers with a router have experts.

use super::experts_where_routed;
use super::{Attention, Binder, DECODER, Error, Hparams, Keys, Layer, Spec, blk};
use crate::hparams::{DefaultWidth, ExpertRules, Gating, MIXTURE, VALUE_LENGTH};
use crate::hparams::{experts, flagged_windows, local_windows};

const VALUE_SCALE: &str = "attention.value_scale";

pub(super) const SPEC: Spec = Spec {
    name: "mimo2",
    reads: &[
        "attention.sliding_window",
        VALUE_LENGTH,
        VALUE_SCALE,
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
    ],
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    flagged_windows(k, h)?;
    local_windows(k, h)?;
    h.factors.attention = k.factor(VALUE_SCALE, Some(1.0))?;
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_where_routed(b, l, |b| b.experts(l))?;
    layer.attending(|attention| {
        let sinks = b.optional_vector(&blk(l, "attn_sinks.weight"), b.h.layers[l].n_head)?;
        Ok(Attention { sinks, ..attention })
    })
}
