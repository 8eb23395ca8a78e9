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
    /// Draft tokens with a smaller model of the same vocabulary, or a Gemma 4's
    /// assistant: a GGUF file, a folder or hf:USER/REPO:QUANT
    #[arg(long, value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    pub(in super::super) draft: Option<PathBuf>,
    /// Draft tokens with the model's own MTP layer, as Qwen 3.5, GLM
    /// 4.5 and DeepSeek V3 have one; =FILE if it is in a file of its own
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "draft",
        value_hint = clap::ValueHint::FilePath
    )]
    pub(in super::super) draft_mtp: Option<Option<PathBuf>>,
    /// Draft N tokens at a time with --draft or --draft-mtp, at most 15, whatever they cost; by
    /// default as many as are worth their time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    draft_max: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum When {
    Auto,
    On,
    Off,
}

impl SpeculativeArgs {
    /// Returns the number of tokens to draft at a time, if it is given.
    pub(in super::super) fn draft_max(&self) -> Option<usize> {
        self.draft_max.map(usize::from)
    }

    /// Returns whether to draft tokens from the text itself.
    pub(in super::super) fn lookup(&self) -> Lookup {
        match self.lookup {
            When::Auto => Lookup::Auto,
            When::On => Lookup::On,
            When::Off => Lookup::Off,
        }
    }
}
