//! Models by name: `hf:USER/REPO` and addresses, fetched where a path is expected, and the commands
//! that fetch, list and remove them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::Args;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_hub::{CachedModel, Event, FileSelector, Hub, RemoteModel};
use serde_json::json;

use super::failure::{Exit, Failure};
use super::terminal::{self, Progress};
use super::wording::size;

/// Options of downloads.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Downloads")]
pub(super) struct HubArgs {
    /// Download nothing: models named hf:USER/REPO come from the cache alone
    #[arg(long, global = true)]
    offline: bool,
    /// Token of the hub [default: HF_TOKEN, or the token that `hf auth login` keeps]
    #[arg(long, global = true, value_name = "TOKEN")]
    hf_token: Option<String>,
}

static SETTINGS: OnceLock<HubArgs> = OnceLock::new();

/// Paths of a model that was fetched.
#[derive(Clone, Debug)]
struct Fetched {
    model: PathBuf,
    /// Image encoder beside it, if it was wanted and there is one.
    mmproj: Option<PathBuf>,
}

/// Models that were fetched, by name and by whether the image encoder was wanted, so that a command
/// asks the hub once for each.
static FETCHED: Mutex<BTreeMap<(PathBuf, bool), Fetched>> = Mutex::new(BTreeMap::new());

/// Keeps the options for all downloads of the process.
pub(super) fn set_up(args: HubArgs) {
    SETTINGS.get_or_init(|| args);
}

fn hub() -> Result<Hub, Failure> {
    let hub = Hub::from_env()?;
    Ok(match SETTINGS.get() {
        Some(HubArgs { offline, hf_token }) => {
            let hub = hub.offline(*offline);
            match hf_token {
                Some(token) => hub.token(token.clone()),
                None => hub,
            }
        }
        None => hub,
    })
}

/// Reads a model's name; `None` if it is the path of a file. A file of that name comes first.
fn remote(name: &Path) -> Result<Option<RemoteModel>, Failure> {
    RemoteModel::of(name).map_err(|error| Failure::Usage(error.to_string()))
}

/// Returns whether this is a model's name and not the path of a file.
pub(super) fn is_remote(name: &Path) -> bool {
    matches!(remote(name), Ok(Some(_)) | Err(_))
}

/// Replaces a model's name by its path.
pub(super) fn fetch(name: &mut PathBuf) -> Result<(), Failure> {
    *name = model(name)?;
    Ok(())
}

/// Returns the path of an image encoder: of a repository, of the one beside its model.
pub(super) fn mmproj(name: &Path) -> Result<PathBuf, Failure> {
    match remote(name)? {
        Some(remote) => shown(|hub, sink| Ok(hub.image_encoder(&remote, sink)?)),
        None => Ok(name.to_owned()),
    }
}

/// Describes a model without an image encoder.
pub(super) fn no_mmproj(name: &Path) -> String {
    format!(
        "{}: expected an image encoder (mmproj) beside the model",
        name.display()
    )
}

/// Returns the path of the image encoder beside a model of the hub; `None` if there is none, or the
/// model is a file.
pub(super) fn mmproj_beside(name: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(fetched(name, true)?.mmproj)
}

/// Returns the path of a model: the name itself, or where it is once it is fetched.
pub(super) fn model(name: &Path) -> Result<PathBuf, Failure> {
    Ok(fetched(name, false)?.model)
}

/// Fetches a model, unless the name is a path, and with it the image encoder beside it if that is
/// wanted.
fn fetched(name: &Path, with_mmproj: bool) -> Result<Fetched, Failure> {
    let Some(remote) = remote(name)? else {
        return Ok(Fetched {
            model: name.to_owned(),
            mmproj: None,
        });
    };
    let key = (name.to_owned(), with_mmproj);
    let mut all = FETCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fetched) = all.get(&key) {
        return Ok(fetched.clone());
    }
    let fetched = shown(|hub, sink| {
        let (model, mmproj) = match with_mmproj {
            true => hub.model_and_sibling(&remote, "mmproj", sink)?,
            false => (hub.model(&remote, sink)?, None),
        };
        Ok(Fetched { model, mmproj })
    })?;
    // one listing tells both
    all.insert((name.to_owned(), false), fetched.clone());
    all.insert(key, fetched.clone());
    Ok(fetched)
}

/// Runs downloads with a bar for each file.
fn shown<T>(
    fetch: impl FnOnce(&Hub, &mut octavo_hub::EventSink<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let hub = hub()?;
    let mut current: Option<(String, Progress)> = None;
    let mut sink = |event: Event<'_>| match event {
        Event::HubIsAway { error } => {
            terminal::note(&format!(
                "octavo: warning: {error}; the cached model is used"
            ));
        }
        Event::Downloading { file, done, total } => {
            if current.as_ref().is_none_or(|(name, _)| name != file) {
                let of = total.map_or_else(String::new, |total| format!(", {}", size(total)));
                terminal::note(&format!("octavo: downloading {file}{of}"));
                current = Some((file.to_owned(), Progress::download("downloading")));
            }
            if let Some((_, bar)) = &current {
                bar.at(done, total.unwrap_or(done.saturating_add(1)));
            }
        }
    };
    let result = fetch(&hub, &mut sink);
    if let Some((_, bar)) = current {
        bar.clear();
    }
    result
}

/// Download a model into the cache, and print its path
///
/// The cache is the one of the hub's own programs (HF_HOME, HF_HUB_CACHE): what they have
/// downloaded is there, and they find what is downloaded here.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo pull hf:ggml-org/SmolLM3-3B-GGUF
  octavo pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
  octavo run hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 -p \"1+1=\"

Without QUANT, the file is the one of type Q4_K_M, else Q8_0, else the first.")]
pub(super) struct PullArgs {
    /// Model: hf:USER/REPO, hf:USER/REPO:QUANT, hf:USER/REPO/FILE or an address; @REVISION after
    /// REPO or FILE is a branch, tag or commit
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Download the model's image encoder (mmproj), too
    #[arg(long)]
    mmproj: bool,
}

/// List the models in the cache
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print a JSON object for each model
    #[arg(long)]
    json: bool,
}

/// Remove a model from the cache
///
/// Without QUANT or FILE, everything of the repository is removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo rm hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
  octavo rm hf:Qwen/Qwen3-0.6B-GGUF")]
pub(super) struct RmArgs {
    /// Model: hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE
    #[arg(value_name = "MODEL")]
    model: String,
}

/// Runs `octavo pull`.
pub(super) fn pull(args: &PullArgs) -> Result<Exit, Failure> {
    if !is_remote(&args.model) {
        let name = args.model.display();
        return Err(Failure::Usage(format!(
            "{name}: expected hf:USER/REPO or an address"
        )));
    }
    let fetched = fetched(&args.model, args.mmproj)?;
    if args.mmproj && fetched.mmproj.is_none() {
        return Err(Failure::Input(no_mmproj(&args.model)));
    }
    for path in [Some(fetched.model), fetched.mmproj].into_iter().flatten() {
        terminal::print(format!("{}\n", path.display()).as_bytes())?;
    }
    Ok(Exit::Done)
}

/// Runs `octavo list`.
pub(super) fn list(args: &ListArgs) -> Result<Exit, Failure> {
    let cache = octavo_hub::Cache::from_env()?;
    let models = cache.models();
    if models.is_empty() && !args.json {
        terminal::note(&format!(
            "octavo: no models in {} (octavo pull downloads one)",
            cache.path().display()
        ));
    }
    let mut text = String::new();
    if args.json {
        for model in &models {
            let about = About::of(model);
            let object = json!({
                "version": super::answer::VERSION,
                "name": name(model),
                "repo": model.repo,
                "file": model.file,
                "quantization": model.quantization,
                "architecture": about.as_ref().map(|about| &about.architecture),
                "bytes": model.bytes,
                "fits": about.as_ref().and_then(|about| about.fits),
                "path": model.path,
            });
            text.push_str(&format!("{object}\n"));
        }
    } else {
        let widest = models.iter().map(|model| name(model).len()).max();
        for model in &models {
            let about = About::of(model).map_or_else(|| "unreadable".to_owned(), About::line);
            text.push_str(&format!(
                "{:width$}  {:>10}  {about}\n",
                name(model),
                size(model.bytes),
                width = widest.unwrap_or(0)
            ));
        }
    }
    terminal::print(text.as_bytes())?;
    Ok(Exit::Done)
}

/// Returns the name that fetches a cached model.
fn name(model: &CachedModel) -> String {
    format!("hf:{}/{}", model.repo, model.file)
}

/// Facts of a cached model that its file tells.
struct About {
    architecture: String,
    /// Whether the free memory has room for it; `None` if that is not known.
    fits: Option<bool>,
}

impl About {
    /// Reads the file; `None` if it is no GGUF file.
    fn of(model: &CachedModel) -> Option<About> {
        let gguf = Gguf::open(&model.path, &OpenOptions::default()).ok()?;
        Some(About {
            architecture: gguf.str("general.architecture").ok()??.to_owned(),
            fits: octavo_engine::fits(&gguf, model.bytes),
        })
    }

    fn line(self) -> String {
        match self.fits {
            Some(false) => self.architecture + ", larger than the free memory",
            _ => self.architecture,
        }
    }
}

/// Reads the name of a repository's model, with or without hf: before it.
fn repository(name: &str) -> Result<(String, FileSelector), Failure> {
    let usage = |error: octavo_hub::Error| Failure::Usage(error.to_string());
    let text = name.strip_prefix("hf:").unwrap_or(name);
    let RemoteModel::Repository { repo, file, .. } =
        RemoteModel::repository(text).map_err(usage)?
    else {
        unreachable!("a repository is read as one");
    };
    Ok((repo, file))
}

/// Checks that a name is that of a repository's model.
pub(super) fn check_repository(name: &str) -> Result<(), Failure> {
    repository(name).map(drop)
}

/// Downloads a repository's model, and the image encoder beside it if there is one. `report` takes
/// a file, its bytes so far, and all of its bytes if that is known.
pub(super) fn download(
    name: &str,
    report: &mut dyn FnMut(&str, u64, Option<u64>),
) -> Result<(), Failure> {
    let text = name.strip_prefix("hf:").unwrap_or(name);
    let remote =
        RemoteModel::repository(text).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut sink = |event: Event<'_>| match event {
        Event::HubIsAway { error } => {
            terminal::note(&format!(
                "octavo: warning: {error}; the cached model is used"
            ));
        }
        Event::Downloading { file, done, total } => report(file, done, total),
    };
    hub()?.model_and_sibling(&remote, "mmproj", &mut sink)?;
    Ok(())
}

/// Removes a repository's model from the cache: without a quantization or file, all of the
/// repository. Returns the bytes that are free now, unless they are not known; `None` if the model
/// is not there.
pub(super) fn remove(name: &str) -> Result<Option<Option<u64>>, Failure> {
    let (repo, file) = repository(name)?;
    let cache = octavo_hub::Cache::from_env()?;
    let is_selected = |model: &CachedModel| match &file {
        FileSelector::Path(path) => model.file == *path,
        FileSelector::Quantization(Some(tag)) => {
            let own = model.quantization.as_deref();
            own.is_some_and(|own| own.eq_ignore_ascii_case(tag))
        }
        FileSelector::Quantization(None) => true,
    };
    if file == FileSelector::Quantization(None) {
        return Ok(cache.remove(&repo)?.then_some(None));
    }
    let models = cache.models();
    let own: Vec<&CachedModel> = models
        .iter()
        .filter(|model| model.repo == repo && is_selected(model))
        .collect();
    if own.is_empty() {
        return Ok(None);
    }
    let mut freed = 0;
    for model in own {
        freed += cache.remove_file(&repo, &model.file)?;
    }
    Ok(Some(Some(freed)))
}

/// Runs `octavo rm`.
pub(super) fn rm(args: &RmArgs) -> Result<Exit, Failure> {
    match remove(&args.model)? {
        Some(freed) => {
            if let Some(freed) = freed {
                terminal::note(&format!("octavo: {} freed", size(freed)));
            }
            Ok(Exit::Done)
        }
        None => Err(Failure::Input(format!(
            "{}: not in the cache (octavo list)",
            args.model
        ))),
    }
}
