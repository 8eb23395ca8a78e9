//! Comparison with a model that is loaded beside the others, without a base file.

use std::path::{Path, PathBuf};

use clap::Args;
use octavo_analysis::eval::{self, Divergence, Observer, Text};
use octavo_engine::{Engine, EngineOptions};
use serde_json::json;

use super::{CHUNK, PerplexityArgs, Watch, print, scoring};
use crate::failure::{Exit, Failure};
use crate::shards::about;
use crate::signal::Generating;
use crate::{load, terminal};

/// Options of a comparison with another model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Comparing with a model")]
pub(super) struct AgainstArgs {
    /// Compare the predictions with those of this model, which is loaded beside: no base file, and
    /// nothing is rounded
    #[arg(long, value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    pub(super) against: Option<PathBuf>,
    /// Compare this model with --against as well, in the same pass; may be given several times
    #[arg(long, value_name = "MODEL", requires = "against")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    also: Vec<PathBuf>,
}

impl AgainstArgs {
    /// Checks that the models are there.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if let Some(path) = &self.against {
            load::check_model("--against", path)?;
        }
        self.also
            .iter()
            .try_for_each(|path| load::check_model("--also", path))
    }
}

/// Loads a model that shares the threads of another.
fn beside(path: &Path, engine: &Engine, options: &EngineOptions) -> Result<Engine, Failure> {
    let options = EngineOptions {
        pool: engine.pool(),
        ..options.clone()
    };
    let source = load::source_at(Some(path))?;
    let loaded = load::shown(|sink| Engine::load(&source, &options, sink))?;
    terminal::warn(loaded.warnings());
    loaded.check_logits()?;
    Ok(loaded)
}

/// Cuts the text into chunks, which must be the same for all models.
fn cut(
    args: &PerplexityArgs,
    reference: &Engine,
    models: &[Engine],
    text: &[u8],
) -> Result<Text, Failure> {
    let tokens = eval::encode(reference.tokenizer(), text)?;
    for model in models {
        let theirs = eval::encode(model.tokenizer(), text)?;
        let n = tokens.len().max(theirs.len());
        if let Some(at) = (0..n).find(|&i| tokens.get(i) != theirs.get(i)) {
            return Err(Failure::Input(format!(
                "{}: token {at} of the text is another one than in {}: expected the same \
                 vocabulary",
                model.gguf().name(),
                reference.gguf().name()
            )));
        }
    }
    args.cut(reference, text)
}

/// Compares models with another one.
pub(super) fn run(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    against: &Path,
    text: &[u8],
) -> Result<Exit, Failure> {
    options.ctx = options.ctx.or(Some(CHUNK));
    let engine = load::engine_with(&args.model, options.clone())?;
    let reference = beside(against, &engine, &options)?;
    let mut models = vec![engine];
    for path in &args.against.also {
        models.push(beside(path, &models[0], &options)?);
    }
    let text = cut(args, &reference, &models, text)?;
    let generating = Generating::begin();
    let mut watch = Several {
        watch: Watch::new(args, &generating, "comparing"),
        is_one: models.len() == 1,
    };
    let scoring = scoring(&options);
    let result = eval::divergence_beside(&reference, &models, &text, &scoring, &mut watch);
    let Some(all) = watch.watch.end(result)? else {
        return Ok(Exit::Interrupted);
    };
    let out = match args.json {
        true => as_json(&models, &all, &reference, &options, text.shape().n_ctx)?,
        false => as_text(&models, &all),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

fn as_text(models: &[Engine], all: &[Divergence]) -> String {
    let of_model = |(model, divergence): (&Engine, &Divergence)| match all.len() {
        1 => print::divergence(divergence),
        _ => format!(
            "\n{}:\n{}",
            model.gguf().name(),
            print::divergence(divergence)
        ),
    };
    models.iter().zip(all).map(of_model).collect()
}

/// Formats the object of a model, or one with a list of several.
fn as_json(
    models: &[Engine],
    all: &[Divergence],
    reference: &Engine,
    options: &EngineOptions,
    n_ctx: usize,
) -> Result<String, Failure> {
    let of_model = |(model, divergence): (&Engine, &Divergence)| {
        let about = about(model, options, reference.gguf().name().to_owned(), n_ctx)?;
        Ok(print::divergence_json(divergence, None, &about)?)
    };
    let objects = models.iter().zip(all).map(of_model);
    let objects: Vec<String> = objects.collect::<Result<_, Failure>>()?;
    match &objects[..] {
        [only] => Ok(only.clone()),
        several => {
            let parsed = several.iter().map(|text| serde_json::from_str(text));
            let parsed: Vec<serde_json::Value> = parsed.collect::<Result<_, _>>()?;
            Ok(format!(
                "{}\n",
                json!({ "version": crate::answer::VERSION, "models": parsed })
            ))
        }
    }
}

/// Watches a comparison of one model as the other comparisons are watched; of several, the rows of
/// chunks would mix.
struct Several<'a> {
    watch: Watch<'a>,
    is_one: bool,
}

impl Observer<Vec<Divergence>> for Several<'_> {
    fn chunk(&mut self, so_far: &Vec<Divergence>, total: usize) {
        let Some(first) = so_far.first() else { return };
        let line = match self.is_one {
            true => print::divergence_chunk(first),
            false => String::new(),
        };
        self.watch.chunk_done(first.chunks(), total, &line);
    }

    fn cancelled(&self) -> bool {
        self.watch.stopped()
    }
}

/// Returns the first option that would have no effect beside --against.
pub(super) fn useless(args: &PerplexityArgs) -> Option<&'static str> {
    let options = [
        ("--kl-divergence-base", args.kl_divergence_base.is_some()),
        ("--kl-divergence", args.kl_divergence),
        ("--base-top", args.small.size().is_some()),
        ("--shard", args.shard.index().is_some()),
        ("--force", args.force),
        ("tasks", args.tasks.kind().is_some()),
    ];
    let set = options.into_iter().find(|(_, is_set)| *is_set);
    set.map(|(name, _)| name)
}
