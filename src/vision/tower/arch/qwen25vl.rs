//! Qwen 2.5 VL and Omni: RMS norms, gated feed-forward blocks, and attention in windows except in
//! some blocks, which repeat regularly.

use octavo_model::graph::Norm;
use octavo_model::hparams::MAX_LAYERS;

use super::{Error, Hparams, Keys, QWEN, Spec, Step};
use crate::tower::hparams::Windows;

/// Side of an attention window in pixels; no key stores it.
const WINDOW_PIXELS: usize = 112;

pub(super) const SPEC: Spec = Spec {
    // the second is Qwen 2.5 Omni's, whose vision encoder is the same
    names: &["qwen2.5vl_merger", "qwen2.5o"],
    norm: Norm::Rms,
    read_hparams: windows,
    embed: |b| Ok(vec![b.patches_of_frames()?]),
    project: |b| {
        let (n, behind) = (b.h.n_embd, b.h.n_block);
        let mut steps = vec![
            b.rms_norm_step("v.post_ln", n, Some(behind))?,
            Step::merge(),
        ];
        steps.extend(b.two_products(["mm.0", "mm.2"], b.h.merged(), None)?);
        Ok(steps)
    },
    ..QWEN
};

fn windows(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let whole_every = k.count("vision.n_wa_pattern", 1..=MAX_LAYERS, None)?.value;
    let side = WINDOW_PIXELS / h.unit();
    if side == 0 {
        let expected = format!("at most {}", WINDOW_PIXELS / h.merge);
        return Err(k.bad(k.full("vision.patch_size"), expected, h.patch.to_string()));
    }
    h.windows = Some(Windows { side, whole_every });
    Ok(())
}
