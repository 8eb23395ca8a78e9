//! DeepSeek V3.2: V3 with an indexer in every layer, which chooses the keys that attention sees.

use octavo_kernels::Pairing;

use super::{Error, Hparams, Images, Keys, Spec, deepseek2};
use crate::hparams::{DefaultWidth, ExpertRules, IndexerRules, MIXTURE, RouterKeys};
use crate::hparams::{experts_after_dense, indexers, latent_scores};

pub(super) const SPEC: Spec = Spec {
    name: "deepseek32",
    ignores_yarn_betas: true,
    images: Images::None,
    mtp: false,
    read_hparams,
    ..deepseek2::SPEC
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    latent_scores(k, h)?;
    let rules = IndexerRules {
        pairing: Pairing::Neox,
        eps: 1e-6,
        shares: false,
    };
    indexers(k, h, rules)?;
    let rules = ExpertRules {
        router_keys: RouterKeys::RequiredGatingAndScale,
        normalized: None,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    experts_after_dense(k, h, rules)
}
