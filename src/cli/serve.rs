//! `octavo serve`: serves many requests at once over HTTP.

mod log;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use octavo_engine::{BatchOptions, Context, EngineOptions, kv_bytes};
use octavo_kernels::PAGE_POSITIONS;
use octavo_model::Hparams;
use octavo_server::{ImageHost, Options, Stop};
use octavo_vision::EncoderCache;

use super::args::{ComputeArgs, ModelArgs, SampleArgs, SpeculativeArgs, TemplateArgs};
use super::embed::PoolingName;
use super::failure::{Exit, Failure};
use super::ranks::NumaArgs;
use super::vision::MmprojArgs;
use super::{context, load, signal, terminal, values};
use log::LogArgs;

/// Name of the built-in model.
const DEMO_NAME: &str = "tiny-qwen3";

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
  curl http://127.0.0.1:8080/v1/chat/completions -d \
'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Open the address in a browser for a page to chat on. docs/serving.md has the rest.")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    scheduling: SchedulingArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// Start a new answer after a final assistant message instead of continuing it
    #[arg(long, help_heading = "Chat template")]
    no_prefill_assistant: bool,
    /// Continue a final assistant message (the default)
    #[arg(long, hide = true, conflicts_with = "no_prefill_assistant")]
    prefill_assistant: bool,
    #[command(flatten)]
    mmproj: MmprojArgs,
    #[command(flatten)]
    fetch: FetchArgs,
    #[command(flatten)]
    sample: SampleArgs,
    /// Maximum number of tokens for requests that give none; -1, or not given: as the interface
    /// has it
    #[arg(short = 'n', long, visible_alias = "predict", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=1 << 31), help_heading = "Generation")]
    n_predict: Option<i64>,
    /// How embeddings are pooled for requests that do not say: a vector for each token, which only
    /// /embeddings and /embedding have, the mean, the first token's or the last one's [default: as
    /// the model has it, or else mean]
    #[arg(long, value_name = "HOW", value_enum, help_heading = "Embeddings")]
    pooling: Option<PoolingName>,
    #[command(flatten)]
    speculative: SpeculativeArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    compute: ComputeArgs,
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
    /// Other names of the model in requests and answers, besides the file's stem
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    alias: Vec<String>,
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
struct FetchArgs {
    /// Fetch images that requests name by http and https, only from these hosts: names or
    /// addresses, with or without a port; or public, for every host with a public address [default:
    /// none are fetched]
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "mmproj")]
    fetch_images: Vec<ImageHost>,
    /// Folder whose files requests may name as images: file://photo.png is the file photo.png in it
    /// [default: none]
    #[arg(long, value_name = "FOLDER", requires = "mmproj")]
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

/// Options of scheduling and of the KV cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduling and KV cache")]
struct SchedulingArgs {
    /// Maximum number of requests that run at a time; others wait (also: -np N)
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    parallel: u16,
    /// Size of the KV cache of all requests, such as 2G [default: one context for each running
    /// request, but at most a quarter of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = values::size, conflicts_with = "kv_pages")]
    kv_memory: Option<u64>,
    /// Size of the KV cache in pages of 16 tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_pages: Option<u32>,
    /// Maximum number of waiting requests; more are refused
    #[arg(long, value_name = "N", default_value_t = 128)]
    queue: u16,
    /// Target time in milliseconds of a prefill step while other requests generate (chunked
    /// prefill)
    #[arg(long, alias = "stall", value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=60_000))]
    prefill_budget_ms: u32,
    /// Disable prefix caching: prefill every prompt from its beginning
    #[arg(long)]
    no_cache_prompt: bool,
    /// Reuse the KV cache of generated tokens in later prompts, without prefilling them again:
    /// faster in chats, but texts then depend on earlier requests
    #[arg(long)]
    reuse_generated: bool,
    /// Seconds for running requests to finish after a stop signal
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain: u16,
}

/// Runs the command.
pub(super) fn run(args: &ServeArgs) -> Result<Exit, Failure> {
    octavo_kernels::share_heap();
    let stop = Stop::default();
    let serving = signal::install_serving({
        let stop = stop.clone();
        move || stop.stop()
    })?;
    let options = options(args)?;
    args.speculative.check()?;
    args.template.check()?;
    args.fetch.check()?;
    args.mmproj.check()?;
    check_address(&args.listen)?;
    let tower = args.mmproj.path(&args.model)?;
    let (engine_options, context) = engine_options(args)?;
    let (speculative, tower) = (&args.speculative, tower.as_deref());
    let engine = load::any_engine_with_draft(&args.model, engine_options, speculative, tower)?;
    let encoder_cache = args.mmproj.load(&args.model, &engine, &args.compute)?;
    let options = with_encoder_cache(options, encoder_cache);
    let log = args.log.start()?;
    let mut options = Options {
        log: args.log.sink(&log),
        ..options
    };
    if args.template.is_set() {
        options.template = args.template.load(&engine)?;
    }
    serving.begin();
    let ready = |address: std::net::SocketAddr| {
        let name = options.names.first().map_or("", String::as_str);
        terminal::tell(&format!(
            "octavo: serving {name} on http://{address}{} ({}; {})",
            options.prefix,
            engine.describe(),
            context::reason_of(&engine, &context)
        ));
    };
    let mut warn = |line: &str| terminal::warn([line.to_owned()]);
    octavo_server::serve(&engine, options.clone(), &stop, ready, &mut warn)?;
    Ok(Exit::Done)
}

/// Adds the image encoder to the options, if there is one.
fn with_encoder_cache(mut options: Options, encoder_cache: Option<EncoderCache>) -> Options {
    if let Some(encoder_cache) = encoder_cache {
        options.max_body = options.max_body.max(IMAGES_BODY);
        options.encoder_cache = Some(Arc::new(encoder_cache));
    }
    options
}

fn options(args: &ServeArgs) -> Result<Options, Failure> {
    let (listen, scheduling) = (&args.listen, &args.scheduling);
    Ok(Options {
        host: listen.host.clone(),
        port: listen.port,
        names: names(args),
        strict_model: listen.strict_model,
        prefill_assistant: !args.no_prefill_assistant,
        keys: keys(listen)?,
        image_hosts: args.fetch.fetch_images.clone(),
        media_folder: args.fetch.media_path.clone(),
        pooling: args.pooling.map(PoolingName::pooling),
        slots: !listen.no_slots,
        origins: listen.cors_origin.clone(),
        allowed_hosts: listen.allow_host.clone(),
        prefix: listen.api_prefix.clone().unwrap_or_default(),
        vllm_names: listen.metrics_prefix == MetricsPrefix::Vllm,
        drain: Duration::from_secs(scheduling.drain.into()),
        batch: BatchOptions {
            prefill_budget: Duration::from_millis(scheduling.prefill_budget_ms.into()),
            prefixes: !scheduling.no_cache_prompt,
            reuse_generated: scheduling.reuse_generated,
            ..Options::default().batch
        },
        queue: scheduling.queue.into(),
        lookup: args.speculative.lookup(),
        draft_max: args.speculative.draft_max(),
        n_predict: args.n_predict.and_then(|n| usize::try_from(n).ok()),
        sampling: args.sample.settings()?,
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

/// Returns the model's names: the alias, then the file's stem.
fn names(args: &ServeArgs) -> Vec<String> {
    let stem = match args.model.name() {
        Some(path) => path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned()),
        None => Some(DEMO_NAME.to_owned()),
    };
    let aliases = args.listen.alias.iter().filter(|name| !name.is_empty());
    aliases.cloned().chain(stem).collect()
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

/// Returns the engine's options, with the number of sequences and of KV cache positions, and the
/// context with the reason for its size.
fn engine_options(args: &ServeArgs) -> Result<(EngineOptions, Context), Failure> {
    let scheduling = &args.scheduling;
    let mut options = args.compute.options()?;
    options.sessions = scheduling.parallel.into();
    let gguf = load::source_quietly(&args.model)?.open(true)?;
    let hparams = Hparams::from_gguf(&gguf)?;
    let context = Context::of(&gguf, &options)?;
    if !hparams.is_causal() && !args.compute.has_batch() {
        // a model without causal attention reads a text in one step
        options.batch = Some(options.batch().max(context.positions));
    }
    let position = kv_bytes(&hparams, options.kv_type, 1).max(1);
    let fitting = |bytes: u64| usize::try_from(bytes / position).unwrap_or(usize::MAX);
    options.kv_positions = match (scheduling.kv_pages, scheduling.kv_memory) {
        (Some(pages), _) => Some(pages as usize * PAGE_POSITIONS),
        (None, Some(bytes)) => Some(fitting(bytes).max(PAGE_POSITIONS)),
        (None, None) => None,
    };
    context.apply(&mut options);
    let all = || context.of_all(scheduling.parallel.into());
    options.kv_positions = options.kv_positions.or_else(|| Some(all()));
    Ok((options, context))
}
