//! Command R7B and A: Command R with windows in three of four layers; the others do not turn.

use super::command_r::{COMMAND, logit_factor};
use super::{Error, Hparams, Keys, Spec};
use crate::hparams::{windows, windows_turn_by};

pub(super) const SPEC: Spec = Spec {
    name: "cohere2",
    reads: &["logit_scale", "attention.sliding_window"],
    numbers,
    ..COMMAND
};

fn numbers(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    logit_factor(k, h)?;
    windows(k, h, 4, None)?;
    let base = k.positive(
        "rope.freq_base_swa",
        f32::INFINITY,
        Some(h.ropes[0].freq_base.value),
    )?;
    windows_turn_by(h, |rope| rope.freq_base = base);
    for layer in h.layers.iter_mut().filter(|l| l.scores.window.is_none()) {
        layer.rope = None;
    }
    Ok(())
}
