//! Command R7B and A: Command R with sliding windows in three of four layers; the other layers have
//! no RoPE.

use super::command_r::{COMMAND, logit_factor};
use super::{Error, Hparams, Keys, Spec};
use crate::hparams::{only_windows_turn, windows};

pub(super) const SPEC: Spec = Spec {
    name: "cohere2",
    reads: &["logit_scale", "attention.sliding_window"],
    read_hparams,
    ..COMMAND
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if k.get("logit_scale").is_none() {
        return Err(k.missing(k.full("logit_scale"), "a number"));
    }
    logit_factor(k, h)?;
    windows(k, h, 4, None)?;
    only_windows_turn(k, h);
    Ok(())
}
