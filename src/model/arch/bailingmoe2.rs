//! Ling and Ring 2: Q, K and V in one tensor, norms of query and key heads, and only half of each
//! head is rotated. The first layers are dense, the others have experts and a shared one.

use super::with_head_norms;
use super::{Binder, Block, DECODER, Error, Layer, Spec, experts_after_dense, taps};
use crate::hparams::{self, DefaultWidth, ExpertRules, MIXTURE, RouterKeys, SharedWidth};

pub(super) const SPEC: Spec = Spec {
    name: "bailingmoe2",
    block: Block::Sequential {
        residual: Some(taps::SA_OUT),
    },
    attn_out: None,
    reads: &["expert_count", "expert_used_count", "nextn_predict_layers"],
    read_hparams: |k, h| hparams::experts_after_dense(k, h, RULES),
    layer,
    ..DECODER
};

const RULES: ExpertRules = ExpertRules {
    router_keys: RouterKeys::RequiredGatingAndScale,
    normalized: None,
    n_ff: DefaultWidth::Required,
    shared: SharedWidth::Multiplied,
    ..MIXTURE
};

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = experts_after_dense(b, l)?;
    with_head_norms(b, l, layer)
}
