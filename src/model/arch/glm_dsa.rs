//! GLM 5: DeepSeek V3.2 with other details of its indexers, whose choices later layers may share.

use octavo_kernels::Pairing;

use super::{Error, Hparams, Keys, Spec, deepseek32};
use crate::hparams::{DefaultWidth, ExpertRules, Gating, IndexerRules, MIXTURE, RouterKeys};
use crate::hparams::{experts_after_dense, indexers, latent_scores};

pub(super) const SPEC: Spec = Spec {
    name: "glm-dsa",
    read_hparams,
    ..deepseek32::SPEC
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    latent_scores(k, h)?;
    // llama.cpp never sets this epsilon
    let rules = IndexerRules {
        pairing: Pairing::Norm,
        eps: 0.0,
        shares: true,
    };
    indexers(k, h, rules)?;
    let rules = ExpertRules {
        gating: Gating::Sigmoid,
        router_keys: RouterKeys::GatingAndScale,
        normalized: None,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    experts_after_dense(k, h, rules)
}
