//! Kimi-VL: MoonViT, with a table of positions that is resized to the image and RoPE of rows and
//! columns, and a projector that norms patches before it reads squares of them as one vector.

use octavo_model::graph::once;

use super::rope_of_neighbours;
use super::{COLUMN, Images, Merge, Positions, Prompt, ROW, Rotation, Spec, Step, VIT};

/// Epsilon of the projector's norm; no key stores it.
const EPS: f32 = 1e-5;

pub(super) const SPEC: Spec = Spec {
    names: &["kimivl"],
    images: Images::dynamic(8, 1024),
    prompt: Prompt::Between(["<|media_start|>", "<|media_end|>"]),
    merge: Merge {
        default: 0,
        least: 2,
        ..VIT.merge
    },
    // both axes begin with the highest frequency
    rotation: Rotation::Whole(|head_dim| rope_of_neighbours(head_dim, [(COLUMN, 0), (ROW, 0)])),
    head_multiple: 4,
    embed: |b| {
        Ok(vec![
            b.patches()?,
            b.patch_bias("patch_bias")?,
            b.positions(Positions::resized, "pos_embed")?,
        ])
    },
    project: |b| {
        let n = b.h.n_embd;
        let mut steps = Vec::new();
        steps.extend(b.optional_layer_norm_step("v.post_ln", n, "norm_b")?);
        steps.push(b.layer_norm_step_with("mm.input_norm", n, None, EPS)?);
        steps.push(Step::Merge(once("proj_inp_normed")));
        let inner = b.rows_of("mm.1.weight");
        steps.extend(b.two_products(["mm.1", "mm.2"], inner, None)?);
        Ok(steps)
    },
    ..VIT
};
