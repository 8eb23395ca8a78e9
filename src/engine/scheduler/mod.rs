//! Decides which tokens of which requests are computed next. Knows no model, no text and no device;
//! it learns how long steps took and has no clock of its own.
//!
//! One round is a decode step, then a prefill step: a token's phase decides its kernels, so no step
//! mixes the two. A request's next token waits for no more than one chunk of prompts (chunked
//! prefill). When pages run out, the newest running request is preempted and recomputes its tokens
//! later, in the phases they had, so that its bits stay what they were. Beams of one request are a
//! group, which does all of this together.

mod admission;
mod group;
mod sequence;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use octavo_kernels::Phase;

use crate::image_registry::with_whole_images;
use crate::kv::{KvCacheManager, PAGE, SequenceKv};
pub use sequence::RequestId;
use sequence::State;
pub(crate) use sequence::{Asked, NextTokens, ScheduledChunk, Sequence, Settings, StepPlan};

/// Minimum number of prompt tokens in a step, however long they take, where few positions are
/// before them. One page: unpacking the weights takes about as long as multiplying them with it, so
/// half of this would save a quarter of the time and cost a third of the speed.
pub(crate) const MIN_CHUNK: usize = PAGE;

/// The minimum where many positions are before them, whose attention dominates a token's time.
const FEWEST: usize = 4;

/// Tokens of a preempted request to recompute in a step beside other requests that generate, and
/// alone: each costs about as much as another request.
const REPLAYS: usize = 8;
const REPLAYS_ALONE: usize = 64;

/// Weight of a new measurement in an estimate.
const NEWS: f64 = 0.3;

/// All requests, in order of arrival, and the plans of their steps.
pub(crate) struct Scheduler {
    settings: Settings,
    sequences: Vec<Sequence>,
    /// Measured prefill speed, in tokens per second.
    rate: Option<f64>,
    /// Measured time of a decode step, in seconds.
    step: f64,
    has_preempted: bool,
    preemptions: u64,
}

impl Scheduler {
    /// Creates a scheduler without requests.
    pub(crate) fn new(settings: Settings) -> Scheduler {
        Scheduler {
            settings,
            sequences: Vec::new(),
            rate: None,
            step: 0.0,
            has_preempted: false,
            preemptions: 0,
        }
    }

    /// Adds a request. It is newer than all others.
    ///
    /// # Panics
    /// If its id is not the highest.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        let last = self.sequences.last().map(|last| last.id);
        assert!(last < Some(sequence.id), "numbers go up");
        self.sequences.push(sequence);
    }

    /// Adds a request that goes on from another one, on the same pages until one of the two writes.
    /// Where no more requests may run it waits, and later adopts what is left in the cache.
    pub(crate) fn fork(&mut self, kv_cache: &mut KvCacheManager, of: RequestId, id: RequestId) {
        let may_run = self.running() < self.settings.sequences;
        let Some(at) = self.place(of) else { return };
        let parent = &self.sequences[at];
        let sequence = Sequence::new(id, parent.tokens.clone(), parent.salt.clone(), false);
        let mut sequence = sequence.with_adapters(parent.adapters.clone());
        sequence.n_prompt = parent.n_prompt;
        if may_run && parent.state == State::Running {
            sequence.kv = kv_cache.fork(&parent.kv);
            sequence.reused.cached = sequence.kv.len();
            sequence.state = State::Running;
        }
        self.add(sequence);
    }

    /// Removes a request, whatever its state, and frees its pages, with those of all its beams.
    /// Returns the first of them.
    pub(crate) fn remove(
        &mut self,
        kv_cache: &mut KvCacheManager,
        id: RequestId,
    ) -> Option<Sequence> {
        let all = self.members(self.place(id)?);
        let mut all: Vec<Sequence> = self.sequences.drain(all).collect();
        for sequence in &mut all {
            kv_cache.truncate(&mut sequence.kv, 0);
        }
        all.into_iter().next()
    }

    /// Lets a request that was just added run on pages which hold the first tokens of its prompt.
    ///
    /// # Panics
    /// If there is no such request, or its last token is among them: its outputs choose the next.
    pub(crate) fn begin_with(&mut self, id: RequestId, kv: SequenceKv) {
        let at = self.place(id).expect("a request of the scheduler");
        let sequence = &mut self.sequences[at];
        assert!(kv.len() < sequence.n_prompt, "{} are cached", kv.len());
        sequence.reused.cached = kv.len();
        sequence.kv = kv;
        sequence.state = State::Running;
    }

    /// Takes the pages of a request, and the tokens that they hold.
    pub(crate) fn take_kv(&mut self, id: RequestId) -> Option<(Vec<u32>, SequenceKv)> {
        let at = self.place(id)?;
        let sequence = &mut self.sequences[at];
        let kv = std::mem::take(&mut sequence.kv);
        Some((sequence.tokens[..kv.len()].to_vec(), kv))
    }

    /// Appends the token that was chosen next for a request.
    pub(crate) fn push(&mut self, id: RequestId, token: u32) {
        if let Some(at) = self.place(id) {
            self.sequences[at].tokens.push(token);
        }
    }

    /// Drops tokens of a request that has no draft tokens. What is left is its prompt from then on,
    /// of which the tokens before stay computed as far as they were part of one.
    pub(crate) fn shift(
        &mut self,
        kv_cache: &mut KvCacheManager,
        id: RequestId,
        dropped: Range<usize>,
    ) {
        let Some(at) = self.place(id) else { return };
        let sequence = &mut self.sequences[at];
        let kept = dropped.start.min(sequence.n_prompt);
        let computed = kv_cache.truncate(&mut sequence.kv, kept);
        sequence.adapters = Arc::new(sequence.adapters.without(&dropped));
        sequence.tokens.drain(dropped);
        sequence.n_prompt = sequence.tokens.len();
        // the last token is new
        sequence.reused.recomputed += sequence.n_prompt - 1 - computed;
    }

    /// Adds draft tokens to the next step of a request, if there is room.
    pub(crate) fn add_drafts(&mut self, id: RequestId, drafts: &[u32]) {
        if let Some(at) = self.place(id) {
            let sequence = &mut self.sequences[at];
            sequence.tokens.extend_from_slice(drafts);
            sequence.n_drafts += drafts.len();
        }
    }

    /// Accepts the first `accepted` draft tokens of a request, with what was computed up to them;
    /// drops the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn accept_drafts(
        &mut self,
        kv_cache: &mut KvCacheManager,
        id: RequestId,
        accepted: usize,
    ) {
        let Some(at) = self.place(id) else { return };
        let sequence = &mut self.sequences[at];
        assert!(
            accepted <= sequence.n_drafts,
            "{accepted} drafts are accepted"
        );
        sequence
            .tokens
            .truncate(sequence.tokens.len() - sequence.n_drafts + accepted);
        sequence.n_drafts = 0;
        if sequence.kv.len() > sequence.tokens.len() {
            kv_cache.truncate(&mut sequence.kv, sequence.tokens.len());
        }
    }

    /// Drops all draft tokens that were not accepted: no step had room for them.
    pub(crate) fn drop_drafts(&mut self) {
        for sequence in &mut self.sequences {
            sequence
                .tokens
                .truncate(sequence.tokens.len() - sequence.n_drafts);
            sequence.n_drafts = 0;
        }
    }

    /// Plans the decode step of all requests that generate.
    pub(crate) fn decodes(&mut self, kv_cache: &mut KvCacheManager) -> StepPlan {
        self.has_preempted = false;
        let mut plan = StepPlan::default();
        let mut replays = match self
            .sequences
            .iter()
            .filter(|sequence| sequence.generates())
            .count()
        {
            0 | 1 => REPLAYS_ALONE.min(self.settings.rows - 1),
            n => REPLAYS.min(self.settings.rows.saturating_sub(n)),
        };
        for at in 0..self.sequences.len() {
            let sequence = &self.sequences[at];
            let left = sequence.pending();
            let n = left.min(1 + replays);
            if n == 0 || !sequence.generates() {
                continue;
            }
            let has_drafts = n == left && self.has_room_for_drafts(kv_cache, at, &mut plan);
            if !has_drafts && !self.reserve(kv_cache, at, n, &mut plan) {
                continue;
            }
            let sequence = &self.sequences[at];
            match has_drafts {
                true => plan.push_with_drafts(sequence),
                false => plan.push(sequence, n, usize::from(n == left)),
            }
            replays -= n - 1;
        }
        plan
    }

    /// Reserves pages for what is left of a request and its draft tokens, if none need be taken
    /// from other requests; returns false if it has no draft tokens.
    fn has_room_for_drafts(
        &mut self,
        kv_cache: &mut KvCacheManager,
        at: usize,
        plan: &mut StepPlan,
    ) -> bool {
        let sequence = &mut self.sequences[at];
        if sequence.n_drafts == 0 {
            return false;
        }
        let end = sequence.tokens.len();
        sequence.kv.expect_drafts(end - sequence.n_drafts);
        let copies = kv_cache.reserve(&mut sequence.kv, end);
        let is_there = copies.is_ok();
        plan.copies.extend(copies.unwrap_or_default());
        is_there
    }

    /// Plans the prefill step, to be taken after the decode step. Waiting requests begin here, in
    /// order of arrival.
    pub(crate) fn prefills(&mut self, kv_cache: &mut KvCacheManager) -> StepPlan {
        let (mut plan, mut rows) = (StepPlan::default(), self.chunk());
        let (mut outputs, mut room) = (self.settings.outputs, self.settings.most_rows);
        let mut is_open = true;
        for at in 0..self.sequences.len() {
            if rows == 0 || outputs == 0 {
                break;
            }
            if self.sequences[at].state != State::Running
                && !self.may_run(kv_cache, at, &mut is_open)
            {
                continue;
            }
            let sequence = &self.sequences[at];
            let left = sequence.n_prompt.saturating_sub(sequence.kv.len());
            let n = left
                .min(rows)
                .min(if sequence.wants_all { outputs } else { rows });
            if self.settings.whole && n < left {
                // in a step of its own, before any newer request
                break;
            }
            let n = with_whole_images(&sequence.tokens, sequence.kv.len(), n);
            if n > room || (sequence.wants_all && n > outputs) {
                // an image in the next step, before any newer request
                break;
            }
            if n == 0 || !self.reserve(kv_cache, at, n, &mut plan) {
                continue;
            }
            let sequence = &self.sequences[at];
            let is_last = sequence.kv.len() + n == sequence.tokens.len();
            let n_outputs = if sequence.wants_all {
                n
            } else {
                usize::from(is_last)
            };
            plan.push(sequence, n, n_outputs);
            rows = rows.saturating_sub(n);
            room -= n;
            outputs -= n_outputs;
        }
        plan
    }

    /// Returns the sequences of a plan's chunks, in its order.
    pub(crate) fn planned(&mut self, plan: &StepPlan) -> Vec<&mut Sequence> {
        let mut chunks = plan.chunks.iter().peekable();
        let is_planned =
            |sequence: &&mut Sequence| chunks.next_if(|chunk| chunk.id == sequence.id).is_some();
        self.sequences.iter_mut().filter(is_planned).collect()
    }

    /// Records a step and its time: adds the pages that it filled to the prefix cache, and frees
    /// those behind sliding windows.
    pub(crate) fn took(
        &mut self,
        kv_cache: &mut KvCacheManager,
        phase: Phase,
        plan: &StepPlan,
        time: Duration,
    ) {
        let rows: usize = plan.chunks.iter().map(|chunk| chunk.n).sum();
        let seconds = time.as_secs_f64();
        if phase == Phase::Decode {
            self.step += NEWS * (seconds - self.step);
        } else if rows >= MIN_CHUNK.min(self.chunk()) {
            // the last tokens of a prompt say little about the speed
            let rate = rows as f64 / seconds.max(1e-9);
            self.rate = Some(self.rate.map_or(rate, |old| old + NEWS * (rate - old)));
        }
        for chunk in &plan.chunks {
            let Some(at) = self.place(chunk.id) else {
                continue;
            };
            if self.settings.prefixes {
                self.sequences[at].keep(kv_cache, self.settings.reuse_generated);
            }
            if self.all_run(at) {
                kv_cache.pass(&mut self.sequences[at].kv);
            }
        }
    }

    /// Returns all requests, in order of arrival.
    pub(crate) fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// Returns a request.
    pub(crate) fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        self.place(id).map(|at| &self.sequences[at])
    }

    /// Returns the number of preemptions so far.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    fn place(&self, id: RequestId) -> Option<usize> {
        self.sequences
            .binary_search_by_key(&id, |sequence| sequence.id)
            .ok()
    }

    /// Returns the number of prompt tokens for the next step.
    fn chunk(&self) -> usize {
        if !self.sequences.iter().any(Sequence::generates) {
            return self.settings.rows;
        }
        let (prefill_budget, most) = (
            self.settings.prefill_budget.as_secs_f64(),
            self.settings.rows,
        );
        let mut least = MIN_CHUNK;
        // where a decode step alone takes longer, no chunk meets the target, and a prompt must end
        // too
        if self.step < prefill_budget {
            let mut readers = self
                .sequences
                .iter()
                .filter(|sequence| sequence.is_reading());
            let depth = readers.next().map_or(0, |sequence| sequence.kv.len()) as f64;
            least = (least as f64 / (1.0 + depth / self.settings.balance)) as usize;
        }
        let in_time = self.rate.unwrap_or(0.0) * prefill_budget;
        (in_time as usize).max(least.max(FEWEST)).min(most)
    }
}
