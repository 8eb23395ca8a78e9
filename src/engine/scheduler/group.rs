//! Beams of one request: sequences that run, wait and end together, because none of them can go on
//! before the best followers of all of them are known.
//!
//! A group owns consecutive ids for as many beams as it may have, and as many places, from its
//! first token on: if only some of its beams found room, they would wait for the others for ever.

use std::ops::Range;

use super::Scheduler;
use super::sequence::{RequestId, Sequence, State, StepPlan};
use crate::kv::KvCacheManager;

impl Scheduler {
    /// Returns the number of places in use: one for a request that runs, and for a group all that
    /// it may need.
    pub(crate) fn running(&self) -> usize {
        self.running_groups().map(|group| group[0].width).sum()
    }

    /// Returns the number of requests that do not run; all beams of a request count as one.
    pub(crate) fn waiting(&self) -> usize {
        self.groups().count() - self.running_groups().count()
    }

    /// Returns whether all beams of a group are computed to their ends.
    pub(crate) fn is_level(&self, group: RequestId) -> bool {
        let is_done = |sequence: &Sequence| {
            sequence.state == State::Running && sequence.kv.len() == sequence.tokens.len()
        };
        let place = self.place(group);
        place.is_some_and(|at| self.sequences[self.members(at)].iter().all(is_done))
    }

    /// Replaces the beams of a group. Each new beam is given by the index of a present one and the
    /// token that follows it. The pages of beams without a follower are freed.
    ///
    /// # Panics
    /// If there are none, or more than the group may have.
    pub(crate) fn regroup(
        &mut self,
        kv_cache: &mut KvCacheManager,
        group: RequestId,
        next: &[(usize, u32)],
    ) {
        let Some(at) = self.place(group) else { return };
        let all = self.members(at);
        let before = &self.sequences[all.clone()];
        let most = before[0].width;
        assert!((1..=most).contains(&next.len()), "1 to {most} beams");
        let follow = |(id, &(parent, token)): (RequestId, &(usize, u32))| {
            before[parent].followed_by(kv_cache, id, token)
        };
        let mut next: Vec<Sequence> = (group..).zip(next).map(follow).collect();
        next[0].reused.recomputed = before
            .iter()
            .map(|sequence| sequence.reused.recomputed)
            .sum();
        for mut sequence in self.sequences.splice(all, next) {
            kv_cache.truncate(&mut sequence.kv, 0);
        }
    }

    /// Returns the indices of all beams in the group of a sequence.
    pub(super) fn members(&self, at: usize) -> Range<usize> {
        let group = self.sequences[at].group;
        let start = self
            .sequences
            .partition_point(|sequence| sequence.group < group);
        start
            ..self
                .sequences
                .partition_point(|sequence| sequence.group <= group)
    }

    /// Returns the groups with a running beam.
    pub(super) fn running_groups(&self) -> impl Iterator<Item = &[Sequence]> {
        let runs = |group: &&[Sequence]| {
            group
                .iter()
                .any(|sequence| sequence.state == State::Running)
        };
        self.groups().filter(runs)
    }

    /// Returns whether the group of a sequence has a running beam.
    pub(super) fn is_of_running_group(&self, at: usize) -> bool {
        let mut all = self.sequences[self.members(at)].iter();
        all.any(|sequence| sequence.state == State::Running)
    }

    /// Returns whether all beams in the group of a sequence run. Those that do not will resume on
    /// the pages of another, from the prefix that they have in common.
    pub(super) fn all_run(&self, at: usize) -> bool {
        let mut all = self.sequences[self.members(at)].iter();
        all.all(|sequence| sequence.state == State::Running)
    }

    /// Lets a beam run again beside one that has computed the prompt, from the prefix that the two
    /// have in common: so full pages of the prompt are shared even without a prefix cache.
    pub(super) fn joins(&mut self, kv_cache: &mut KvCacheManager, at: usize) -> bool {
        let has_read = |i: &usize| self.sequences[*i].generates();
        let Some(of) = self.members(at).find(has_read) else {
            return false;
        };
        let mut kv = kv_cache.fork(&self.sequences[of].kv);
        let (own, other) = (&self.sequences[at].tokens, &self.sequences[of].tokens);
        let alike = own.iter().zip(other).take_while(|(a, b)| a == b).count();
        // the last token is always computed: its outputs choose the next one
        kv_cache.truncate(&mut kv, alike.min(own.len() - 1));
        let sequence = &mut self.sequences[at];
        sequence.reused.recomputed += sequence.tokens.len() - 1 - kv.len();
        sequence.kv = kv;
        sequence.state = State::Running;
        true
    }

    /// Preempts a sequence: frees its pages and those of all beams in its group.
    pub(super) fn preempt(
        &mut self,
        kv_cache: &mut KvCacheManager,
        at: usize,
        plan: &mut StepPlan,
    ) {
        let all = self.members(at);
        for sequence in &mut self.sequences[all] {
            kv_cache.truncate(&mut sequence.kv, 0);
            sequence.state = State::Preempted;
            // its pages may be evicted before it runs again
            sequence.is_looked_up = false;
        }
        plan.retract(self.sequences[at].group);
        self.has_preempted = true;
        self.preemptions += 1;
    }

    /// Returns all sequences, those of a group together.
    fn groups(&self) -> impl Iterator<Item = &[Sequence]> {
        self.sequences.chunk_by(|a, b| a.group == b.group)
    }
}
