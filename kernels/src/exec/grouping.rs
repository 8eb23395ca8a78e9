//! Choices of experts, sorted so that all rows of an expert are multiplied together.

use octavo_simd::generic::routing::place;

/// Choices of one expert that are multiplied together.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) expert: usize,
    /// Index of the first among the sorted choices, and their number.
    pub(super) first: usize,
    pub(super) len: usize,
    /// Row at which their tiles begin.
    pub(super) tiled: usize,
}

/// Choices sorted by expert.
#[derive(Default)]
pub(super) struct Grouping {
    /// Choices, grouped by expert in order.
    pub(super) choices: Vec<u32>,
    pub(super) runs: Vec<Run>,
    /// End of each expert's choices.
    ends: Vec<usize>,
    /// Scratch for the choices of a run that are not done yet.
    pub(super) mine: Vec<u32>,
}

impl Grouping {
    /// Makes room.
    pub(super) fn reserve(&mut self, choices: usize, experts: usize) {
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
            // start of its choices, for now
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
