//! `--models`: several models in one server, which loads them when requests name them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use gguf_rs_lite::Gguf;
use octavo_server::{LoadedModel, ModelEntry, ModelLimits, ModelLoader, ModelSource, Models};

use super::folder;
use super::preset::{self, Given};
use super::served::{ServedArgs, Shared};
use crate::failure::Failure;
use crate::wording::size;
use crate::{hub, load, values};

/// Value of `--models` that stands for the hub's cache.
const CACHE: &str = "hf:";

/// Options of several models.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several models")]
pub(super) struct ModelsArgs {
    /// Serve several models, each loaded when a request names it: the GGUF files of a folder, the
    /// models of a TOML file or of a preset of llama.cpp's (.ini) with their options, or hf: for
    /// what is in the hub's cache; may be given several times [default with another option of
    /// several models and no MODEL: hf:]
    #[arg(long, visible_aliases = ["models-dir", "models-preset"], value_name = "DIR|FILE")]
    #[arg(conflicts_with_all = ["positional", "flag", "hf_repo", "alias"])]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    models: Vec<PathBuf>,
    /// Memory for weights and KV caches of all loaded models, such as 12G; the least recently used
    /// ones make room for others [default: three quarters of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    #[arg(conflicts_with_all = ["positional", "flag", "hf_repo", "alias"])]
    models_memory: Option<u64>,
    /// Maximum number of loaded models; 0 is no limit [default: 0]
    #[arg(long, value_name = "N", conflicts_with_all = ["positional", "flag", "hf_repo", "alias"])]
    models_max: Option<u16>,
    /// Load no model because a request names it; /models/load does
    #[arg(long, conflicts_with_all = ["positional", "flag", "hf_repo", "alias"])]
    no_models_autoload: bool,
    /// Load them (the default)
    #[arg(long, hide = true, conflicts_with = "no_models_autoload")]
    models_autoload: bool,
    /// Unload a model after this many seconds without requests, until the next one; -1 is never
    /// [default: -1]
    #[arg(long, visible_alias = "sleep-idle-seconds", value_name = "S")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=1 << 31))]
    idle_unload: Option<i64>,
}

/// A model that is loaded when it is wanted.
pub(super) struct ServedModel {
    pub(super) names: Vec<String>,
    pub(super) args: ServedArgs,
    pub(super) at_start: bool,
    pub(super) shared: Arc<Shared>,
}

impl ModelLoader for ServedModel {
    fn plan(&self) -> Result<u64, String> {
        let planned = self.args.plan(&self.shared);
        planned.map_err(|failure| failure.message())
    }

    fn load(&self) -> Result<LoadedModel, String> {
        let loaded = self.args.load(&self.shared);
        let (loaded, _) = loaded.map_err(|failure| failure.message())?;
        Ok(loaded)
    }

    fn open(&self) -> Result<Gguf, String> {
        let open = || Ok::<_, Failure>(load::source_cached(&self.args.model)?.open(true)?);
        open().map_err(|failure| failure.message())
    }

    fn options(&self) -> String {
        format!("{:?}", self.args)
    }
}

impl ModelsArgs {
    /// Returns whether there are several models.
    pub(super) fn are_given(&self) -> bool {
        let limits = self.models_memory.is_some() || self.models_max.is_some();
        !self.models.is_empty() || limits || self.no_models_autoload
    }

    /// Returns where the models come from.
    fn sources(&self) -> Vec<PathBuf> {
        match self.models.is_empty() {
            true => vec![PathBuf::from(CACHE)],
            false => self.models.clone(),
        }
    }

    /// Returns the time after which a model is unloaded.
    pub(super) fn idle(&self) -> Option<Duration> {
        let seconds = self.idle_unload.and_then(|s| u64::try_from(s).ok());
        seconds.map(Duration::from_secs)
    }

    /// Returns the models, none of them loaded, with the options `given` on the command line and a
    /// folder for files of slots.
    pub(super) fn models(
        &self,
        given: &Given,
        slot_dir: Option<PathBuf>,
    ) -> Result<(Models, Vec<Arc<ServedModel>>), Failure> {
        let free = octavo_engine::free_memory();
        let memory = self.models_memory.or(free.map(|bytes| bytes / 4 * 3));
        // as of a single model, whose cache gets a quarter of the free memory
        let shared = Arc::new(Shared::new(memory.map(|bytes| bytes / 4), slot_dir));
        let source = Sources {
            all: self.sources(),
            given: given.clone(),
            shared,
        };
        let all = source.models()?;
        let models = Models {
            entries: all.iter().map(entry).collect(),
            limits: ModelLimits {
                memory,
                models: self.models_max.filter(|n| *n > 0).map(usize::from),
                idle: self.idle(),
                autoload: !self.no_models_autoload,
            },
            source: Some(Arc::new(source)),
        };
        Ok((models, all))
    }
}

/// Folders, files and the hub's cache, in which models are found.
struct Sources {
    all: Vec<PathBuf>,
    given: Given,
    shared: Arc<Shared>,
}

impl Sources {
    /// Returns their models.
    fn models(&self) -> Result<Vec<Arc<ServedModel>>, Failure> {
        let (given, shared) = (&self.given, &self.shared);
        let mut models = Vec::new();
        for source in &self.all {
            let found = match source {
                // it may be empty: models can be downloaded
                source if is_cache(source) => folder::of_cache(given, shared)?,
                source if source.is_dir() => folder::of_folder(source, given, shared)?,
                source => preset::models(source, given, shared)?,
            };
            if found.is_empty() && !is_cache(source) {
                let source = source.display();
                return Err(Failure::Input(format!(
                    "{source}: expected a model, found none"
                )));
            }
            models.extend(found.into_iter().map(Arc::new));
        }
        check_names(&models)?;
        for model in &models {
            let name = model.names.first().map_or("", String::as_str);
            model.args.check().map_err(|failure| failure.of(name))?;
        }
        Ok(models)
    }
}

fn is_cache(source: &Path) -> bool {
    source.as_os_str() == CACHE
}

/// Returns a model as the server takes it.
fn entry(model: &Arc<ServedModel>) -> ModelEntry {
    ModelEntry {
        names: model.names.clone(),
        loader: Some(Arc::clone(model) as Arc<dyn ModelLoader>),
        loaded: None,
        at_start: model.at_start,
    }
}

impl ModelSource for Sources {
    fn find(&self) -> Result<Vec<ModelEntry>, String> {
        let models = self.models().map_err(|failure| failure.message())?;
        Ok(models.iter().map(entry).collect())
    }

    fn download(
        &self,
        name: &str,
        report: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<(), String> {
        let downloaded = hub::download(name, report);
        downloaded.map_err(|failure| failure.message())
    }

    fn check(&self, name: &str) -> Result<(), String> {
        if !self.all.iter().any(|source| is_cache(source)) {
            return Err("this server's models do not come from the hub's cache".to_owned());
        }
        hub::check_repository(name).map_err(|failure| failure.message())
    }

    fn delete(&self, name: &str) -> Result<bool, String> {
        if !self.all.iter().any(|source| is_cache(source)) {
            return Ok(false);
        }
        let deleted = hub::remove(name).map_err(|failure| failure.message())?;
        Ok(deleted.is_some())
    }
}

/// Checks that no two models have a name in common.
fn check_names(models: &[Arc<ServedModel>]) -> Result<(), Failure> {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for model in models {
        let own = model.names.first().map_or("", String::as_str);
        for name in &model.names {
            if let Some(other) = seen.insert(name, own) {
                return Err(Failure::Input(format!(
                    "--models: expected different names, found {name:?} for {other:?} and {own:?}"
                )));
            }
        }
    }
    Ok(())
}

/// Describes the models of a server.
pub(super) fn describe(models: &Models) -> String {
    let limits = &models.limits;
    let memory = limits
        .memory
        .map(|bytes| format!("{} of memory", size(bytes)));
    let most = limits.models.map(|n| format!("{n} at a time"));
    let limits: Vec<String> = memory.into_iter().chain(most).collect();
    match limits.is_empty() {
        true => "loaded on request".to_owned(),
        false => format!("loaded on request; {}", limits.join(", ")),
    }
}
