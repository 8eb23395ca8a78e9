//! MiniMax M2: norms of all queries and all keys together, only a part of each head is rotated, and
//! experts, chosen by scores plus a bias, in every layer.

use super::{Binder, DECODER, Error, Ffn, Layer, Spec, pre_norm_layer, with_whole_norms};
use crate::hparams::{DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, RouterKeys, experts};

pub(super) const SPEC: Spec = Spec {
    name: "minimax-m2",
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| {
        h.experts = Some(experts(k, h, RULES)?);
        Ok(())
    },
    layer,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    router_keys: RouterKeys::RequiredGating,
    n_ff: DefaultWidth::Whole,
    ..MIXTURE
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = pre_norm_layer(b, l, |b| {
        Ok(Ffn::Experts(b.experts_with_selection_bias(l)?))
    })?;
    with_whole_norms(b, l, layer)
}
