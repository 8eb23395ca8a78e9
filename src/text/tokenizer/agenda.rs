//! Priority queue of merges: the lowest key first, leftmost on ties.
//!
//! A heap of all pairs of a megabyte of text costs more in cache misses than everything else. Pairs
//! with the same key mostly arrive from left to right, so each key has a list that is usually
//! sorted already, and only the few keys in use form a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use super::hash::KeyedHasher;

/// Candidate merge: its start, and its length in bytes (by which an outdated one is recognised).
pub(super) type Join = (u32, u32);

/// Merges still to be tried.
#[derive(Default)]
pub(super) struct Agenda {
    keys: BinaryHeap<Reverse<u32>>,
    lists: HashMap<u32, List, BuildHasherDefault<KeyedHasher>>,
    /// Emptied lists, for reuse.
    spare: Vec<List>,
}

#[derive(Default)]
struct List {
    joins: Vec<Join>,
    /// Number of `joins` already taken.
    done: usize,
    sorted: bool,
    started: bool,
    /// Merges added after the first one of this key was taken.
    late: BinaryHeap<Reverse<Join>>,
}

impl Agenda {
    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.spare
            .extend(self.lists.drain().map(|(_, list)| list.emptied()));
    }

    /// Adds a candidate merge.
    pub(super) fn push(&mut self, key: u32, join: Join) {
        let list = self.lists.entry(key).or_insert_with(|| {
            self.keys.push(Reverse(key));
            self.spare.pop().unwrap_or_default()
        });
        if list.started {
            list.late.push(Reverse(join));
            return;
        }
        list.sorted = list
            .joins
            .last()
            .is_none_or(|last| list.sorted && last.0 <= join.0);
        list.joins.push(join);
    }

    /// Takes the next candidate merge.
    pub(super) fn pop(&mut self) -> Option<(u32, Join)> {
        loop {
            let Reverse(key) = *self.keys.peek()?;
            if let Some(join) = self.lists.get_mut(&key).and_then(List::pop) {
                return Some((key, join));
            }
            self.keys.pop();
            self.spare
                .extend(self.lists.remove(&key).map(List::emptied));
        }
    }
}

impl List {
    fn pop(&mut self) -> Option<Join> {
        if !self.started {
            self.started = true;
            if !self.sorted {
                self.joins.sort_unstable();
            }
        }
        let first = self.joins.get(self.done).copied();
        match (first, self.late.peek()) {
            (Some(first), Some(Reverse(late))) if *late < first => {
                self.late.pop().map(|Reverse(join)| join)
            }
            (Some(first), _) => {
                self.done += 1;
                Some(first)
            }
            (None, _) => self.late.pop().map(|Reverse(join)| join),
        }
    }

    fn emptied(mut self) -> List {
        self.joins.clear();
        self.late.clear();
        List {
            done: 0,
            sorted: false,
            started: false,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pops_like_a_heap(
            steps in prop::collection::vec((any::<bool>(), 0_u32..5, 0_u32..20), 0..200)
        ) {
            let (mut agenda, mut heap) = (Agenda::default(), BinaryHeap::new());
            for round in 0..2 {
                for (push, key, left) in &steps {
                    if *push {
                        agenda.push(*key, (*left, round));
                        heap.push(Reverse((*key, (*left, round))));
                    } else {
                        prop_assert_eq!(agenda.pop(), heap.pop().map(|Reverse(next)| next));
                    }
                }
                if round == 0 {
                    agenda.clear();
                    heap.clear();
                }
            }
            while let Some(Reverse(next)) = heap.pop() {
                prop_assert_eq!(agenda.pop(), Some(next));
            }
            prop_assert_eq!(agenda.pop(), None);
        }
    }
}
