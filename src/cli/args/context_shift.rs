//! Options of texts that fill the context.

use clap::Args;
use octavo_engine::ContextShift;

/// Options of texts that fill the context.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct ContextShiftArgs {
    /// When the context is full, drop half of the tokens after those of --keep and go on; the
    /// others are computed anew
    #[arg(long, overrides_with = "no_context_shift")]
    context_shift: bool,
    /// End the text when the context is full (the default)
    #[arg(long, hide = true)]
    no_context_shift: bool,
    /// Number of tokens at the beginning that a context shift keeps; -1 keeps the prompt
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=1 << 31))]
    keep: i64,
}

impl ContextShiftArgs {
    /// Returns how texts go on when the context is full; `None` if they end there.
    pub(crate) fn shift(&self) -> Option<ContextShift> {
        self.context_shift.then(|| ContextShift {
            keep: usize::try_from(self.keep).ok(),
            discard: None,
        })
    }
}
