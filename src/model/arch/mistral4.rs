//! Mistral Small 4: DeepSeek V3's latent attention and experts under another name.

use super::{Spec, deepseek2};

pub(super) const SPEC: Spec = Spec {
    name: "mistral4",
    ignores_yarn_betas: true,
    mtp: false,
    ..deepseek2::SPEC
};
