//! dots.llm1: Qwen 3's attention, then experts and shared ones in all but the first layers.

use super::{Binder, DECODER, Error, Layer, Spec, experts_after_dense, with_head_norms};
use crate::hparams::{self, DefaultWidth, EXPERT_KEYS, ExpertRules, MIXTURE, RouterKeys};

pub(super) const SPEC: Spec = Spec {
    name: "dots1",
    full_rotary: true,
    attn_out: None,
    reads: &EXPERT_KEYS,
    read_hparams: |k, h| hparams::experts_after_dense(k, h, RULES),
    layer,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    router_keys: RouterKeys::RequiredGatingAndScale,
    normalized: None,
    n_ff: DefaultWidth::Required,
    ..MIXTURE
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_after_dense(b, l)?;
    with_head_norms(b, l, layer)
}
