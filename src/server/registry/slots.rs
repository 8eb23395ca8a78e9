//! Decides which models are loaded and unloaded, and when: a state with no threads and no clock of
//! its own, so that tests can run it through any order of events.
//!
//! Models are loaded one at a time, in the order in which they were asked for. The first of the
//! queue is given memory: models without requests are unloaded, the least recently used first, then
//! those with requests, which end before that. A model counts from the moment it begins to load
//! until its memory is free again, so that the limits hold at any time. Nothing overtakes the first
//! of the queue, so that no model waits forever.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::models::ModelLimits;

/// State of all models; `M` is a loaded one.
pub(super) struct State<M> {
    pub(super) slots: Vec<Slot<M>>,
    /// Models that are to be loaded, in order.
    queue: VecDeque<usize>,
    pub(super) is_closing: bool,
    /// Whether a model has changed its phase since this was last taken.
    pub(super) has_changed: bool,
    /// Largest sum of bytes so far.
    pub(super) peak: u64,
}

/// State of one model.
pub(super) struct Slot<M> {
    pub(super) phase: Phase<M>,
    /// Whether it stays loaded for as long as the server runs.
    pub(super) is_fixed: bool,
    /// Bytes that it takes once it is loaded; 0 before they are planned.
    pub(super) bytes: u64,
    /// Requests that use it.
    pub(super) users: usize,
    /// Requests that wait for it.
    pub(super) waiting: usize,
    /// Whether it is to be loaded although no request waits for it.
    pub(super) is_ordered: bool,
    pub(super) last_used: Instant,
    /// Number of attempts to load it that have ended, and the error of the last one.
    pub(super) attempts: u64,
    pub(super) error: Option<String>,
    /// Number of times that it was loaded, and the time for all of them.
    pub(super) loads: u64,
    pub(super) load_time: Duration,
}

/// Phase of a model's life.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase<M> {
    Unloaded,
    /// The memory that it needs is being planned.
    Planning,
    /// It waits in the queue.
    Queued,
    Loading,
    Loaded(M),
    /// It takes no new requests, and is unloaded after the last one, or at the time given.
    Draining {
        model: M,
        until: Option<Instant>,
    },
    /// Its memory is being freed.
    Unloading,
}

/// Work that is due, for a thread of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job<M> {
    /// Loads a model, and calls [`State::loaded`] or [`State::failed`].
    Load(usize),
    /// Drops a model, and calls [`State::unloaded`].
    Unload(usize, M),
    /// Ends the requests of a model, whose time is over.
    End(M),
}

impl<M: Clone> State<M> {
    /// Creates the state of these models: loaded with a number of bytes, or unloaded.
    pub(super) fn new(models: impl Iterator<Item = (Option<(M, u64)>, bool)>) -> State<M> {
        let now = Instant::now();
        let slots = models.map(|(loaded, is_fixed)| {
            let slot = Slot::new(now);
            match loaded {
                Some((model, bytes)) => Slot {
                    loads: 1,
                    phase: Phase::Loaded(model),
                    is_fixed,
                    bytes,
                    ..slot
                },
                None => Slot { is_fixed, ..slot },
            }
        });
        let mut state = State {
            slots: slots.collect(),
            queue: VecDeque::new(),
            is_closing: false,
            has_changed: false,
            peak: 0,
        };
        state.peak = state.used();
        state
    }

    /// Returns the bytes of all models that are in memory, or begin or cease to be.
    pub(super) fn used(&self) -> u64 {
        let counted = self.slots.iter().filter(|slot| slot.counts());
        counted.map(|slot| slot.bytes).sum()
    }

    fn count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.counts()).count()
    }

    /// Puts a planned model at the end of the queue, unless no request waits for it any more.
    pub(super) fn planned(&mut self, i: usize, bytes: u64) {
        self.has_changed = true;
        let slot = &mut self.slots[i];
        slot.bytes = bytes;
        slot.phase = match slot.is_wanted() && !self.is_closing {
            true => Phase::Queued,
            false => Phase::Unloaded,
        };
        if matches!(slot.phase, Phase::Queued) {
            self.queue.push_back(i);
        }
    }

    /// Takes a model that was loaded and has this many bytes. If they are more than was planned,
    /// and too many, the model is returned, to be dropped; it then [returns](State::requeue) to the
    /// queue.
    pub(super) fn loaded(
        &mut self,
        i: usize,
        (model, bytes): (M, u64),
        limits: &ModelLimits,
        time: Duration,
    ) -> Result<(), M> {
        self.has_changed = true;
        let others = self.used() - self.slots[i].bytes;
        let slot = &mut self.slots[i];
        let is_over = bytes > slot.bytes && limits.memory.is_some_and(|all| others + bytes > all);
        slot.bytes = bytes;
        if is_over || self.is_closing {
            slot.phase = Phase::Unloading;
            return Err(model);
        }
        slot.phase = Phase::Loaded(model);
        slot.attempts += 1;
        slot.error = None;
        slot.is_ordered = false;
        slot.last_used = Instant::now();
        slot.loads += 1;
        slot.load_time += time;
        self.peak = self.peak.max(self.used());
        Ok(())
    }

    /// Returns a model to the head of the queue, after it took more memory than was planned and was
    /// dropped.
    pub(super) fn requeue(&mut self, i: usize) {
        self.slots[i].phase = Phase::Queued;
        self.queue.push_front(i);
    }

    /// Notes that a model could not be planned or loaded.
    pub(super) fn failed(&mut self, i: usize, error: String) {
        self.has_changed = true;
        let slot = &mut self.slots[i];
        slot.phase = Phase::Unloaded;
        slot.attempts += 1;
        slot.error = Some(error);
        slot.is_ordered = false;
    }

    /// Notes that a model's memory is free.
    pub(super) fn unloaded(&mut self, i: usize) {
        self.has_changed = true;
        self.slots[i].phase = Phase::Unloaded;
    }

    /// Refuses further loads: the server ends.
    pub(super) fn close(&mut self) {
        self.has_changed = true;
        self.is_closing = true;
        for i in std::mem::take(&mut self.queue) {
            self.slots[i].phase = Phase::Unloaded;
        }
    }

    /// Begins to unload a model, which may be in use until a time.
    pub(super) fn drain(&mut self, i: usize, until: Option<Instant>) {
        self.has_changed = true;
        let slot = &mut self.slots[i];
        slot.phase = match std::mem::replace(&mut slot.phase, Phase::Unloaded) {
            Phase::Loaded(model) => Phase::Draining { model, until },
            Phase::Draining {
                model,
                until: before,
            } => Phase::Draining {
                model,
                until: before.into_iter().chain(until).min(),
            },
            other => other,
        };
    }

    /// Does what is due, and returns the work for threads.
    pub(super) fn advance(&mut self, limits: &ModelLimits, now: Instant) -> Vec<Job<M>> {
        let mut jobs = Vec::new();
        if !self.is_closing {
            self.drain_idle(limits, now);
            self.forget_unwanted();
            self.load_next(limits, &mut jobs);
        }
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Phase::Draining { model, until } = &mut slot.phase else {
                continue;
            };
            if slot.users == 0 {
                jobs.push(Job::Unload(i, model.clone()));
                slot.phase = Phase::Unloading;
            } else if until.is_some_and(|until| until <= now) {
                jobs.push(Job::End(model.clone()));
                *until = None;
            }
        }
        jobs
    }

    /// Returns when something is due next.
    pub(super) fn due(&self, limits: &ModelLimits) -> Option<Instant> {
        let due = |slot: &Slot<M>| match &slot.phase {
            Phase::Loaded(_) if slot.is_idle() => Some(slot.last_used + limits.idle?),
            Phase::Draining { until, .. } => *until,
            _ => None,
        };
        self.slots.iter().filter_map(due).min()
    }

    fn drain_idle(&mut self, limits: &ModelLimits, now: Instant) {
        let Some(idle) = limits.idle else {
            return;
        };
        for i in 0..self.slots.len() {
            let slot = &self.slots[i];
            if slot.is_idle() && now.saturating_duration_since(slot.last_used) >= idle {
                self.drain(i, None);
            }
        }
    }

    fn forget_unwanted(&mut self) {
        let slots = &mut self.slots;
        self.queue.retain(|&i| {
            let slot = &mut slots[i];
            if !slot.is_wanted() {
                slot.phase = Phase::Unloaded;
            }
            slot.is_wanted()
        });
    }

    /// Begins to load the first of the queue, or makes room for it.
    fn load_next(&mut self, limits: &ModelLimits, jobs: &mut Vec<Job<M>>) {
        let is_loading = |slot: &Slot<M>| matches!(slot.phase, Phase::Loading);
        while !self.slots.iter().any(is_loading)
            && let Some(&i) = self.queue.front()
        {
            if let Some(error) = self.is_too_large(i, limits) {
                self.queue.pop_front();
                self.failed(i, error);
                continue;
            }
            let (bytes, n) = (self.used() + self.slots[i].bytes, self.count() + 1);
            if limits.hold(bytes, n) {
                self.queue.pop_front();
                self.slots[i].phase = Phase::Loading;
                self.peak = self.peak.max(bytes);
                jobs.push(Job::Load(i));
            } else {
                self.make_room(i, limits);
            }
            return;
        }
    }

    /// Returns an error if a model does not fit beside those that stay loaded.
    fn is_too_large(&self, i: usize, limits: &ModelLimits) -> Option<String> {
        let fixed = || self.slots.iter().filter(|slot| slot.is_fixed);
        let (taken, need) = (
            fixed().map(|slot| slot.bytes).sum::<u64>(),
            self.slots[i].bytes,
        );
        if limits.hold(taken + need, fixed().count() + 1) {
            return None;
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Some(match limits.memory {
            Some(all) if taken + need > all => format!(
                "it takes {} MiB, and the models of this server have {} MiB",
                mib(need),
                mib(all.saturating_sub(taken))
            ),
            _ => "the models that stay loaded are as many as may be loaded".to_owned(),
        })
    }

    /// Drains models until the one at `i` will fit, as far as there are any to drain.
    fn make_room(&mut self, i: usize, limits: &ModelLimits) {
        let leaving = || self.slots.iter().filter(|slot| slot.is_leaving());
        let mut bytes = self.used() + self.slots[i].bytes - leaving().map(|s| s.bytes).sum::<u64>();
        let mut n = self.count() + 1 - leaving().count();
        while !limits.hold(bytes, n) {
            // those that wait for a model get it before it goes
            let may_go = |slot: &Slot<M>| {
                matches!(slot.phase, Phase::Loaded(_)) && !slot.is_fixed && slot.waiting == 0
            };
            let models = self.slots.iter().enumerate();
            let models = models.filter(|(_, slot)| may_go(slot));
            let least = models.min_by_key(|(_, slot)| (slot.users > 0, slot.last_used));
            let Some((victim, slot)) = least else {
                return;
            };
            bytes -= slot.bytes;
            n -= 1;
            self.drain(victim, None);
        }
    }
}

impl<M> Phase<M> {
    /// Returns llama-server's word for it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Phase::Unloaded => "unloaded",
            Phase::Planning | Phase::Queued | Phase::Loading => "loading",
            Phase::Loaded(_) => "loaded",
            Phase::Draining { .. } | Phase::Unloading => "unloading",
        }
    }
}

impl<M> Slot<M> {
    /// Creates the slot of a model that is not loaded.
    pub(super) fn new(now: Instant) -> Slot<M> {
        Slot {
            loads: 0,
            phase: Phase::Unloaded,
            is_fixed: false,
            bytes: 0,
            users: 0,
            waiting: 0,
            is_ordered: false,
            last_used: now,
            attempts: 0,
            error: None,
            load_time: Duration::ZERO,
        }
    }

    /// Returns the model, if it is loaded.
    pub(super) fn model(&self) -> Option<&M> {
        match &self.phase {
            Phase::Loaded(model) | Phase::Draining { model, .. } => Some(model),
            _ => None,
        }
    }

    /// Returns whether it is being unloaded.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Unloading)
    }

    /// Returns whether it takes memory.
    pub(super) fn counts(&self) -> bool {
        !matches!(
            self.phase,
            Phase::Unloaded | Phase::Planning | Phase::Queued
        )
    }

    /// Returns whether it is loaded, and may be unloaded without anybody noticing.
    fn is_idle(&self) -> bool {
        let is_used = self.is_fixed || self.users > 0 || self.waiting > 0;
        matches!(self.phase, Phase::Loaded(_)) && !is_used
    }

    fn is_wanted(&self) -> bool {
        self.waiting > 0 || self.is_ordered
    }
}

impl ModelLimits {
    /// Returns whether this many models of this many bytes may be loaded.
    fn hold(&self, bytes: u64, models: usize) -> bool {
        self.memory.is_none_or(|all| bytes <= all) && self.models.is_none_or(|all| models <= all)
    }
}

#[cfg(test)]
mod tests;
