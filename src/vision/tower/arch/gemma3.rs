//! Gemma 3: SigLIP on a square image, and a projector that averages squares of patches.

use octavo_model::graph::once;

use super::{Images, Merge, Positions, Prompt, Spec, Step, VIT};

pub(super) const SPEC: Spec = Spec {
    names: &["gemma3"],
    images: Images::Square,
    prompt: Prompt::Between(["<start_of_image>", "<end_of_image>"]),
    bidirectional: |_| true,
    merge: Merge {
        default: 4,
        ..VIT.merge
    },
    swaps_feed_forward: true,
    embed: |b| {
        Ok(vec![
            b.patches()?,
            b.patch_bias("patch_bias")?,
            b.positions(Positions::of_square, "pos_embed")?,
        ])
    },
    project: |b| {
        let (n, rows) = (b.h.n_embd, b.h.n_projected);
        // a file has this matrix with its columns as rows
        let name = "mm.input_projection.weight";
        Ok(vec![
            b.layer_norm_step("v.post_ln", n, None)?,
            Step::Average(once("pooled")),
            b.rms_norm_step("mm.soft_emb_norm", n, None)?,
            Step::Product(b.tensors.transposed(name, rows, n)?, None),
        ])
    },
    ..VIT
};
