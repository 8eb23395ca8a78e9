//! The models of a server by name. A request for one that is not loaded waits until it is, and
//! holds it until its answer has ended.

mod facts;
mod lease;
mod loading;
mod slots;
mod source;
mod view;
mod watch;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use octavo_engine::{Engine, Totals};
use rustls::RootCertStore;
use serde_json::Value;
use tokio::sync::Notify;

use crate::error::ApiError;
use crate::fetch::{self, Bounds, Fetcher};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::models::{ModelEntry, ModelLimits, ModelLoader, ModelSource, Models};
use crate::{Error, ModelOptions, Options};
pub(crate) use facts::Facts;
use lease::Waiting;
pub(crate) use lease::{Hold, Lease};
use slots::{Phase, State};
pub(crate) use source::Transfers;
pub(crate) use view::Status;
pub(crate) use watch::Changes;

/// A model that is served, loaded or not.
pub(crate) struct Entry {
    pub(crate) names: Vec<String>,
    loader: Option<Arc<dyn ModelLoader>>,
    facts: OnceLock<Facts>,
    /// Whether it is one of the models no more, and only waits to be unloaded.
    is_gone: AtomicBool,
    /// Counts of the times that it was loaded before.
    past: Mutex<Totals>,
    /// Answer of `/props` when it was last loaded.
    props: Mutex<Option<Value>>,
}

impl Entry {
    fn new(names: Vec<String>, loader: Option<Arc<dyn ModelLoader>>) -> Arc<Entry> {
        Arc::new(Entry {
            names,
            loader,
            facts: OnceLock::new(),
            is_gone: AtomicBool::new(false),
            past: Mutex::new(Totals::default()),
            props: Mutex::new(None),
        })
    }

    /// Returns whether it is one of the models that requests may name.
    pub(crate) fn is_listed(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }

    /// Keeps the answer of `/props`, for when the model is unloaded.
    pub(crate) fn keep_props(&self, props: &Value) {
        let mut own = self.props.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Some(props.clone());
    }

    /// Returns the answer of `/props` that was kept.
    pub(crate) fn props(&self) -> Option<Value> {
        let props = self.props.lock();
        props.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn past(&self) -> MutexGuard<'_, Totals> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its first name.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// The models of a server.
pub(crate) struct Registry {
    /// All models that there ever were, so that a model keeps its index.
    entries: RwLock<Vec<Arc<Entry>>>,
    pub(crate) limits: ModelLimits,
    options: Arc<Options>,
    metrics: Arc<Metrics>,
    /// Certificate authorities, if images may be fetched.
    roots: Option<RootCertStore>,
    state: Mutex<State<Arc<Model>>>,
    /// Signaled when a model's phase changes.
    changed: Notify,
    /// Finds the models again, if they may change.
    source: Option<Arc<dyn ModelSource>>,
    /// Downloads that run.
    pub(crate) transfers: Transfers,
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
            entries: RwLock::default(),
            limits: models.limits,
            options,
            metrics,
            roots,
            state: Mutex::new(State::new(std::iter::empty())),
            changed: Notify::new(),
            source: models.source,
            transfers: Transfers::default(),
        };
        let (mut loaded, mut at_start) = (Vec::new(), Vec::new());
        for (i, entry) in models.entries.into_iter().enumerate() {
            let ModelEntry {
                names,
                loader,
                loaded: now,
                at_start: begins,
            } = entry;
            let is_fixed = loader.is_none();
            registry.add(Entry::new(names, loader));
            if begins && now.is_none() {
                at_start.push(i);
            }
            let model = match now {
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

    fn add(&self, entry: Arc<Entry>) {
        let entries = self.entries.write();
        entries.unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    /// Returns all models that there ever were, in the order of their indices.
    fn entries(&self) -> Vec<Arc<Entry>> {
        let entries = self.entries.read();
        entries.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a model by its index.
    pub(crate) fn entry(&self, i: usize) -> Arc<Entry> {
        let entries = self.entries.read();
        Arc::clone(&entries.unwrap_or_else(PoisonError::into_inner)[i])
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
        let entry = self.entry(i);
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
        let entries = self.entries();
        let mut listed = entries.iter().enumerate().filter(|(_, e)| e.is_listed());
        if let (Some((i, _)), None) = (listed.next(), listed.next()) {
            return Ok(i);
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
        let has =
            |entry: &Arc<Entry>| entry.is_listed() && entry.names.iter().any(|own| own == name);
        self.entries().iter().position(has)
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
            let entry = self.entry(i);
            return Err(ApiError::server(format!(
                "the model {:?} cannot be loaded: {error}",
                entry.name()
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
            return Err(ApiError::not_loaded(self.entry(i).name()));
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
        for i in 0..state.slots.len() {
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
        let entry = self.entry(i);
        if state.slots[i].is_fixed {
            let name = entry.name();
            let message = format!("the model {name:?} stays loaded as long as the server runs");
            return Err(ApiError::not_supported(message));
        }
        match state.slots[i].phase {
            Phase::Loaded(_) | Phase::Draining { .. } => {
                state.drain(i, Some(Instant::now() + self.options.drain));
            }
            Phase::Unloading => {}
            Phase::Unloaded | Phase::Planning | Phase::Queued | Phase::Loading => {
                return Err(ApiError::not_loaded(entry.name()));
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
