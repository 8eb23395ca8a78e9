//! Options of speculative decoding.

use std::path::PathBuf;

use clap::Args;
use octavo_engine::speculative::Lookup;
use octavo_engine::{Engine, EngineOptions, ModelSource};

use super::super::failure::Failure;
use super::super::{load, terminal};
use super::ComputeArgs;

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
    /// Draft tokens with a smaller model of the same vocabulary: a GGUF file or folder
    #[arg(long, value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    draft: Option<PathBuf>,
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

    /// Checks that the draft model exists.
    pub(in super::super) fn check(&self) -> Result<(), Failure> {
        let path = self.draft.as_deref();
        path.map_or(Ok(()), |path| load::check_there("--draft", path))
    }

    /// Loads the draft model, if one is given, for as many sequences as `engine` has.
    pub(in super::super) fn load_draft(
        &self,
        engine: &Engine,
        compute: &ComputeArgs,
    ) -> Result<(), Failure> {
        let Some(path) = &self.draft else {
            return Ok(());
        };
        let source = ModelSource::Path(path.clone());
        let trained = load::n_ctx_train(&source)?;
        let options = EngineOptions {
            ctx: Some(trained.min(engine.n_ctx())),
            sessions: engine.sessions(),
            kv_positions: Some(engine.positions()),
            pool: engine.pool(),
            ..compute.options()?
        };
        let draft = load::shown(|sink| Engine::load(&source, &options, sink))?;
        terminal::warn(draft.warnings());
        Ok(engine.set_draft_model(draft)?)
    }
}
