//! Serves models over HTTP: OpenAI's, Anthropic's and Ollama's APIs, llama-server's own routes,
//! Prometheus metrics, and a web page. An endpoint converts a request into one for the engine's
//! batch and each event into a piece of the answer; it contains no tensor or KV cache code.

mod app;
mod auth;
mod demand;
mod error;
mod fetch;
mod fields;
mod http;
mod images;
mod json;
mod listen;
mod local;
mod logging;
mod metrics;
mod model;
mod models;
mod page;
mod params;
mod progress;
mod prompt;
mod registry;
mod routes;
mod server;
mod sse;
mod stored;
mod tls;
mod wire;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use octavo_engine::Lookup;
use octavo_engine::sample::SamplerDefaults;
use octavo_engine::{BatchOptions, ContextShift, Pooling};
use octavo_grammar::ReasoningBudget;
use octavo_text::chat::ChatTemplate;
use octavo_vision::EncoderCache;
use tokio::sync::watch;

pub use fetch::{HostError, ImageHost};
use listen::Listeners;
pub use listen::{Address, ListenError, OpenedSocket, check_listen, socket_path};
pub use local::{LocalAnswer, LocalChats, RequestError};
pub use logging::{LogEvent, LogSink, RequestRecord};
pub use models::{LoadedModel, ModelEntry, ModelLimits, ModelLoader, ModelSource, Models};
use server::Server;
pub use tls::{Tls, TlsError};

/// Idle time before a blocking thread ends. The allocator retains the memory that a thread freed
/// until the thread ends.
const IDLE: Duration = Duration::from_millis(500);

/// `system_fingerprint` of answers.
pub(crate) const FINGERPRINT: &str = concat!("octavo-", env!("CARGO_PKG_VERSION"));

/// Server options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address or name to listen on, or the path of a Unix socket ([`socket_path`]); several have
    /// commas between them.
    pub host: String,
    /// Port; 0 for any free one.
    pub port: u16,
    /// Sockets to listen on in place of the host and port, if there are any.
    pub opened: Vec<OpenedSocket>,
    /// Certificate; without one, connections are not encrypted.
    pub tls: Option<Tls>,
    /// Whether to refuse requests for other model names.
    pub strict_model: bool,
    /// Accepted API keys; if empty, no key is needed.
    pub keys: Vec<String>,
    /// Origins whose pages may use the server, such as `https://example.org`; `*` for all,
    /// `localhost` for all pages that this machine serves.
    pub origins: Vec<String>,
    /// Host names of this machine accepted in requests, besides its addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Path prefix of every route, such as `/octavo`; may be empty.
    pub prefix: String,
    /// Receives a record of each request, and warnings.
    pub log: LogSink,
    /// Largest request body, in bytes.
    pub max_body: usize,
    /// Time for running requests to finish after a stop.
    pub drain: Duration,
    /// Requests that may wait besides the running ones; a request with several texts counts once.
    pub queue: usize,
    /// Whether it listens on ports of loopback addresses only, which every user and browser of this
    /// machine can reach. Set at start-up.
    pub is_local: bool,
    /// Hosts that images given by URL may be fetched from; if empty, none are fetched.
    pub image_hosts: Vec<ImageHost>,
    /// Folder whose files requests may name as images, by `file://` and a path in it.
    pub media_folder: Option<PathBuf>,
    /// Folder that keeps stored responses; without one they are in memory only.
    pub response_store: Option<PathBuf>,
    /// Whether `/slots` shows the running requests.
    pub slots: bool,
    /// Folder for the files of slots, for `POST /slots/{id}`.
    pub slot_folder: Option<PathBuf>,
    /// Whether metrics are also exported under vLLM's names.
    pub vllm_names: bool,
    /// Secret for generated ids, so that they cannot be guessed.
    pub secret: [u8; 16],
}

impl Default for Options {
    fn default() -> Self {
        Options {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            opened: Vec::new(),
            tls: None,
            strict_model: false,
            keys: Vec::new(),
            origins: Vec::new(),
            allowed_hosts: Vec::new(),
            prefix: String::new(),
            log: LogSink::default(),
            max_body: 8 << 20,
            drain: Duration::from_secs(30),
            queue: 128,
            is_local: true,
            image_hosts: Vec::new(),
            media_folder: None,
            response_store: None,
            slots: true,
            slot_folder: None,
            vllm_names: false,
            secret: random(),
        }
    }
}

/// Options of one model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Chat template that overrides the file's.
    pub template: Option<ChatTemplate>,
    /// Whether the answer continues a last message of the assistant.
    pub prefill_assistant: bool,
    /// Options for batching requests.
    pub batch: BatchOptions,
    /// Whether draft tokens are looked up in the earlier text (n-gram speculation).
    pub lookup: Lookup,
    /// Number of tokens that a draft model proposes at a time, whatever they cost; as many as are
    /// worth their time if not given.
    pub draft_max: Option<usize>,
    /// Most tokens of requests that give no limit; the interface's own default if not given.
    pub n_predict: Option<usize>,
    /// How texts go on when the context is full; they end there if not given.
    pub context_shift: Option<ContextShift>,
    /// Limit of the reasoning of requests that give none.
    pub reasoning_budget: ReasoningBudget,
    /// Sampling settings of requests that do not give them; unset ones are the model's own, or
    /// llama-server's.
    pub sampling: SamplerDefaults,
    /// Image encoder; without it, images are refused.
    pub encoder_cache: Option<Arc<EncoderCache>>,
    /// How embeddings are pooled if a request does not say; the model's own way if not given.
    pub pooling: Option<Pooling>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            template: None,
            prefill_assistant: true,
            batch: BatchOptions {
                // the queue limit is enforced on whole requests, before they get here
                queue: usize::MAX,
                ..BatchOptions::default()
            },
            lookup: Lookup::Auto,
            draft_max: None,
            n_predict: None,
            context_shift: None,
            reasoning_budget: ReasoningBudget::default(),
            sampling: SamplerDefaults::default(),
            encoder_cache: None,
            pooling: None,
        }
    }
}

/// Returns random bytes from the standard library's seed of its hash tables.
fn random() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0; 16];
    for half in bytes.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(0).to_ne_bytes());
    }
    bytes
}

/// Reasons the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The folder of stored responses cannot be used.
    #[error("{}: {source}", path.display())]
    Store {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The chat template is invalid.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
}

/// Stops a server. Clones control the same server.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<u32>);

impl Default for Stop {
    fn default() -> Self {
        Stop(watch::Sender::new(0))
    }
}

impl Stop {
    /// Stops the server: the first call refuses new requests and waits for running ones, the second
    /// stops at once.
    pub fn stop(&self) {
        self.0.send_modify(|times| *times += 1);
    }

    async fn times(&self, n: u32) {
        let mut receiver = self.0.subscribe();
        // the sender lives as long as self
        let _ = receiver.wait_for(|times| *times >= n).await;
    }
}

/// Serves models until stopped. `ready` receives the addresses once requests are accepted, and
/// `warn` receives warnings.
///
/// # Errors
/// If the port cannot be opened, or a model that is loaded already cannot be served.
pub fn serve(
    models: Models,
    mut options: Options,
    stop: &Stop,
    ready: impl FnOnce(&[Address]),
    warn: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .max_blocking_threads(server::THREADS + fetch::LOOKUPS)
        .thread_keep_alive(IDLE)
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let served = runtime.block_on(async {
        let listeners = Listeners::open(&options.host, options.port, &options.opened).await?;
        let addresses = listeners.addresses();
        options.is_local = listen::is_local(&addresses);
        let (drain, tls) = (options.drain, options.tls.clone());
        let server = Arc::new(Server::new(models, options, warn)?);
        ready(&addresses);
        let registry = Arc::clone(&server.registry);
        registry.begin();
        tokio::spawn(routes::look_at_models(Arc::clone(&server)));
        let keeper = tokio::spawn(Arc::clone(&registry).keep());
        let stopped = async {
            stop.times(1).await;
            registry.close(drain);
            tokio::select! {
                () = registry.ended() => {}
                () = stop.times(2) => registry.close(Duration::ZERO),
            }
        };
        http::serve(listeners, tls, routes::router(&server), stopped).await;
        keeper.abort();
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}
