//! Serves a model over HTTP: OpenAI's interface, llama-server's own routes, numbers for Prometheus,
//! and a page. An endpoint turns a request into one for the engine's batch and each event into a
//! piece of the answer; it knows no tensor and no page of the cache.

mod app;
mod auth;
mod demand;
mod error;
mod fetch;
mod fields;
mod http;
mod images;
mod json;
mod logging;
mod metrics;
mod page;
mod params;
mod prompt;
mod routes;
mod sse;
mod wire;
mod work;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use octavo_engine::sample::SamplerDefaults;
use octavo_engine::speculate::Lookup;
use octavo_engine::{Batch, BatchOptions, Engine, Front};
use octavo_text::chat::ChatTemplate;
use octavo_vision::Sight;
use tokio::sync::watch;

use app::App;
use fetch::{Bounds, Fetcher};
pub use fetch::{HostError, PictureHost};
pub use logging::{LogEvent, LogSink, RequestRecord};

/// How long a thread beside those that talk to clients stays without work. The allocator keeps what
/// a thread freed for that thread, until it ends.
const IDLE: Duration = Duration::from_millis(500);

/// What answers say they come from.
pub(crate) const FINGERPRINT: &str = concat!("octavo-", env!("CARGO_PKG_VERSION"));

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address or name to listen on.
    pub host: String,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// What the model is called; the first is the name that answers carry.
    pub names: Vec<String>,
    /// Refuse requests for models of other names.
    pub strict_model: bool,
    /// The chat template, in place of the file's.
    pub template: Option<ChatTemplate>,
    /// Whether the answer goes on with a last message of the assistant.
    pub prefill_assistant: bool,
    /// Whoever asks must have one of these; everybody may if there are none.
    pub keys: Vec<String>,
    /// Sites whose pages may use the server, such as `https://example.org`; `*` for all.
    pub origins: Vec<String>,
    /// Names that requests may call this machine by, beside its addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// What stands before every route, such as `/octavo`; empty for nothing.
    pub prefix: String,
    /// Takes a record of each request, and warnings.
    pub log: LogSink,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// How long requests under way may take to end after the server is told to stop.
    pub drain: Duration,
    /// Requests that may wait for a place beside those that run; the texts of one count once.
    pub queue: usize,
    /// How requests are worked on together.
    pub batch: BatchOptions,
    /// Whether what a text said before is a guess of how it goes on.
    pub lookup: Lookup,
    /// Sampling settings of requests that do not give them; those that are open are the model's
    /// own, or llama-server's.
    pub sampling: SamplerDefaults,
    /// Whether it listens to this machine alone. Set when it begins.
    pub is_local: bool,
    /// What pictures are seen with; without it, none are taken.
    pub sight: Option<Arc<Sight>>,
    /// Whom pictures may be fetched from that requests name by an address; with none, no picture is
    /// fetched.
    pub picture_hosts: Vec<PictureHost>,
    /// Whether its numbers carry vLLM's names beside our own.
    pub vllm_names: bool,
    /// What identifiers are made from, so that nobody guesses another's.
    pub secret: [u8; 16],
}

impl Default for Options {
    fn default() -> Self {
        Options {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            names: vec!["octavo".to_owned()],
            strict_model: false,
            template: None,
            prefill_assistant: true,
            keys: Vec::new(),
            origins: Vec::new(),
            allowed_hosts: Vec::new(),
            prefix: String::new(),
            log: LogSink::default(),
            max_body: 8 << 20,
            drain: Duration::from_secs(30),
            queue: 128,
            batch: BatchOptions {
                // what may wait is decided by whole requests, before they come here
                queue: usize::MAX,
                ..BatchOptions::default()
            },
            lookup: Lookup::Auto,
            sampling: SamplerDefaults::default(),
            is_local: true,
            sight: None,
            picture_hosts: Vec::new(),
            vllm_names: false,
            secret: random(),
        }
    }
}

/// Random bytes: the standard library's own source of them, which seeds its hash tables.
fn random() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0; 16];
    for half in bytes.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(0).to_ne_bytes());
    }
    bytes
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port}: {source}")]
    Listen {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The chat template is broken.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
}

/// Tells a server to stop. Clones speak to the same server.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<u32>);

impl Default for Stop {
    fn default() -> Self {
        Stop(watch::Sender::new(0))
    }
}

impl Stop {
    /// The first time: takes nothing new, and stops when all is done. After that: at once.
    pub fn stop(&self) {
        self.0.send_modify(|times| *times += 1);
    }

    async fn times(&self, n: u32) {
        let mut receiver = self.0.subscribe();
        // the sender lives as long as self
        let _ = receiver.wait_for(|times| *times >= n).await;
    }
}

/// Serves a model until it is told to stop. `ready` learns the address once it takes requests, and
/// `warn` what is worth knowing.
///
/// # Errors
/// If the port cannot be opened.
pub fn serve(
    engine: &Engine,
    mut options: Options,
    stop: &Stop,
    ready: impl FnOnce(SocketAddr),
    warn: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .max_blocking_threads(app::THREADS + fetch::LOOKUPS)
        .thread_keep_alive(IDLE)
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let template = match (options.template.take(), engine.chat_template()) {
        (Some(template), _) => Some(template),
        (None, Ok(template)) => template,
        (None, Err(error)) => {
            warn(&format!("no chats: {error}"));
            None
        }
    };
    let fetcher = fetcher(&options, warn);
    let served = runtime.block_on(async {
        let listened = http::listen(&options.host, options.port).await;
        let (listener, address) = listened.map_err(|source| Error::Listen {
            host: options.host.clone(),
            port: options.port,
            source,
        })?;
        options.is_local = is_local(address.ip());
        let batch = Batch::new(engine, options.batch.clone());
        let front = Front::spawn(batch).map_err(Error::Thread)?;
        let drain = options.drain;
        let app = Arc::new(App::new(
            engine.clone(),
            front.clone(),
            template,
            fetcher,
            options,
        ));
        ready(address);
        let stopped = async {
            stop.times(1).await;
            front.close(drain);
            let done = async {
                while !front.has_ended() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = done => {}
                () = stop.times(2) => front.close(Duration::ZERO),
            }
        };
        http::serve(listener, routes::router(&app), stopped).await;
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// What fetches pictures, if that is allowed and they are taken.
fn fetcher(options: &Options, warn: &mut dyn FnMut(&str)) -> Option<Fetcher> {
    let sight = options.sight.as_ref()?;
    if options.picture_hosts.is_empty() {
        return None;
    }
    let roots = fetch::authorities();
    if roots.is_empty() {
        warn("no certificate authorities found on this system: no picture is fetched over https");
    }
    let hosts = options.picture_hosts.clone();
    let bounds = Bounds::of_bytes(sight.most_bytes());
    Some(Fetcher::new(hosts, bounds, roots))
}

fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback()
}
