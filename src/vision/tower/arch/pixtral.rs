//! Pixtral and Mistral Small 3.1 and later: RoPE whose frequencies are dealt out to rows and
//! columns in turn, squares of patches as one vector, and a row of its own at the end of lines.

use octavo_model::graph::Norm;

use super::rope_of_neighbours;
use super::{Binder, COLUMN, Error, Images, Merge, Prompt, ROW, Rotation, Spec, Step, VIT};

pub(super) const SPEC: Spec = Spec {
    names: &["pixtral"],
    images: Images::dynamic(8, 1024),
    prompt: Prompt::Between(["", "[IMG_END]"]),
    merge: Merge {
        key: "vision.spatial_merge_size",
        ..VIT.merge
    },
    norm: Norm::Rms,
    biases: false,
    // the two halves of a head take the frequencies of the whole head in turn
    rotation: Rotation::Whole(|head_dim| rope_of_neighbours(head_dim, [(ROW, 0), (COLUMN, 1)])),
    head_multiple: 4,
    embed: |b| {
        let n = b.h.n_embd;
        Ok(vec![
            b.patches()?,
            b.named_rms_norm_step("v.pre_ln", n, "pre_ln")?,
        ])
    },
    project,
    ..VIT
};

fn project(b: &mut Binder<'_>) -> Result<Vec<Step>, Error> {
    let (n, rows) = (b.h.n_embd, b.h.n_projected);
    let mut steps = Vec::new();
    if b.h.merge > 1 {
        let merger = b
            .tensors
            .matrix("mm.patch_merger.weight", n, b.h.merged())?;
        steps = vec![
            b.rms_norm_step("mm.input_norm", n, None)?,
            Step::merge(),
            Step::ByChannel,
            Step::Product(merger, None),
        ];
    }
    let first = b.optionally_biased("mm.1", rows, n)?;
    let second = b.optionally_biased("mm.2", rows, rows)?;
    steps.extend(Step::two_products([first, second], None));
    // the text model's embedding of [IMG_BREAK]
    let end = b.tensors.vector("v.token_embd.img_break", rows)?;
    b.row_end = Some(b.tensors.values(end).to_vec());
    Ok(steps)
}
