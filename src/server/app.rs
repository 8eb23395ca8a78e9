//! What all routes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use octavo_engine::sample::SamplerDefaults;
use octavo_engine::{Engine, Front, Health};
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
use crate::wire;

/// Conversations rendered, texts tokenized and grammars compiled at a time: this work is bounded,
/// but must not keep a core from steps or all threads from other requests.
const WORKERS: usize = 2;

/// Threads for that: one for each of them, one for whoever compiles a rule, one for whoever looks
/// at pictures, and one for the address that is looked up in the beginning.
pub(crate) const THREADS: usize = WORKERS + 3;

/// How long a request may wait for such work before it is turned away.
const WORK_PATIENCE: Duration = Duration::from_secs(8);

/// And how long one with pictures may wait until others' have been seen.
const LOOK_PATIENCE: Duration = Duration::from_secs(60);

/// What all routes share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) front: Front,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Compiler,
    /// What fetches pictures, where that is allowed.
    pub(crate) fetcher: Option<Fetcher>,
    pub(crate) options: Options,
    /// How tokens are chosen where a request does not say.
    pub(crate) sampling: SamplerDefaults,
    pub(crate) metrics: Recorder,
    /// When it began, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) started: Instant,
    n_ctx: usize,
    /// Bytes of the longest token.
    longest_token: usize,
    workers: Arc<Semaphore>,
    /// Who compiles a rule for a text: that can take longer, and one at a time is enough.
    compiler: Arc<Semaphore>,
    /// Who looks at pictures: one at a time, for it takes all cores.
    viewer: Arc<Semaphore>,
    /// What stands for pictures in texts while they are put together.
    marker: String,
    /// Requests that run or wait.
    admitted: Arc<AtomicUsize>,
    ids: AtomicU64,
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        front: Front,
        template: Option<ChatTemplate>,
        fetcher: Option<Fetcher>,
        options: Options,
    ) -> App {
        let pages = front.snapshot().pages;
        let n_pages = pages.free + pages.cached + pages.used;
        let own = options.sampling.clone().or(engine.sampling());
        App {
            sampling: own.or(&SamplerDefaults::llama_server()),
            n_ctx: engine.n_ctx().min(n_pages * octavo_engine::kv::PAGE),
            longest_token: longest_token(&engine),
            grammars: Compiler::new(&engine),
            metrics: Recorder::new(
                options.names.first().map_or("", String::as_str),
                options.vllm_names,
            ),
            engine,
            front,
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

    /// Tells the log of something that was passed over in the request that is answered.
    pub(crate) fn warn(&self, text: &str) {
        logging::warn(&self.options.log, text);
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }

    pub(crate) fn n_vocab(&self) -> usize {
        self.engine.hparams().n_vocab()
    }

    /// Positions that a request can have.
    pub(crate) fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Bytes of a text beyond which it has more tokens than there are positions; none where one
    /// token may stand for a word of any length.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        let is_exact = self.tokenizer().model_name() != "bert";
        is_exact.then(|| self.n_ctx.saturating_mul(self.longest_token))
    }

    /// Whether it takes nothing new, because it will end.
    pub(crate) fn is_closing(&self) -> bool {
        self.front.health() == Health::Closing
    }

    /// The name of answers to whoever asked for none.
    pub(crate) fn name(&self) -> &str {
        self.options.names.first().map_or("", String::as_str)
    }

    /// The name that the answer to a request carries: of several, the one that was asked for.
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

    /// A new identifier for an answer. It says nothing about other answers to who cannot see them.
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

    /// A seed for a request that gives none.
    pub(crate) fn new_seed(&self) -> u64 {
        let id = self.new_id("");
        u64::from_str_radix(&id[..16], 16).unwrap_or_default()
    }

    /// Lets a request in that runs or waits until what is answered is dropped.
    ///
    /// # Errors
    /// If as many are in as may be.
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

    /// Compiles what an answer must be, if it must be anything.
    pub(crate) async fn compile(
        self: &Arc<App>,
        demanded: Option<Demanded>,
    ) -> Result<Compiled, ApiError> {
        let Some(demanded) = demanded else {
            return Ok(Compiled::default());
        };
        let demanded = Arc::new(demanded);
        // one that is known does not wait for those that take long
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

    /// What stands for pictures in texts, if pictures are taken.
    pub(crate) fn marker(&self) -> Option<&str> {
        self.options.sight.as_ref().map(|_| self.marker.as_str())
    }

    /// Runs what looks at pictures.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_as(&self.viewer, LOOK_PATIENCE, work).await
    }

    /// Runs work that takes a while, away from the threads that talk to clients.
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

/// A place of a request among those that run or wait.
pub(crate) struct Admission(Arc<AtomicUsize>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
