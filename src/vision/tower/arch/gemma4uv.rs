//! Gemma 4 with a unified encoder: no blocks, only norms, a product and tables of positions.

use super::gemma4v::{self, projection};
use super::{Positions, Spec, Step};

/// Epsilon of its layer norms, whatever the file says.
const EPS: f32 = 1e-5;

pub(super) const SPEC: Spec = Spec {
    names: &["gemma4uv"],
    bidirectional: |_| true,
    centred: false,
    has_blocks: false,
    clamps: true,
    read_hparams: |_, h| {
        // a patch is what the other encoder merges
        h.patch *= h.merge;
        h.merge = 1;
        Ok(())
    },
    embed: |b| {
        let (n, values) = (b.h.n_embd, b.h.patch_values());
        Ok(vec![
            b.layer_norm_step_with("v.patch_norm.1", values, None, EPS)?,
            Step::Affine(b.biased("v.patch_embd", n, values)?, [None; 2]),
            b.layer_norm_step_with("v.patch_norm.2", n, None, EPS)?,
            b.positions(Positions::of_axes, "pos_embd")?,
            b.layer_norm_step_with("v.patch_norm.3", n, None, EPS)?,
        ])
    },
    project: projection,
    ..gemma4v::SPEC
};
