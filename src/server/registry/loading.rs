//! Loads and unloads models, on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Registry;
use super::slots::{Job, Phase, State};
use crate::logging;
use crate::model::Model;
use crate::models::ModelLoader;

impl Registry {
    /// Begins to plan the memory of a model; of one that was loaded before it is known.
    pub(super) fn plan(self: &Arc<Self>, i: usize, state: &mut State<Arc<Model>>) {
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
    pub(super) fn failed(&self, i: usize, error: String, state: &mut State<Arc<Model>>) {
        let name = self.entry(i);
        let text = format!("the model {:?} cannot be loaded: {error}", name.name());
        logging::warn(&self.options.log, &text);
        state.failed(i, error);
    }

    /// Calls a model's loader, whose panic is an error.
    pub(super) fn with_loader<T>(
        &self,
        i: usize,
        call: impl FnOnce(&dyn ModelLoader) -> Result<T, String>,
    ) -> Result<T, String> {
        let entry = self.entry(i);
        let loader = entry.loader.as_ref().ok_or("it has no loader")?;
        let called = catch_unwind(AssertUnwindSafe(|| call(&**loader)));
        called.unwrap_or_else(|_| Err("a fault of the program".to_owned()))
    }

    /// Does what is due, on threads of their own where that takes long.
    pub(super) fn advance(self: &Arc<Self>, state: &mut State<Arc<Model>>) {
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

    pub(super) fn load(self: &Arc<Self>, i: usize, state: &mut State<Arc<Model>>) {
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
            *registry.entry(i).past() += model.handle.snapshot().totals;
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
}

/// Runs work on a thread of its own.
pub(super) fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(work);
    spawned
        .map(drop)
        .map_err(|error| format!("cannot start a thread: {error}"))
}
