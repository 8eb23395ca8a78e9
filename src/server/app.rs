//! What all routes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use octavo_engine::sample::Constraint;
use octavo_engine::{Engine, Front, Health};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;
use tokio::sync::Semaphore;

use crate::Options;
use crate::error::ApiError;
use crate::grammar::{Grammars, Rule};
use crate::metrics::Recorder;

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
    pub(crate) grammars: Grammars,
    pub(crate) options: Options,
    pub(crate) metrics: Recorder,
    /// When it began, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) started: Instant,
    n_ctx: usize,
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
        options: Options,
    ) -> App {
        let pages = front.snapshot().pages;
        let n_pages = pages.free + pages.cached + pages.used;
        App {
            n_ctx: engine.n_ctx().min(n_pages * octavo_engine::kv::PAGE),
            grammars: Grammars::new(&engine),
            metrics: Recorder::new(
                options.names.first().map_or("", String::as_str),
                options.vllm_names,
            ),
            engine,
            front,
            template,
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

    /// Whether it takes nothing new, because it will end.
    pub(crate) fn is_closing(&self) -> bool {
        self.front.health() == Health::Closing
    }

    /// The name answers carry.
    pub(crate) fn name(&self) -> &str {
        self.options.names.first().map_or("", String::as_str)
    }

    /// An error unless the request names a model that is served.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            None | Some("") => Ok(()),
            Some(_) if self.options.any_model => Ok(()),
            Some(name) if self.options.names.iter().any(|own| own == name) => Ok(()),
            Some(name) => Err(ApiError::no_model(name)),
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

    /// Compiles the rule of a text, if there is one.
    pub(crate) async fn compile(
        self: &Arc<App>,
        rule: Option<(Rule, &'static str)>,
    ) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        let Some((rule, param)) = rule else {
            return Ok(None);
        };
        let compile = move |app: &App| app.grammars.compile(&rule, param).map(Some);
        self.work_as(&self.compiler, WORK_PATIENCE, compile).await
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
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&app)
        });
        match done.await {
            Ok(result) => result,
            Err(_) => Err(ApiError::server("a fault of the program")),
        }
    }
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
