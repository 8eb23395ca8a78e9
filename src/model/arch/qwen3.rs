//! Qwen 3: query and key heads are normed before RoPE, and heads need not fill the width.

use super::{Classifier, DECODER, Images, Spec, qk_normed_layer};
use crate::hparams::{CAUSAL, see_all_if_asked};

pub(super) const SPEC: Spec = Spec {
    name: "qwen3",
    images: Images::Causal,
    reads: &[CAUSAL],
    read_hparams: see_all_if_asked,
    classifier: Some(Classifier::Softmax),
    layer: qk_normed_layer,
    ..DECODER
};
