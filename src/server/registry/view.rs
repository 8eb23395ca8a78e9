//! Looks at the models, without holding any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use octavo_engine::Totals;

use super::slots::{Phase, Slot};
use super::{Entry, Facts, Registry};
use crate::model::Model;

/// State of a model, for display.
pub(crate) struct Status<T> {
    /// The model, and its index.
    pub(crate) entry: Arc<Entry>,
    pub(crate) i: usize,
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
    /// Counts of the times that it was loaded before.
    pub(crate) past: Totals,
    /// Time of the last request.
    pub(crate) last_used: Instant,
}

impl Registry {
    /// Returns the state of every model; `describe` describes those that are loaded.
    pub(crate) fn status<T>(&self, describe: impl Fn(&Model) -> T) -> Vec<Status<T>> {
        let entries = self.entries();
        let state = self.lock();
        let status = |(i, entry): (usize, &Arc<Entry>), slot: &Slot<Arc<Model>>| Status {
            entry: Arc::clone(entry),
            i,
            past: *entry.past(),
            value: slot.phase.name(),
            has_failed: matches!(slot.phase, Phase::Unloaded) && slot.error.is_some(),
            loaded: slot.model().map(|model| describe(model)),
            is_fixed: slot.is_fixed,
            bytes: if slot.counts() { slot.bytes } else { 0 },
            loads: slot.loads,
            load_time: slot.load_time,
            last_used: slot.last_used,
        };
        let all = entries.iter().enumerate().zip(&state.slots);
        let listed = all.filter(|((_, entry), _)| entry.is_listed());
        listed.map(|(entry, slot)| status(entry, slot)).collect()
    }

    /// Returns whether a model was unloaded because it was idle, and waits for a request.
    pub(crate) fn is_sleeping(&self, i: usize) -> bool {
        let state = self.lock();
        let slot = &state.slots[i];
        let is_unloaded = matches!(slot.phase, Phase::Unloaded);
        self.limits.idle.is_some() && slot.loads > 0 && is_unloaded && slot.error.is_none()
    }

    /// Returns the largest sum of the models' bytes so far.
    pub(crate) fn peak(&self) -> u64 {
        self.lock().peak
    }

    /// Returns the facts that a model's file tells; empty if it cannot be read. Blocks while the
    /// file is read for the first time.
    pub(crate) fn facts(&self, i: usize) -> Facts {
        let entry = self.entry(i);
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
