//! Options of speculative decoding.

use std::path::PathBuf;

use clap::Args;
use octavo_engine::Lookup;

/// Options of speculative decoding: draft tokens are verified several at a time, and kept where
/// they equal the tokens that would have been chosen. That is faster and gives the same text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(in super::super) struct SpeculativeArgs {
    /// Draft tokens from earlier text (n-gram lookup): auto (where that saves time), on or off
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    lookup: When,
    /// Draft tokens with a smaller model of the same vocabulary: a GGUF file, a
    /// folder or hf:USER/REPO:QUANT
    #[arg(long, value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    pub(in super::super) draft: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum When {
    Auto,
    On,
    Off,
}

impl SpeculativeArgs {
    /// Returns whether to draft tokens from the text itself.
    pub(in super::super) fn lookup(&self) -> Lookup {
        match self.lookup {
            When::Auto => Lookup::Auto,
            When::On => Lookup::On,
            When::Off => Lookup::Off,
        }
    }
}
