//! DeepSeek V2, V3 and R1, and models built on them (GLM 4.7 Flash, Kimi K2, Mistral Large 3):
//! multi-head latent attention (MLA), and experts in all but the first layers.

use super::{DECODER, Error, Hparams, Images, Keys, Pairing, Spec, experts_after_dense};
use crate::hparams::{self, DefaultWidth, ExpertRules, Gating, MIXTURE, RouterKeys, latent_scores};

pub(super) const SPEC: Spec = Spec {
    name: "deepseek2",
    images: Images::Causal,
    pairing: Pairing::Norm,
    latent: true,
    mtp: true,
    attn_out: None,
    reads: &[
        "expert_count",
        "expert_used_count",
        "nextn_predict_layers",
        "attention.temperature_scale",
        "attention.temperature_length",
        "rope.scaling.yarn_log_multiplier",
    ],
    read_hparams,
    layer: experts_after_dense,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    latent_scores(k, h)?;
    // GLM 4.7 Flash: its files lack the key
    let is_flash = h.n_vocab() == 154_880 && (47..=48).contains(&h.n_block);
    let rules = ExpertRules {
        gating: if is_flash {
            Gating::Sigmoid
        } else {
            Gating::Softmax
        },
        router_keys: RouterKeys::GatingAndScale,
        normalized: None,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    hparams::experts_after_dense(k, h, rules)
}
