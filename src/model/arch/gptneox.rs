//! GPT-NeoX (Pythia, Dolly): layer norms with biases, biases everywhere, GELU without a gate, only
//! a part of each head is rotated, and attention runs parallel to the feed-forward block if the
//! file says so.

use super::starcoder2::plain_layer;
use super::{Block, DECODER, Feature, Norm, Spec};

const PARALLEL: &str = "use_parallel_residual";

pub(super) const SPEC: Spec = Spec {
    name: "gptneox",
    norm: Norm::Layer,
    feature: Feature::Gelu,
    attn_out: None,
    reads: &[PARALLEL],
    read_hparams: |k, h| {
        if k.get(PARALLEL).is_none() {
            return Err(k.missing(k.full(PARALLEL), "true or false"));
        }
        if k.flag(PARALLEL, true)? {
            h.block = Block::Parallel;
        }
        Ok(())
    },
    layer: plain_layer,
    ..DECODER
};
