//! Manages the states of recurrent layers. A state is what they keep of a text up to some position.
//! It cannot be undone, and is never changed: a step reads one and writes others, so that texts
//! with a common prefix share it, and a sequence can go back to an older one.

use super::PAGE;
use super::block_pool::{BlockPool, OutOfPages, PageId};

/// Slots for states, counted like pages.
pub(super) struct StatePool(BlockPool);

impl StatePool {
    pub(super) fn new(slots: u32) -> StatePool {
        StatePool(BlockPool::new(slots))
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.free_pages()
    }

    /// Adds an owner.
    pub(super) fn retain(&mut self, slot: PageId) {
        self.0.retain(slot);
    }

    /// Removes an owner.
    pub(super) fn release(&mut self, slot: PageId) {
        self.0.release(slot);
    }

    /// Returns whether it has an owner beside the one who asks.
    pub(super) fn is_shared(&self, slot: PageId) -> bool {
        self.0.is_shared(slot)
    }
}

/// A state, and the number of positions before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Number of positions before it.
    pub len: usize,
    /// Slot that holds it.
    pub slot: PageId,
}

/// States that a sequence keeps beside its current one, so that it can go back.
pub(crate) const CHECKPOINTS: usize = 4;
/// States that a step may write, at most: after all its tokens, and after the last full page.
pub(crate) const WRITES: usize = 2;
/// States that a step with draft tokens writes beside these, at most: after the tokens before the
/// first draft token, and after each of the next ones, because any of them may be the last that is
/// accepted.
pub(crate) const DRAFT_WRITES: usize = 5;

/// The states of a sequence.
#[derive(Debug, Default)]
pub(super) struct StateCheckpoints {
    /// In order of position; the last is the current one.
    past: Vec<Checkpoint>,
    /// Those that the next step writes, likewise.
    next: Vec<Checkpoint>,
    /// Number of positions before the state that is never dropped to save slots.
    pinned: Option<usize>,
    /// Number of positions before the draft tokens of the next step, if it has any.
    drafts: Option<usize>,
}

impl StateCheckpoints {
    /// Returns the current state; `None` at the beginning of the sequence.
    pub(super) fn current(&self) -> Option<PageId> {
        self.past.last().map(|state| state.slot)
    }

    pub(super) fn next(&self) -> &[Checkpoint] {
        &self.next
    }

    /// Returns the state after `len` positions, if it is retained.
    pub(super) fn at(&self, len: usize) -> Option<PageId> {
        let state = self.past.iter().find(|state| state.len == len);
        state.map(|state| state.slot)
    }

    /// Keeps the state after `len` positions, once it is written, until
    /// [`StateCheckpoints::truncate`] goes back before it.
    pub(super) fn pin(&mut self, len: usize) {
        self.pinned = Some(len);
    }

    /// Announces that the next step has draft tokens, the first of them after `from` positions.
    pub(super) fn expect_drafts(&mut self, from: usize) {
        self.drafts = Some(from);
    }

    /// Reserves slots for the states that a step from `len` to `end` writes, while `give_up` can
    /// evict some from the prefix cache. All or nothing, but for the states between draft tokens:
    /// without those, tokens that were accepted are computed again.
    pub(super) fn reserve(
        &mut self,
        pool: &mut StatePool,
        len: usize,
        end: usize,
        give_up: &mut dyn FnMut(&mut StatePool) -> bool,
    ) -> Result<(), OutOfPages> {
        let page = end / PAGE * PAGE;
        let ends = [page, end].into_iter().filter(|at| *at > len);
        let mut ends: Vec<usize> = ends.collect();
        ends.dedup();
        let is_reserved = |at: &usize| self.next.iter().any(|state| state.len == *at);
        let last = self.next.last().map(|state| state.len);
        if last == ends.last().copied() && ends.iter().all(is_reserved) {
            return Ok(());
        }
        self.give_back_next(pool);
        self.thin(pool, len, CHECKPOINTS);
        let slots = loop {
            match pool.0.alloc(ends.len()) {
                Ok(slots) => break slots,
                Err(_) if give_up(pool) => {}
                Err(short) => {
                    let before = self.past.len();
                    self.thin(pool, len, 0);
                    if self.past.len() == before {
                        return Err(short);
                    }
                }
            }
        };
        let states = ends.into_iter().zip(slots);
        self.next = states.map(|(len, slot)| Checkpoint { len, slot }).collect();
        self.reserve_between_drafts(pool, len, end);
        Ok(())
    }

    /// Reserves slots for the states between draft tokens, as far as there are free ones.
    fn reserve_between_drafts(&mut self, pool: &mut StatePool, len: usize, end: usize) {
        let Some(from) = self.drafts.filter(|from| *from > len) else {
            return;
        };
        for len in (from..end).take(DRAFT_WRITES) {
            if self.next.iter().any(|state| state.len == len) {
                continue;
            }
            let Some(slot) = pool
                .0
                .alloc(1)
                .ok()
                .and_then(|slots| slots.first().copied())
            else {
                break;
            };
            self.next.push(Checkpoint { len, slot });
        }
        self.next.sort_by_key(|state| state.len);
    }

    /// Records that the step has been taken.
    ///
    /// # Panics
    /// If slots were reserved for another step.
    pub(super) fn advance(&mut self, end: usize) {
        self.drafts = None;
        if let Some(last) = self.next.last() {
            assert_eq!(last.len, end, "states of another step");
            self.past.append(&mut self.next);
        }
    }

    /// Drops states after more than `n` positions; returns the number of positions before the last
    /// one left.
    pub(super) fn truncate(&mut self, pool: &mut StatePool, n: usize) -> usize {
        self.give_back_next(pool);
        while let Some(last) = self.past.pop_if(|state| state.len > n) {
            pool.release(last.slot);
        }
        self.past.last().map_or(0, |state| state.len)
    }

    /// Returns the same states, shared.
    pub(super) fn fork(&self, pool: &mut StatePool) -> StateCheckpoints {
        self.past.iter().for_each(|state| pool.retain(state.slot));
        StateCheckpoints {
            past: self.past.clone(),
            next: Vec::new(),
            pinned: self.pinned,
            drafts: None,
        }
    }

    /// Goes on from a state of another owner.
    pub(super) fn adopt(&mut self, pool: &mut StatePool, len: usize, slot: PageId) {
        pool.retain(slot);
        self.past.push(Checkpoint { len, slot });
    }

    fn give_back_next(&mut self, pool: &mut StatePool) {
        for state in self.next.drain(..) {
            pool.release(state.slot);
        }
    }

    /// Keeps the current state, the pinned one, and at most `most` others, all of them after full
    /// pages, because no others can be cached along with a page. If there are more, it first drops
    /// those closest to their neighbours, as seen from the end.
    fn thin(&mut self, pool: &mut StatePool, len: usize, most: usize) {
        let Some(current) = self.past.pop() else {
            return;
        };
        let mut retained: Vec<Checkpoint> = Vec::with_capacity(self.past.len());
        for state in self.past.drain(..) {
            if state.len.is_multiple_of(PAGE) {
                retained.push(state);
            } else {
                pool.release(state.slot);
            }
        }
        let pinned = self.pinned;
        let is_pinned = |state: &Checkpoint| Some(state.len) == pinned;
        while retained.iter().filter(|state| !is_pinned(state)).count() > most {
            let gap = |i: &usize| {
                let before = i.checked_sub(1).map_or(0, |i| retained[i].len);
                let after = retained.get(i + 1).map_or(current.len, |state| state.len);
                // the same distance counts for less the farther back it is
                (after - before) as f64 / (len + PAGE - before) as f64
            };
            let free = (0..retained.len()).filter(|&i| !is_pinned(&retained[i]));
            let least = free.min_by(|a, b| gap(a).total_cmp(&gap(b)));
            let dropped = retained.remove(least.expect("there are more than none"));
            pool.release(dropped.slot);
        }
        self.past = retained;
        self.past.push(current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step with draft tokens that failed is followed by one without them.
    #[test]
    fn states_between_drafts_are_given_back_where_a_step_has_none() {
        let (mut pool, mut states) = (StatePool::new(8), StateCheckpoints::default());
        let mut reserve = |states: &mut StateCheckpoints, end: usize| {
            states
                .reserve(&mut pool, 0, end, &mut |_| false)
                .expect("there are slots");
            let ends = states.next().iter().map(|state| state.len);
            ends.collect::<Vec<usize>>()
        };
        states.expect_drafts(3);
        assert_eq!(reserve(&mut states, 6), [3, 4, 5, 6]);
        assert_eq!(reserve(&mut states, 6), [3, 4, 5, 6]);
        assert_eq!(reserve(&mut states, 3), [3]);
        states.advance(3);
        assert_eq!(pool.free(), 7);
    }
}
