//! Looks at the models, without holding any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::slots::{Phase, Slot};
use super::{Facts, Registry};
use crate::model::Model;

/// State of a model, for display.
pub(crate) struct Status<T> {
    /// Its phase in llama-server's words.
    pub(crate) value: &'static str,
    /// Whether it could not be loaded when it was last tried.
    pub(crate) has_failed: bool,
    /// Description of the model, if it is loaded.
    pub(crate) loaded: Option<T>,
    /// Whether it stays loaded.
    pub(crate) is_fixed: bool,
    /// Bytes of memory that it takes.
    pub(crate) bytes: u64,
    /// Number of times that it was loaded, and the time for all of them.
    pub(crate) loads: u64,
    pub(crate) load_time: Duration,
    /// Time of the last request.
    pub(crate) last_used: Instant,
}

impl Registry {
    /// Returns the state of every model; `describe` describes those that are loaded.
    pub(crate) fn status<T>(&self, describe: impl Fn(&Model) -> T) -> Vec<Status<T>> {
        let state = self.lock();
        let status = |slot: &Slot<Arc<Model>>| Status {
            value: slot.phase.name(),
            has_failed: matches!(slot.phase, Phase::Unloaded) && slot.error.is_some(),
            loaded: slot.model().map(|model| describe(model)),
            is_fixed: slot.is_fixed,
            bytes: if slot.counts() { slot.bytes } else { 0 },
            loads: slot.loads,
            load_time: slot.load_time,
            last_used: slot.last_used,
        };
        state.slots.iter().map(status).collect()
    }

    /// Returns the largest sum of the models' bytes so far.
    pub(crate) fn peak(&self) -> u64 {
        self.lock().peak
    }

    /// Returns the facts that a model's file tells; empty if it cannot be read. Blocks while the
    /// file is read for the first time.
    pub(crate) fn facts(&self, i: usize) -> Facts {
        let entry = &self.entries[i];
        if let Some(facts) = entry.facts.get() {
            return facts.clone();
        }
        let state = self.lock();
        let of = |model: &Arc<Model>| Facts::of(model.engine.gguf());
        let known = state.slots[i].model().map(of);
        drop(state);
        let facts = match known {
            Some(facts) => facts,
            None => match self.with_loader(i, |loader| loader.open()) {
                Ok(gguf) => Facts::of(&gguf),
                // it may be readable the next time
                Err(_) => return Facts::default(),
            },
        };
        entry.facts.get_or_init(|| facts).clone()
    }
}
