//! A request's hold on the server and on the model that it asks for.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use octavo_grammar::Compiled;
use tokio::sync::Semaphore;

use crate::demand::Demanded;
use crate::error::ApiError;
use crate::logging;
use crate::model::{Admission, Model};
use crate::registry::Lease;
use crate::server::Server;

/// Longest wait for a worker before the request is refused.
const WORK_PATIENCE: Duration = Duration::from_secs(8);

/// Longest wait of a request with images for the encoder.
const LOOK_PATIENCE: Duration = Duration::from_secs(60);

/// A request's hold on the server and on a loaded model, which is not unloaded before all clones of
/// the `Arc` are dropped.
pub(crate) struct App {
    // dropped before the lease, after which the registry has the only one
    loaded: Arc<Model>,
    pub(crate) server: Arc<Server>,
    lease: Option<Lease>,
}

impl Deref for App {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.loaded
    }
}

impl App {
    /// Takes a model; without a lease, one that no registry unloads.
    pub(crate) fn new(server: Arc<Server>, model: Arc<Model>, lease: Option<Lease>) -> App {
        App {
            loaded: model,
            server,
            lease,
        }
    }

    /// Logs a warning about something ignored in the current request.
    pub(crate) fn warn(&self, text: &str) {
        self.server.warn(text);
    }

    /// Returns the model name for an answer: of several, the one that was asked for.
    ///
    /// # Errors
    /// If the request names a model that is not served.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<String, ApiError> {
        match asked.filter(|name| !name.is_empty()) {
            Some(name) if self.names.iter().any(|own| own == name) => Ok(name.to_owned()),
            Some(name) if self.server.options.strict_model => Err(ApiError::no_model(name)),
            Some(name) => {
                let (name, own) = (logging::shown(name), self.name());
                self.warn(&format!("no model {name} here: {own} answers"));
                Ok(own.to_owned())
            }
            None => Ok(self.name().to_owned()),
        }
    }

    /// Begins to unload the model, after this request and others; returns false if it stays loaded.
    pub(crate) fn unload(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.unload().is_ok())
    }

    /// Returns a new id for an answer.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        self.server.new_id(prefix)
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
        self.loaded.admit_within(self.server.options.queue)
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
                self.work_as(&self.server.compiler, WORK_PATIENCE, compile)
                    .await?
            }
        };
        if let Some(warning) = &compiled.warning {
            self.warn(warning);
        }
        Ok(compiled)
    }

    /// Returns the placeholder for images in texts, if images are accepted.
    pub(crate) fn marker(&self) -> Option<&str> {
        let encoder = self.options.encoder_cache.as_ref();
        encoder.map(|_| self.server.marker.as_str())
    }

    /// Runs image encoding on a blocking thread.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_as(&self.server.viewer, LOOK_PATIENCE, work).await
    }

    /// Runs blocking work off the threads that serve connections.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_as(&self.server.workers, WORK_PATIENCE, work)
            .await
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
