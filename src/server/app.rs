//! State shared by all routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use octavo_engine::sample::SamplerDefaults;
use octavo_engine::{Engine, EngineHandle, Health};
use octavo_grammar::{Compiled, Compiler};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::Options;
use crate::demand::Demanded;
use crate::error::ApiError;
use crate::fetch::Fetcher;
use crate::logging;
use crate::metrics::Recorder;
use crate::stored::Responses;
use crate::wire;

/// Concurrent jobs of rendering, tokenizing and grammar compilation: their duration is bounded, but
/// they must not take a core from engine steps or all threads from other requests.
const WORKERS: usize = 2;

/// Threads for blocking work: one per worker, one for the grammar compiler, one for the image
/// encoder, and one to look up the listening address at start-up.
pub(crate) const THREADS: usize = WORKERS + 3;

/// Longest wait for a worker before the request is refused.
const WORK_PATIENCE: Duration = Duration::from_secs(8);

/// Longest wait of a request with images for the encoder.
const LOOK_PATIENCE: Duration = Duration::from_secs(60);

/// State shared by all routes.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) handle: EngineHandle,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Compiler,
    /// Fetcher of remote images, if enabled.
    pub(crate) fetcher: Option<Fetcher>,
    pub(crate) options: Options,
    /// Sampling settings used where a request gives none.
    pub(crate) sampling: SamplerDefaults,
    pub(crate) metrics: Recorder,
    /// Responses that clients can fetch later.
    pub(crate) responses: Responses,
    /// Start time, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) started: Instant,
    n_ctx: usize,
    /// Length of the longest token, in bytes.
    longest_token: usize,
    workers: Arc<Semaphore>,
    /// Permit to compile a grammar: that can take longer, and one at a time is enough.
    compiler: Arc<Semaphore>,
    /// Permit to encode images: one request at a time, because encoding uses all cores.
    viewer: Arc<Semaphore>,
    /// Placeholder for images while texts are assembled.
    marker: String,
    /// Number of requests that run or wait.
    admitted: Arc<AtomicUsize>,
    ids: AtomicU64,
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        handle: EngineHandle,
        template: Option<ChatTemplate>,
        fetcher: Option<Fetcher>,
        options: Options,
    ) -> App {
        let pages = handle.snapshot().pages;
        let n_pages = pages.free + pages.cached + pages.used;
        let own = options.sampling.clone().or(engine.sampling());
        App {
            sampling: own.or(&SamplerDefaults::llama_server()),
            n_ctx: engine.n_ctx().min(n_pages * octavo_engine::PAGE_POSITIONS),
            longest_token: longest_token(&engine),
            grammars: Compiler::new(&engine),
            metrics: Recorder::new(
                options.names.first().map_or("", String::as_str),
                options.vllm_names,
            ),
            responses: Responses::default(),
            engine,
            handle,
            template,
            fetcher,
            options,
            created: now(),
            started: Instant::now(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            compiler: Arc::new(Semaphore::new(1)),
            viewer: Arc::new(Semaphore::new(1)),
            marker: octavo_vision::prompt::private_marker(),
            admitted: Arc::default(),
            ids: AtomicU64::new(0),
        }
    }

    /// Logs a warning about something ignored in the current request.
    pub(crate) fn warn(&self, text: &str) {
        logging::warn(&self.options.log, text);
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }

    pub(crate) fn n_vocab(&self) -> usize {
        self.engine.hparams().n_vocab()
    }

    /// Returns the context length of a request.
    pub(crate) fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the length in bytes from which a text certainly exceeds the context; `None` if one
    /// token may replace a word of any length.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        let is_exact = self.tokenizer().model_name() != "bert";
        is_exact.then(|| self.n_ctx.saturating_mul(self.longest_token))
    }

    /// Returns whether the server is shutting down, and refuses new requests.
    pub(crate) fn is_closing(&self) -> bool {
        self.handle.health() == Health::Closing
    }

    /// Returns the default model name of answers.
    pub(crate) fn name(&self) -> &str {
        self.options.names.first().map_or("", String::as_str)
    }

    /// Returns the model name for an answer: of several, the one that was asked for.
    ///
    /// # Errors
    /// If the request names a model that is not served.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<String, ApiError> {
        let names = &self.options.names;
        match asked.filter(|name| !name.is_empty()) {
            Some(name) if names.iter().any(|own| own == name) => Ok(name.to_owned()),
            Some(name) if self.options.strict_model => Err(ApiError::no_model(name)),
            Some(name) => {
                let (name, own) = (logging::shown(name), self.name());
                self.warn(&format!("no model {name} here: {own} answers"));
                Ok(own.to_owned())
            }
            None => Ok(self.name().to_owned()),
        }
    }

    /// Returns a new id for an answer. It is unpredictable without the server's secret.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        use sha2::{Digest, Sha256};
        let n = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut hash = Sha256::new();
        hash.update(self.options.secret);
        hash.update(n.to_le_bytes());
        let digest = hash.finalize();
        let hex: String = digest[..12]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{prefix}{hex}")
    }

    /// Returns a seed for a request that gives none.
    pub(crate) fn new_seed(&self) -> u64 {
        let id = self.new_id("");
        u64::from_str_radix(&id[..16], 16).unwrap_or_default()
    }

    /// Admits a request, which then runs or waits until the returned value is dropped.
    ///
    /// # Errors
    /// If the limit of admitted requests is reached.
    pub(crate) fn admit(&self) -> Result<Admission, ApiError> {
        let most = self.engine.sequences().saturating_add(self.options.queue);
        let admission = Admission(Arc::clone(&self.admitted));
        let before = self.admitted.fetch_add(1, Ordering::SeqCst);
        if before >= most {
            return Err(ApiError::busy(format!(
                "{before} requests run or wait already"
            )));
        }
        Ok(admission)
    }

    /// Compiles the grammar of an answer's constraint, if it has one.
    pub(crate) async fn compile(
        self: &Arc<App>,
        demanded: Option<Demanded>,
    ) -> Result<Compiled, ApiError> {
        let Some(demanded) = demanded else {
            return Ok(Compiled::default());
        };
        let demanded = Arc::new(demanded);
        // a cached grammar does not wait for slow compilations
        let known = Arc::clone(&demanded);
        let find = move |app: &App| Ok(app.grammars.find(&known.demand));
        let compiled = match self.work(find).await? {
            Some(found) => found,
            None => {
                let compile = move |app: &App| {
                    let compiled = app.grammars.compile(&demanded.demand);
                    compiled.map_err(|error| ApiError::of_rule(&error, demanded.param))
                };
                self.work_as(&self.compiler, WORK_PATIENCE, compile).await?
            }
        };
        if let Some(warning) = &compiled.warning {
            self.warn(warning);
        }
        Ok(compiled)
    }

    /// Returns the placeholder for images in texts, if images are accepted.
    pub(crate) fn marker(&self) -> Option<&str> {
        self.options
            .encoder_cache
            .as_ref()
            .map(|_| self.marker.as_str())
    }

    /// Runs image encoding on a blocking thread.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_as(&self.viewer, LOOK_PATIENCE, work).await
    }

    /// Runs blocking work off the threads that serve connections.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_as(&self.workers, WORK_PATIENCE, work).await
    }

    async fn work_as<T: Send + 'static>(
        self: &Arc<App>,
        workers: &Arc<Semaphore>,
        patience: Duration,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let workers = Arc::clone(workers);
        let Ok(permit) = tokio::time::timeout(patience, workers.acquire_owned()).await else {
            return Err(ApiError::busy("too many requests are being read"));
        };
        let app = Arc::clone(self);
        let request = logging::current();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            logging::within(request, || work(&app))
        });
        match done.await {
            Ok(result) => result,
            Err(_) => Err(ApiError::server("a fault of the program")),
        }
    }
}

fn longest_token(engine: &Engine) -> usize {
    let tokenizer = engine.tokenizer();
    let ids = 0..u32::try_from(engine.hparams().n_vocab()).unwrap_or(u32::MAX);
    let bytes = ids.map(|id| wire::bytes(tokenizer, id).len());
    bytes.max().unwrap_or(0)
}

/// Admission of a request; released when dropped.
pub(crate) struct Admission(Arc<AtomicUsize>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
