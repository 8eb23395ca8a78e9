//! Command R7B and A: Command R with windows in three of four layers; the others do not turn.

use super::command_r::{COMMAND, logit_factor};
use super::{Error, Hparams, Keys, Spec};
use crate::hparams::{only_windows_turn, windows, windows_turn_by_base};

pub(super) const SPEC: Spec = Spec {
    name: "cohere2",
    reads: &["logit_scale", "attention.sliding_window"],
    numbers,
    ..COMMAND
};

fn numbers(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    logit_factor(k, h)?;
    windows(k, h, 4, None)?;
    windows_turn_by_base(k, h)?;
    only_windows_turn(h);
    Ok(())
}
