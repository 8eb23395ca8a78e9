//! Admission and preemption: requests begin in order of arrival, with what the prefix cache holds
//! of them; when pages run out, the newest running request is preempted.

use super::Scheduler;
use super::sequence::{self, RequestId, Sequence, State, StepPlan};
use crate::kv::{KvCacheManager, PAGE};

impl Scheduler {
    /// Returns the requests that may begin in the next prefill step and were not returned before:
    /// those whose pages to look for on disk.
    pub(crate) fn take_lookups(&mut self) -> Vec<RequestId> {
        let places = self.settings.sequences.saturating_sub(self.running());
        let may_begin = |sequence: &&mut Sequence| {
            sequence.state != State::Running && sequence.id == sequence.group
        };
        let next = self.sequences.iter_mut().filter(may_begin).take(places);
        let new = next.filter(|sequence| !sequence.wants_all && !sequence.is_looked_up);
        let look_up = |sequence: &mut Sequence| {
            sequence.is_looked_up = true;
            sequence.id
        };
        new.map(look_up).collect()
    }

    /// Lets a request run that does not, if it may. `is_open` becomes false if there is no place or
    /// no room: then no newer request may begin either, or this one would wait for ever.
    pub(super) fn may_run(
        &mut self,
        kv_cache: &mut KvCacheManager,
        at: usize,
        is_open: &mut bool,
    ) -> bool {
        if self.is_of_running_group(at) {
            return self.joins(kv_cache, at);
        }
        let places = self.running() + self.sequences[at].width;
        *is_open = *is_open && !self.has_preempted && places <= self.settings.sequences;
        *is_open && self.begins(kv_cache, at, is_open)
    }

    /// Lets a waiting request begin with what the cache holds of it, if there is room.
    fn begins(&mut self, kv_cache: &mut KvCacheManager, at: usize, is_open: &mut bool) -> bool {
        let sequence = &mut self.sequences[at];
        let mut cached = 0;
        if self.settings.prefixes && !sequence.wants_all {
            cached = sequence.adopt(kv_cache, self.settings.reuse_generated);
        }
        let waits = self.settings.prefixes && self.is_being_read(at);
        let promised: usize = self.running_groups().map(sequence::pages_to_come).sum();
        let needed = sequence::pages_to_come(&self.sequences[self.members(at)]) + promised;
        *is_open = waits || needed <= kv_cache.available() || self.running() == 0;
        let sequence = &mut self.sequences[at];
        if waits || !*is_open {
            kv_cache.truncate(&mut sequence.kv, 0);
            return false;
        }
        match sequence.state {
            State::Preempted => sequence.reused.recomputed += sequence.tokens.len() - 1 - cached,
            _ => sequence.reused.cached = cached,
        }
        sequence.state = State::Running;
        true
    }

    /// Returns whether another request is just computing the page that comes next in this one.
    fn is_being_read(&self, at: usize) -> bool {
        let sequence = &self.sequences[at];
        let next = |sequence: &Sequence| {
            let key = sequence.prefix_key(self.settings.reuse_generated);
            key.page(sequence.kv.len() / PAGE)
        };
        let alike = |other: &&Sequence| {
            other.state == State::Running
                && other.reads()
                && other.salt == sequence.salt
                && KvCacheManager::is_at_same_page(&other.kv, &sequence.kv)
                && next(other) == next(sequence)
        };
        let may_take = !sequence.wants_all && sequence.kv.len() + PAGE < sequence.tokens.len();
        may_take && self.sequences.iter().any(|other| alike(&other))
    }

    /// Reserves pages for `n` more tokens of a request, if need be by preempting newer ones;
    /// returns false if there is no room, or the request itself was preempted.
    pub(super) fn reserve(
        &mut self,
        kv_cache: &mut KvCacheManager,
        at: usize,
        n: usize,
        plan: &mut StepPlan,
    ) -> bool {
        loop {
            let sequence = &mut self.sequences[at];
            let end = sequence.kv.len() + n;
            let short = match kv_cache.reserve(&mut sequence.kv, end) {
                Ok(copies) => {
                    plan.copies.extend(copies);
                    return true;
                }
                Err(short) => short,
            };
            let own = self.sequences[at].group;
            let mut running = self.sequences.iter().enumerate();
            let newest = running.rfind(|(_, sequence)| sequence.state == State::Running);
            let newest = newest.map_or(at, |(newest, _)| newest);
            let is_own = self.sequences[newest].group == own;
            if is_own && self.running_groups().all(|group| group[0].group == own) {
                plan.failed.push((self.sequences[at].id, short));
                return false;
            }
            self.preempt(kv_cache, newest, plan);
            if is_own {
                return false;
            }
        }
    }
}
