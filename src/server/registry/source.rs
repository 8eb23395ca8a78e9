//! Models that come and go while the server runs: listed again, downloaded from the hub, deleted
//! from its cache, as llama-server's router does.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::loading::in_thread;
use super::slots::{Phase, Slot};
use super::{Entry, Registry};
use crate::error::ApiError;
use crate::logging;
use crate::models::{ModelEntry, ModelLoader, ModelSource};

/// Number of events that a slow listener may fall behind before it loses some.
const BACKLOG: usize = 256;
/// Least time between two reports of a download.
const BETWEEN_REPORTS: Duration = Duration::from_millis(200);
/// Most downloads at a time.
const MAX_DOWNLOADS: usize = 8;

/// Bytes so far of each file of a download, and all of its bytes if that is known.
type Files = BTreeMap<String, (u64, Option<u64>)>;

/// Downloads that run, and the events that tell of them.
pub(crate) struct Transfers {
    running: Mutex<BTreeMap<String, Files>>,
    events: broadcast::Sender<Value>,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers {
            running: Mutex::default(),
            events: broadcast::channel(BACKLOG).0,
        }
    }
}

impl Transfers {
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Files>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the models that are being downloaded, and how far each file is.
    pub(crate) fn progress(&self) -> Vec<(String, Value)> {
        let running = self.running();
        let all = running.iter();
        all.map(|(name, files)| (name.clone(), described(files)))
            .collect()
    }

    /// Returns a receiver of the events from now on.
    pub(super) fn events(&self) -> broadcast::Receiver<Value> {
        self.events.subscribe()
    }

    fn tell(&self, model: &str, event: &str, data: Option<Value>) {
        let mut message = json!({ "model": model, "event": event });
        if let Some(data) = data {
            message["data"] = data;
        }
        // there may be no listener
        let _ = self.events.send(message);
    }
}

fn described(files: &Files) -> Value {
    let of = |(file, (done, total)): (&String, &(u64, Option<u64>))| {
        (file.clone(), json!({ "done": done, "total": total }))
    };
    Value::Object(files.iter().map(of).collect())
}

impl Registry {
    /// Returns whether the models may change while the server runs.
    pub(crate) fn may_change(&self) -> bool {
        self.source.is_some()
    }

    fn source(&self) -> Result<&Arc<dyn ModelSource>, ApiError> {
        let message = "the models of this server do not change while it runs";
        let source = self.source.as_ref();
        source.ok_or_else(|| ApiError::not_supported(message))
    }

    /// Finds the models again: new ones are added; those that are gone, or have other options, are
    /// unloaded once their requests have ended. Blocks.
    ///
    /// # Errors
    /// If the models do not change, or cannot be found.
    pub(crate) fn reload(self: &Arc<Self>) -> Result<(), ApiError> {
        let source = Arc::clone(self.source()?);
        let found = catch_unwind(AssertUnwindSafe(|| source.find()));
        let found = found.unwrap_or_else(|_| Err("a fault of the program".to_owned()));
        let mut found = found.map_err(ApiError::server)?;
        let mut state = self.lock();
        let mut has_changed = false;
        for (i, entry) in self.entries().iter().enumerate() {
            let is_listed = entry.is_listed() && entry.loader.is_some();
            match found.iter().position(|new| is_same(entry, new)) {
                _ if !is_listed => {}
                Some(same) => drop(found.remove(same)),
                None => {
                    entry.is_gone.store(true, Ordering::Relaxed);
                    has_changed = true;
                    state.slots[i].is_ordered = false;
                    if matches!(state.slots[i].phase, Phase::Loaded(_)) {
                        state.drain(i, None);
                    }
                }
            }
        }
        has_changed |= !found.is_empty();
        for new in found {
            state.slots.push(Slot::new(Instant::now()));
            self.add(Entry::new(new.names, new.loader));
        }
        state.has_changed |= has_changed;
        self.advance(&mut state);
        drop(state);
        if has_changed {
            self.transfers.tell("*", "models_reload", None);
        }
        Ok(())
    }

    /// Begins to download a model of the hub, and adds it to the models when it is there.
    ///
    /// # Errors
    /// If the models do not change, the name is none of the hub's, or the model is being
    /// downloaded.
    pub(crate) fn download(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        let source = Arc::clone(self.source()?);
        let wrong = |what: String| ApiError::bad_field("model", what);
        source.check(name).map_err(wrong)?;
        let mut running = self.transfers.running();
        if running.contains_key(name) {
            return Err(wrong(format!("{name:?} is being downloaded")));
        }
        if running.len() >= MAX_DOWNLOADS {
            let message = format!("{MAX_DOWNLOADS} models are being downloaded already");
            return Err(ApiError::busy(message));
        }
        running.insert(name.to_owned(), Files::new());
        drop(running);
        let (registry, own) = (Arc::clone(self), name.to_owned());
        let spawned = in_thread("download", move || {
            let mut report = registry.reporter(&own);
            let call = AssertUnwindSafe(|| source.download(&own, &mut report));
            let ended = catch_unwind(call);
            let ended = ended.unwrap_or_else(|_| Err("a fault of the program".to_owned()));
            let listed = ended.and_then(|()| {
                let listed = registry.reload();
                listed.map_err(|error| error.into_parts().0)
            });
            registry.transfers.running().remove(&own);
            match listed {
                Ok(()) => registry.transfers.tell(&own, "download_finished", None),
                Err(error) => {
                    let text = format!("the model {own:?} cannot be downloaded: {error}");
                    logging::warn(&registry.options.log, &text);
                    let data = json!({ "message": error });
                    registry.transfers.tell(&own, "download_failed", Some(data));
                }
            }
        });
        spawned.map_err(|error| {
            self.transfers.running().remove(name);
            ApiError::server(error)
        })
    }

    /// Returns a function that notes how far a download is, and tells of it now and then.
    fn reporter<'a>(&'a self, name: &'a str) -> impl FnMut(&str, u64, Option<u64>) + 'a {
        let mut last: Option<Instant> = None;
        move |file, done, total| {
            let mut running = self.transfers.running();
            let files = running.entry(name.to_owned()).or_default();
            files.insert(file.to_owned(), (done, total));
            let is_whole = total == Some(done);
            if is_whole || last.is_none_or(|last| last.elapsed() >= BETWEEN_REPORTS) {
                last = Some(Instant::now());
                let data = described(files);
                self.transfers.tell(name, "download_progress", Some(data));
            }
        }
    }

    /// Deletes a model from the hub's cache, and then from the models. Blocks.
    ///
    /// # Errors
    /// If the models do not change, none has the name, or it is not in the cache.
    pub(crate) fn delete(self: &Arc<Self>, name: &str) -> Result<(), ApiError> {
        let source = Arc::clone(self.source()?);
        let i = self.named(name).ok_or_else(|| ApiError::no_model(name))?;
        let entry = self.entry(i);
        match source.delete(entry.name()).map_err(ApiError::server)? {
            true => {
                self.reload()?;
                self.transfers.tell(entry.name(), "model_remove", None);
                Ok(())
            }
            false => {
                let what = format!("{name:?}: expected a model of the hub's cache");
                Err(ApiError::bad_field("model", what))
            }
        }
    }
}

/// Returns whether a model has these names and options.
fn is_same(entry: &Entry, new: &ModelEntry) -> bool {
    let options = |loader: &Option<_>| {
        let loader: Option<&Arc<dyn ModelLoader>> = loader.as_ref();
        loader.map(|loader| loader.options())
    };
    entry.names == new.names && options(&entry.loader) == options(&new.loader)
}
