//! State that all requests share, whichever model they ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::registry::{Facts, Hold, Registry};
use crate::stored::Responses;
use crate::{Error, Options, logging};

/// Concurrent jobs of rendering, tokenizing and grammar compilation: their duration is bounded, but
/// they must not take a core from engine steps or all threads from other requests.
const WORKERS: usize = 2;

/// Threads for blocking work: one per worker, one for the grammar compiler, one for the image
/// encoder, and one to look up the listening address at start-up.
pub(crate) const THREADS: usize = WORKERS + 3;

/// State that all requests share.
pub(crate) struct Server {
    pub(crate) options: Arc<Options>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    /// Responses that clients can fetch later.
    pub(crate) responses: Responses,
    /// Start time, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) started: Instant,
    pub(crate) workers: Arc<Semaphore>,
    /// Permit to compile a grammar: that can take longer, and one at a time is enough.
    pub(crate) compiler: Arc<Semaphore>,
    /// Permit to encode images: one request at a time, because encoding uses all cores.
    pub(crate) viewer: Arc<Semaphore>,
    /// Placeholder for images while texts are assembled.
    pub(crate) marker: String,
    ids: AtomicU64,
}

impl Server {
    /// Creates it, and starts the models that are loaded already.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(
        models: Models,
        options: Options,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Server, Error> {
        let options = Arc::new(options);
        let responses = match &options.response_store {
            None => Responses::default(),
            Some(path) => {
                let opened = Responses::open(path, options.log.clone(), warn);
                opened.map_err(|source| Error::Store {
                    path: path.clone(),
                    source,
                })?
            }
        };
        let metrics = Arc::new(Metrics::new(options.vllm_names));
        let registry = Registry::new(models, Arc::clone(&options), Arc::clone(&metrics), warn)?;
        Ok(Server {
            options,
            registry: Arc::new(registry),
            metrics,
            responses,
            created: now(),
            started: Instant::now(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            compiler: Arc::new(Semaphore::new(1)),
            viewer: Arc::new(Semaphore::new(1)),
            marker: octavo_vision::prompt::private_marker(),
            ids: AtomicU64::new(0),
        })
    }

    /// Waits until a model is loaded, and holds it for a request.
    ///
    /// # Errors
    /// If it cannot be loaded, or is not to be, or the server is closing.
    pub(crate) async fn hold(
        self: &Arc<Server>,
        i: usize,
        hold: Hold,
    ) -> Result<Arc<App>, ApiError> {
        let (model, lease) = self.registry.hold(i, hold).await?;
        Ok(Arc::new(App::new(Arc::clone(self), model, Some(lease))))
    }

    /// Returns the facts that the files of models tell.
    ///
    /// # Errors
    /// If reading them panics.
    pub(crate) async fn facts(&self, models: Vec<usize>) -> Result<Vec<Facts>, ApiError> {
        let registry = Arc::clone(&self.registry);
        let read = tokio::task::spawn_blocking(move || {
            let models = models.into_iter();
            models.map(|i| registry.facts(i)).collect()
        });
        read.await
            .map_err(|_| ApiError::server("a fault of the program"))
    }

    /// Logs a warning about something ignored in the current request.
    pub(crate) fn warn(&self, text: &str) {
        logging::warn(&self.options.log, text);
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
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
