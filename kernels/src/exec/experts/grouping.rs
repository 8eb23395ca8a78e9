//! Choices of experts, sorted so that all rows of an expert are multiplied together.

use crate::generic::routing::place;

/// Choices of one expert that are multiplied together.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) expert: usize,
    /// Where they begin among the sorted ones, and how many there are.
    pub(super) first: usize,
    pub(super) len: usize,
    /// Where their tiles begin, in rows.
    pub(super) tiled: usize,
}

/// Choices sorted by expert.
#[derive(Default)]
pub(in crate::exec) struct Grouping {
    /// Of each expert in order.
    pub(super) choices: Vec<u32>,
    pub(super) runs: Vec<Run>,
    /// By expert: where its choices end.
    ends: Vec<usize>,
    /// Room for those of a run that are not done yet.
    pub(super) mine: Vec<u32>,
}

impl Grouping {
    /// Makes room.
    pub(in crate::exec) fn reserve(&mut self, choices: usize, experts: usize) {
        let more = |have: usize, want: usize| want.saturating_sub(have);
        self.choices.reserve(more(self.choices.len(), choices));
        self.mine.reserve(more(self.mine.len(), choices));
        self.runs.reserve(more(self.runs.len(), choices));
        self.ends.reserve(more(self.ends.len(), experts));
    }

    /// Sorts the choices by expert, and those of one expert into runs of at most `most`; a tile is
    /// `tile` rows.
    pub(super) fn sort(&mut self, ids: &[f32], experts: usize, most: usize, tile: usize) {
        let Grouping {
            choices,
            runs,
            ends,
            ..
        } = self;
        ends.clear();
        ends.resize(experts, 0);
        for id in ids {
            ends[place(*id, experts)] += 1;
        }
        let mut before = 0;
        for end in ends.iter_mut() {
            // where its choices begin, for now
            (before, *end) = (before + *end, before);
        }
        choices.clear();
        choices.resize(ids.len(), 0);
        for (choice, id) in ids.iter().enumerate() {
            let at = &mut ends[place(*id, experts)];
            choices[*at] = choice as u32;
            *at += 1;
        }
        runs.clear();
        let (mut start, mut tiled) = (0, 0);
        for (expert, end) in ends.iter().enumerate() {
            for first in (start..*end).step_by(most) {
                let len = most.min(end - first);
                runs.push(Run {
                    expert,
                    first,
                    len,
                    tiled,
                });
                tiled += len.next_multiple_of(tile);
            }
            start = *end;
        }
    }
}
