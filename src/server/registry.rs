//! The models of a server by name. A request for one that is not loaded waits until it is, and
//! holds it until its answer has ended.

mod facts;
mod lease;
mod slots;
mod view;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use octavo_engine::Engine;
use rustls::RootCertStore;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::fetch::{self, Bounds, Fetcher};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::models::{ModelLimits, ModelLoader, Models};
use crate::{Error, ModelOptions, Options, logging};
pub(crate) use facts::Facts;
use lease::Waiting;
pub(crate) use lease::{Hold, Lease};
use slots::{Job, Phase, State};
pub(crate) use view::Status;
pub(crate) use watch::Changes;

/// A model that is served, loaded or not.
pub(crate) struct Entry {
    pub(crate) names: Vec<String>,
    loader: Option<Arc<dyn ModelLoader>>,
    facts: OnceLock<Facts>,
}

impl Entry {
    /// Returns its first name.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// The models of a server.
pub(crate) struct Registry {
    pub(crate) entries: Vec<Entry>,
    pub(crate) limits: ModelLimits,
    options: Arc<Options>,
    metrics: Arc<Metrics>,
    /// Certificate authorities, if images may be fetched.
    roots: Option<RootCertStore>,
    state: Mutex<State<Arc<Model>>>,
    /// Signaled when a model's phase changes.
    changed: Notify,
}

impl Registry {
    /// Creates it, and starts the models that are loaded already.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(
        models: Models,
        options: Arc<Options>,
        metrics: Arc<Metrics>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Registry, Error> {
        let roots = (!options.image_hosts.is_empty()).then(fetch::authorities);
        if roots.as_ref().is_some_and(RootCertStore::is_empty) {
            warn("no certificate authorities found on this system: no image is fetched over https");
        }
        let mut registry = Registry {
            entries: Vec::new(),
            limits: models.limits,
            options,
            metrics,
            roots,
            state: Mutex::new(State::new(std::iter::empty())),
            changed: Notify::new(),
        };
        let (mut loaded, mut at_start) = (Vec::new(), Vec::new());
        for (i, entry) in models.entries.into_iter().enumerate() {
            let is_fixed = entry.loader.is_none();
            registry.entries.push(Entry {
                names: entry.names,
                loader: entry.loader,
                facts: OnceLock::new(),
            });
            if entry.at_start && entry.loaded.is_none() {
                at_start.push(i);
            }
            let model = match entry.loaded {
                Some(model) => Some((
                    Arc::new(registry.start(i, model.engine, model.options, warn)?),
                    model.bytes,
                )),
                None => None,
            };
            loaded.push((model, is_fixed));
        }
        let mut state = State::new(loaded.into_iter());
        at_start
            .into_iter()
            .for_each(|i| state.slots[i].is_ordered = true);
        registry.state = Mutex::new(state);
        Ok(registry)
    }

    /// Starts the engine of a loaded model.
    fn start(
        &self,
        i: usize,
        engine: Engine,
        options: ModelOptions,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Model, Error> {
        let encoder_cache = options.encoder_cache.as_ref();
        let fetcher = encoder_cache.zip(self.roots.clone()).map(|(cache, roots)| {
            let bounds = Bounds::of_bytes(cache.most_bytes());
            Fetcher::new(self.options.image_hosts.clone(), bounds, roots)
        });
        let entry = &self.entries[i];
        let metrics = self.metrics.of(entry.name());
        Model::start(
            entry.names.clone(),
            engine,
            options,
            (metrics, fetcher),
            warn,
        )
    }

    fn lock(&self) -> MutexGuard<'_, State<Arc<Model>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the model that a request names. If there is only one, any name means it. `short`
    /// returns the other form of a name that is not served.
    ///
    /// # Errors
    /// If the request names none of several, or one that is not served.
    pub(crate) fn find(
        &self,
        asked: Option<&str>,
        short: fn(&str) -> &str,
    ) -> Result<usize, ApiError> {
        if self.entries.len() == 1 {
            return Ok(0);
        }
        let Some(name) = asked.filter(|name| !name.is_empty()) else {
            let message = "expected the name of one of the models of this server (/v1/models)";
            return Err(ApiError::bad_field("model", message));
        };
        let found = self.named(name).or_else(|| self.named(short(name)));
        found.ok_or_else(|| ApiError::no_model(name))
    }

    /// Returns the model of a name.
    pub(crate) fn named(&self, name: &str) -> Option<usize> {
        let has = |entry: &Entry| entry.names.iter().any(|own| own == name);
        self.entries.iter().position(has)
    }

    /// Waits until a model is loaded, and holds it.
    ///
    /// # Errors
    /// If it cannot be loaded, or is not to be, or the server is closing.
    pub(crate) async fn hold(
        self: &Arc<Self>,
        i: usize,
        hold: Hold,
    ) -> Result<(Arc<Model>, Lease), ApiError> {
        let mut waiting = None;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(held) = self.try_hold(i, hold, &mut waiting)? {
                return Ok(held);
            }
            changed.await;
        }
    }

    /// Holds a model if it is loaded; otherwise joins those that wait for it, unless it was among
    /// them before.
    fn try_hold(
        self: &Arc<Self>,
        i: usize,
        hold: Hold,
        waiting: &mut Option<Waiting>,
    ) -> Result<Option<(Arc<Model>, Lease)>, ApiError> {
        let mut state = self.lock();
        let slot = &mut state.slots[i];
        if let Some(error) = &slot.error
            && waiting
                .as_ref()
                .is_some_and(|own| own.attempts < slot.attempts)
        {
            let name = self.entries[i].name();
            return Err(ApiError::server(format!(
                "the model {name:?} cannot be loaded: {error}"
            )));
        }
        let model = match &slot.phase {
            Phase::Loaded(model) if slot.is_fixed || model.fault().is_none() => Some(model),
            Phase::Draining { model, .. } if !hold.uses => Some(model),
            _ => None,
        };
        if let Some(model) = model {
            let model = Arc::clone(model);
            slot.users += 1;
            let lease = Lease {
                registry: Arc::clone(self),
                i,
                hold,
            };
            return Ok(Some((model, lease)));
        }
        if state.is_closing {
            return Err(ApiError::unavailable("it is shutting down"));
        }
        if !hold.loads
            && !matches!(
                state.slots[i].phase,
                Phase::Planning | Phase::Queued | Phase::Loading
            )
        {
            return Err(ApiError::not_loaded(self.entries[i].name()));
        }
        let most = self.options.queue.max(1);
        let slot = &mut state.slots[i];
        if waiting.is_none() {
            if slot.waiting >= most {
                let message = format!("{most} requests wait for this model already");
                return Err(ApiError::busy(message));
            }
            slot.waiting += 1;
            *waiting = Some(Waiting {
                registry: Arc::clone(self),
                i,
                attempts: slot.attempts,
            });
        }
        match slot.phase {
            Phase::Unloaded => self.plan(i, &mut state),
            // its engine can take no further step
            Phase::Loaded(_) => state.drain(i, Some(Instant::now())),
            _ => {}
        }
        self.advance(&mut state);
        Ok(None)
    }

    /// Begins to plan the memory of a model; of one that was loaded before it is known.
    fn plan(self: &Arc<Self>, i: usize, state: &mut State<Arc<Model>>) {
        if state.slots[i].loads > 0 {
            return state.planned(i, state.slots[i].bytes);
        }
        state.slots[i].phase = Phase::Planning;
        let registry = Arc::clone(self);
        let spawned = in_thread("plan", move || {
            let planned = registry.with_loader(i, |loader| loader.plan());
            let mut state = registry.lock();
            match planned {
                Ok(bytes) => state.planned(i, bytes),
                Err(error) => registry.failed(i, error, &mut state),
            }
            registry.advance(&mut state);
        });
        if let Err(error) = spawned {
            state.failed(i, error);
        }
    }

    /// Notes and logs that a model could not be planned or loaded.
    fn failed(&self, i: usize, error: String, state: &mut State<Arc<Model>>) {
        let name = self.entries[i].name();
        let text = format!("the model {name:?} cannot be loaded: {error}");
        logging::warn(&self.options.log, &text);
        state.failed(i, error);
    }

    /// Calls a model's loader, whose panic is an error.
    fn with_loader<T>(
        &self,
        i: usize,
        call: impl FnOnce(&dyn ModelLoader) -> Result<T, String>,
    ) -> Result<T, String> {
        let loader = self.entries[i].loader.as_ref();
        let loader = loader.ok_or("it has no loader")?;
        let called = catch_unwind(AssertUnwindSafe(|| call(&**loader)));
        called.unwrap_or_else(|_| Err("a fault of the program".to_owned()))
    }

    /// Does what is due, on threads of their own where that takes long.
    fn advance(self: &Arc<Self>, state: &mut State<Arc<Model>>) {
        for job in state.advance(&self.limits, Instant::now()) {
            match job {
                Job::Load(i) => self.load(i, state),
                Job::Unload(i, model) => self.drop_model(i, model, state),
                Job::End(model) => model.handle.close(Duration::ZERO),
            }
        }
        if std::mem::take(&mut state.has_changed) {
            self.changed.notify_waiters();
        }
    }

    fn load(self: &Arc<Self>, i: usize, state: &mut State<Arc<Model>>) {
        let registry = Arc::clone(self);
        let spawned = in_thread("load", move || {
            let start = Instant::now();
            let loaded = registry.load_now(i);
            let mut state = registry.lock();
            match loaded {
                Ok(loaded) => {
                    let taken = state.loaded(i, loaded, &registry.limits, start.elapsed());
                    if let Err(model) = taken {
                        // it takes memory until it is dropped
                        drop(state);
                        drop(model);
                        state = registry.lock();
                        state.requeue(i);
                    }
                }
                Err(error) => registry.failed(i, error, &mut state),
            }
            registry.advance(&mut state);
        });
        if let Err(error) = spawned {
            state.failed(i, error);
        }
    }

    fn load_now(&self, i: usize) -> Result<(Arc<Model>, u64), String> {
        let loaded = self.with_loader(i, |loader| loader.load())?;
        let mut warn = |text: &str| logging::warn(&self.options.log, text);
        let model = self.start(i, loaded.engine, loaded.options, &mut warn);
        let model = model.map_err(|error| error.to_string())?;
        Ok((Arc::new(model), loaded.bytes))
    }

    fn drop_model(self: &Arc<Self>, i: usize, model: Arc<Model>, state: &mut State<Arc<Model>>) {
        let registry = Arc::clone(self);
        let spawned = in_thread("unload", move || {
            drop(model);
            // engines do that when they are idle, and this one is no more
            octavo_engine::release_freed_memory();
            let mut state = registry.lock();
            state.unloaded(i);
            registry.advance(&mut state);
        });
        if spawned.is_err() {
            // the model was dropped with the thread's function
            state.unloaded(i);
        }
    }

    /// Does what is due at a time, until it is dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let due = {
                let mut state = self.lock();
                self.advance(&mut state);
                state.due(&self.limits)
            };
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(due.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Loads the models that are to be loaded at start.
    pub(crate) fn begin(self: &Arc<Self>) {
        let mut state = self.lock();
        for i in 0..self.entries.len() {
            if state.slots[i].is_ordered {
                self.plan(i, &mut state);
            }
        }
    }

    /// Loads a model, whether or not the caller waits for it.
    ///
    /// # Errors
    /// As [`Registry::hold`].
    pub(crate) async fn load_by_order(self: &Arc<Self>, i: usize) -> Result<(), ApiError> {
        self.lock().slots[i].is_ordered = true;
        let hold = Hold {
            loads: true,
            uses: true,
        };
        let held = self.hold(i, hold).await;
        self.lock().slots[i].is_ordered = false;
        held.map(drop)
    }

    /// Begins to unload a model: it takes no new requests, and ends those that are still running
    /// after a time.
    ///
    /// # Errors
    /// If it is not loaded, or stays loaded.
    pub(crate) fn unload(self: &Arc<Self>, i: usize) -> Result<(), ApiError> {
        let mut state = self.lock();
        let name = self.entries[i].name();
        if state.slots[i].is_fixed {
            let message = format!("the model {name:?} stays loaded as long as the server runs");
            return Err(ApiError::not_supported(message));
        }
        match state.slots[i].phase {
            Phase::Loaded(_) | Phase::Draining { .. } => {
                state.drain(i, Some(Instant::now() + self.options.drain));
            }
            Phase::Unloading => {}
            Phase::Unloaded | Phase::Planning | Phase::Queued | Phase::Loading => {
                return Err(ApiError::not_loaded(name));
            }
        }
        self.advance(&mut state);
        Ok(())
    }

    /// Waits until a model that is being unloaded is.
    pub(crate) async fn is_unloaded(&self, i: usize) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.lock().slots[i].is_leaving() {
                return;
            }
            changed.await;
        }
    }

    /// Refuses new requests, and ends all models once their requests are done or after a time.
    pub(crate) fn close(&self, patience: Duration) {
        let mut state = self.lock();
        state.close();
        for model in state.slots.iter().filter_map(|slot| slot.model()) {
            model.handle.close(patience);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns whether new requests are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.lock().is_closing
    }

    /// Waits until no request runs, after [`Registry::close`].
    pub(crate) async fn ended(&self) {
        let has_ended = || {
            let state = self.lock();
            let mut models = state.slots.iter().filter_map(|slot| slot.model());
            models.all(|model| model.handle.has_ended())
        };
        while !has_ended() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Runs work on a thread of its own.
fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(work);
    spawned
        .map(drop)
        .map_err(|error| format!("cannot start a thread: {error}"))
}
