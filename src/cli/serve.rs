//! `octavo serve`: serves many requests at once over HTTP.

mod folder;
mod log;
mod models;
mod preset;
mod served;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use octavo_server::{ImageHost, Models, Options, Stop};

use super::failure::{Exit, Failure};
use super::ranks::NumaArgs;
use super::{context, signal, terminal};
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
  octavo serve --models ~/models --models-memory 24G
  octavo serve --models models.toml --idle-unload 600
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

/// Options of the HTTP server.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP server")]
struct ListenArgs {
    /// Address or host name to listen on; 0.0.0.0 is all addresses of this machine
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Refuse requests that name another model
    #[arg(long)]
    strict_model: bool,
    /// Accept any model name (the default)
    #[arg(long, hide = true, conflicts_with = "strict_model")]
    any_model: bool,
    /// API key that requests must carry; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys, one per line
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    api_key_file: Option<PathBuf>,
    /// Allowed CORS origins, with their schemes and without paths; localhost allows all pages that
    /// this machine serves, * allows all
    #[arg(long, value_name = "ORIGIN", value_parser = origin, value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// Another host name that requests may use for this server, besides its addresses and
    /// localhost, such as that of a reverse proxy; * allows any
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    allow_host: Vec<String>,
    /// Path prefix of every route, such as /octavo, for a reverse proxy that passes paths on
    /// unchanged
    #[arg(long, value_name = "PATH", value_parser = prefix)]
    api_prefix: Option<String>,
    /// Names of the metrics at /metrics: octavo's own, or vLLM's as well, for routers and
    /// autoscalers that read those
    #[arg(long, value_name = "NAME", value_enum, default_value_t = MetricsPrefix::Octavo)]
    metrics_prefix: MetricsPrefix,
    /// Do not show the running requests at /slots
    #[arg(long)]
    no_slots: bool,
    /// Show them (the default)
    #[arg(long, hide = true, conflicts_with = "no_slots")]
    slots: bool,
    /// Folder for files of slots, which POST /slots/ID?action=save|restore writes and reads
    /// [default: none]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    slot_save_path: Option<PathBuf>,
    /// Maximum number of waiting requests; more are refused
    #[arg(long, value_name = "N", default_value_t = 128)]
    queue: u16,
    /// Seconds for running requests to finish after a stop signal
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain: u16,
}

/// Prefix of the names of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MetricsPrefix {
    Octavo,
    Vllm,
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
    let serving = signal::install_serving({
        let stop = stop.clone();
        move || stop.stop()
    })?;
    let mut options = options(args)?;
    args.fetch.check()?;
    check_address(&args.listen)?;
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
    let prefix = options.prefix.clone();
    let ready = |address: std::net::SocketAddr| {
        let (name, more) = &what;
        terminal::tell(&format!(
            "octavo: serving {name} on http://{address}{prefix} ({more})"
        ));
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
    for model in &served {
        let name = model.names.first().map_or("", String::as_str);
        model.args.check().map_err(|failure| failure.of(name))?;
        if model.args.mmproj.mmproj.is_some() {
            options.max_body = options.max_body.max(IMAGES_BODY);
        }
    }
    let name = match served.len() {
        1 => "1 model".to_owned(),
        n => format!("{n} models"),
    };
    let more = models::describe(&models);
    Ok((models, (name, more)))
}

fn options(args: &ServeArgs) -> Result<Options, Failure> {
    let listen = &args.listen;
    Ok(Options {
        host: listen.host.clone(),
        port: listen.port,
        strict_model: listen.strict_model,
        keys: keys(listen)?,
        image_hosts: args.fetch.fetch_images.clone(),
        media_folder: args.fetch.media_path.clone(),
        slots: !listen.no_slots,
        slot_folder: listen.slot_save_path.clone(),
        origins: listen.cors_origin.clone(),
        allowed_hosts: listen.allow_host.clone(),
        prefix: listen.api_prefix.clone().unwrap_or_default(),
        vllm_names: listen.metrics_prefix == MetricsPrefix::Vllm,
        drain: Duration::from_secs(listen.drain.into()),
        queue: listen.queue.into(),
        ..Options::default()
    })
}

/// Checks that the address is free, because loading a model takes long.
fn check_address(listen: &ListenArgs) -> Result<(), Failure> {
    let (host, port) = (listen.host.as_str(), listen.port);
    let refused = |error| {
        Failure::Input(format!(
            "cannot listen on {host}:{port}: {error} (--host, --port)"
        ))
    };
    // of several ranks, one listens later
    if super::ranks::tp_group().is_some() {
        return Ok(());
    }
    TcpListener::bind((host, port)).map(drop).map_err(refused)
}

/// Parses a CORS origin: a scheme and a host, `localhost` or `*`.
fn origin(text: &str) -> Result<String, String> {
    let host = text.split_once("://").map(|(_, host)| host);
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ' ']);
    match matches!(text, "*" | "localhost") || host.is_some_and(is_host) {
        true => Ok(text.to_owned()),
        false => Err(
            "expected a scheme and a host, such as https://example.org, localhost or *".to_owned(),
        ),
    }
}

/// Parses a host name without a port.
fn host_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(['/', ' ', ':', ',', '=']) {
        true => Err("expected a name such as example.org, without a port, or *".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn keys(listen: &ListenArgs) -> Result<Vec<String>, Failure> {
    let mut keys = listen.api_key.clone();
    if let Some(path) = &listen.api_key_file {
        let failed = |error| Failure::Input(format!("--api-key-file {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let lines = text.lines().map(str::trim);
        let own = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(own.map(str::to_owned));
        if keys.len() == before {
            return Err(no_keys(path));
        }
    }
    match keys.iter().any(|key| key.trim().is_empty()) {
        true => Err(Failure::Usage(
            "--api-key: expected a key that is not empty".to_owned(),
        )),
        false => Ok(keys),
    }
}

/// Parses a path prefix; drops slashes at its end. Its characters need no escape.
fn prefix(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let mut parts = path.strip_prefix('/').unwrap_or_default().split('/');
    match parts.all(|part| !part.is_empty() && part.chars().all(is_plain)) {
        true => Ok(path.to_owned()),
        false => Err("expected a path such as /octavo".to_owned()),
    }
}

fn no_keys(path: &Path) -> Failure {
    Failure::Input(format!(
        "--api-key-file {}: expected at least one key, one a line",
        path.display()
    ))
}
