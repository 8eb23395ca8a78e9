//! `octavo serve`: serves many requests at once over HTTP.

mod folder;
mod ini;
mod listen;
mod log;
mod models;
mod preset;
mod served;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use octavo_server::{Address, ImageHost, Models, Options, Stop};

use super::failure::{Exit, Failure};
use super::ranks::NumaArgs;
use super::{context, signal, terminal};
use listen::ListenArgs;
use log::LogArgs;
use models::{ModelsArgs, ServedModel};
use preset::Given;
use served::{ServedArgs, Shared};

/// Maximum size in bytes of a request body with images.
const IMAGES_BODY: usize = 48 << 20;

/// Serve many requests at once over HTTP: OpenAI's and Anthropic's interfaces, and a chat page
///
/// One line on stderr gives the address when the server is ready. SIGTERM or Ctrl-C: the server
/// finishes running requests, then exits; a second signal ends it at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo serve                                   the built-in demo model on 127.0.0.1:8080
  octavo serve model.gguf --port 8000 --parallel 32
  octavo serve model.gguf --mmproj mmproj.gguf
  octavo serve model.gguf --mmproj mmproj.gguf --fetch-images public,10.0.0.5:8000
  octavo serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  octavo serve model.gguf --ssl-cert-file cert.pem --ssl-key-file key.pem
  octavo serve model.gguf --host /run/octavo.sock
  octavo serve --models ~/models --models-memory 24G
  octavo serve --models models.toml --idle-unload 600
  octavo serve --models llama-presets.ini
  octavo serve --models hf:                      what octavo pull has downloaded
  curl http://127.0.0.1:8080/v1/chat/completions -d \
'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Open the address in a browser for a page to chat on. docs/serving.md has the rest.")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    served: ServedArgs,
    #[command(flatten)]
    models: ModelsArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    fetch: FetchArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    pub(super) numa: NumaArgs,
}

/// Options of images that requests name by URL.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
#[command(group = clap::ArgGroup::new("images").args(["mmproj", "models"]).multiple(true))]
struct FetchArgs {
    /// Fetch images that requests name by http and https, only from these hosts: names or
    /// addresses, with or without a port; or public, for every host with a public address [default:
    /// none are fetched]
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "images")]
    fetch_images: Vec<ImageHost>,
    /// Folder whose files requests may name as images: file://photo.png is the file photo.png in it
    /// [default: none]
    #[arg(long, value_name = "FOLDER", requires = "images")]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    media_path: Option<PathBuf>,
}

impl FetchArgs {
    /// Checks that the folder of images is one.
    fn check(&self) -> Result<(), Failure> {
        let Some(path) = &self.media_path else {
            return Ok(());
        };
        let failed =
            |what: String| Failure::Input(format!("--media-path {}: {what}", path.display()));
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(failed("expected a folder, found a file".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    octavo_kernels::share_heap();
    let stop = Stop::default();
    let mut options = options(args)?;
    let serving = signal::install_serving(
        {
            let stop = stop.clone();
            move || stop.stop()
        },
        options.tls.clone().map(|tls| move || listen::reload(&tls)),
    )?;
    args.fetch.check()?;
    args.listen.check(&options)?;
    let (models, what) = match args.models.are_given() {
        true => several(args, &mut options)?,
        false => one(args, &mut options)?,
    };
    let log = args.log.start()?;
    let options = Options {
        log: args.log.sink(&log),
        ..options
    };
    serving.begin();
    let (prefix, is_secure) = (options.prefix.clone(), options.tls.is_some());
    let ready = |addresses: &[Address]| {
        let (name, more) = &what;
        let all = addresses.iter().map(|address| match (address, is_secure) {
            (Address::Port(port), true) => format!("https://{port}{prefix}"),
            (Address::Port(port), false) => format!("http://{port}{prefix}"),
            (Address::Socket(_), _) => address.to_string(),
        });
        let all = all.collect::<Vec<_>>().join(" and ");
        terminal::tell(&format!("octavo: serving {name} on {all} ({more})"));
    };
    let mut warn = |line: &str| terminal::warn([line.to_owned()]);
    octavo_server::serve(models, options, &stop, ready, &mut warn)?;
    Ok(Exit::Done)
}

/// Loads the only model; describes it.
fn one(args: &ServeArgs, options: &mut Options) -> Result<(Models, (String, String)), Failure> {
    let served = &args.served;
    served.check()?;
    let shared = Arc::new(Shared::new(None, args.listen.slot_save_path.clone()));
    let (loaded, context) = served.load(&shared)?;
    let engine = &loaded.engine;
    let reason = context::reason_of(engine, &context);
    let more = format!("{}; {reason}", engine.describe());
    if loaded.options.encoder_cache.is_some() {
        options.max_body = options.max_body.max(IMAGES_BODY);
    }
    let names = served.names();
    let name = names.first().cloned().unwrap_or_default();
    let mut models = Models::one(names.clone(), loaded);
    if let Some(idle) = args.models.idle() {
        let args = preset::parse(&BTreeMap::new(), &args.given).map_err(Failure::Usage)?;
        models.limits.idle = Some(idle);
        models.entries[0].loader = Some(Arc::new(ServedModel {
            names,
            args,
            at_start: true,
            shared,
        }));
    }
    Ok((models, (name, more)))
}

/// Returns several models, which are loaded later; describes them.
fn several(args: &ServeArgs, options: &mut Options) -> Result<(Models, (String, String)), Failure> {
    if super::ranks::tp_group().is_some() {
        let what = "--models: expected one process, not several ranks";
        return Err(Failure::Usage(what.to_owned()));
    }
    let (models, served) = args
        .models
        .models(&args.given, args.listen.slot_save_path.clone())?;
    // models that come later may take images
    options.max_body = options.max_body.max(IMAGES_BODY);
    let name = match served.len() {
        1 => "1 model".to_owned(),
        n => format!("{n} models"),
    };
    let more = models::describe(&models);
    Ok((models, (name, more)))
}

fn options(args: &ServeArgs) -> Result<Options, Failure> {
    Ok(Options {
        image_hosts: args.fetch.fetch_images.clone(),
        media_folder: args.fetch.media_path.clone(),
        ..args.listen.options()?
    })
}
