//! Which join comes next: the lowest key, leftmost on ties.
//!
//! A heap of all pairs of a megabyte costs more in cache misses than all the rest. Pairs of one key
//! mostly arrive from left to right, so each key has a list that is usually sorted already, and
//! only the few keys in use form a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use super::hash::KeyedHasher;

/// A possible join: where it starts, and how many bytes it covers (which tells whether it is out of
/// date).
pub(super) type Join = (u32, u32);

/// The joins still to be tried.
#[derive(Default)]
pub(super) struct Agenda {
    keys: BinaryHeap<Reverse<u32>>,
    lists: HashMap<u32, List, BuildHasherDefault<KeyedHasher>>,
    /// Emptied lists, to be filled again.
    spare: Vec<List>,
}

#[derive(Default)]
struct List {
    joins: Vec<Join>,
    /// How many of `joins` are done.
    done: usize,
    sorted: bool,
    started: bool,
    /// Joins that came after the first of this key was taken.
    late: BinaryHeap<Reverse<Join>>,
}

impl Agenda {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.spare
            .extend(self.lists.drain().map(|(_, list)| list.emptied()));
    }

    /// Adds a join.
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

    /// Takes the next join.
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
