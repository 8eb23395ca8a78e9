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
mod job;

use std::time::Duration;

use octavo_kernels::Phase;

use crate::kv::{KvCacheManager, PAGE};
use job::State;
pub use job::{ChunkInput, Job, Plan, RequestId, Reused, ScheduledChunk, Settings};

/// Minimum number of prompt tokens in a step, however long they take, where few positions are
/// before them. One page: unpacking the weights takes about as long as multiplying them with it, so
/// half of this would save a quarter of the time and cost a third of the speed.
pub const MIN_CHUNK: usize = PAGE;

/// The minimum where many positions are before them, whose attention dominates a token's time.
const FEWEST: usize = 4;

/// Tokens of a preempted request to recompute in a step beside other requests that generate, and
/// alone: each costs about as much as another request.
const REPLAYS: usize = 8;
const REPLAYS_ALONE: usize = 64;

/// Weight of a new measurement in an estimate.
const NEWS: f64 = 0.3;

/// All requests, in order of arrival, and the plans of their steps.
pub struct Scheduler {
    settings: Settings,
    jobs: Vec<Job>,
    /// Measured prefill speed, in tokens per second.
    rate: Option<f64>,
    /// Measured time of a decode step, in seconds.
    step: f64,
    has_preempted: bool,
    preemptions: u64,
}

impl Scheduler {
    /// Creates a scheduler without requests.
    pub fn new(settings: Settings) -> Scheduler {
        Scheduler {
            settings,
            jobs: Vec::new(),
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
    pub fn add(&mut self, job: Job) {
        let last = self.jobs.last().map(|last| last.id);
        assert!(last < Some(job.id), "numbers go up");
        self.jobs.push(job);
    }

    /// Adds a request that goes on from another one, on the same pages until one of the two writes.
    /// Where no more requests may run it waits, and later adopts what is left in the cache.
    pub fn fork(&mut self, kv_cache: &mut KvCacheManager, of: RequestId, id: RequestId) {
        let may_run = self.running() < self.settings.sequences;
        let Some(at) = self.place(of) else { return };
        let parent = &self.jobs[at];
        let mut job = Job::new(id, parent.tokens.clone(), parent.salt.clone(), false);
        job.n_prompt = parent.n_prompt;
        if may_run && parent.state == State::Running {
            job.kv = kv_cache.fork(&parent.kv);
            job.reused.cached = job.kv.len();
            job.state = State::Running;
        }
        self.add(job);
    }

    /// Removes a request, whatever its state, and frees its pages, with those of all its beams.
    /// Returns the first of them.
    pub fn remove(&mut self, kv_cache: &mut KvCacheManager, id: RequestId) -> Option<Job> {
        let all = self.members(self.place(id)?);
        let mut all: Vec<Job> = self.jobs.drain(all).collect();
        for job in &mut all {
            kv_cache.truncate(&mut job.kv, 0);
        }
        all.into_iter().next()
    }

    /// Appends the token that was chosen next for a request.
    pub fn push(&mut self, id: RequestId, token: u32) {
        if let Some(at) = self.place(id) {
            self.jobs[at].tokens.push(token);
        }
    }

    /// Adds draft tokens to the next step of a request, if there is room.
    pub fn add_drafts(&mut self, id: RequestId, drafts: &[u32]) {
        if let Some(at) = self.place(id) {
            let job = &mut self.jobs[at];
            job.tokens.extend_from_slice(drafts);
            job.n_drafts += drafts.len();
        }
    }

    /// Accepts the first `accepted` draft tokens of a request, with what was computed up to them;
    /// drops the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn accept_drafts(&mut self, kv_cache: &mut KvCacheManager, id: RequestId, accepted: usize) {
        let Some(at) = self.place(id) else { return };
        let job = &mut self.jobs[at];
        assert!(accepted <= job.n_drafts, "{accepted} drafts are accepted");
        job.tokens
            .truncate(job.tokens.len() - job.n_drafts + accepted);
        job.n_drafts = 0;
        if job.kv.len() > job.tokens.len() {
            kv_cache.truncate(&mut job.kv, job.tokens.len());
        }
    }

    /// Drops all draft tokens that were not accepted: no step had room for them.
    pub fn drop_drafts(&mut self) {
        for job in &mut self.jobs {
            job.tokens.truncate(job.tokens.len() - job.n_drafts);
            job.n_drafts = 0;
        }
    }

    /// Plans the decode step of all requests that generate.
    pub fn decodes(&mut self, kv_cache: &mut KvCacheManager) -> Plan {
        self.has_preempted = false;
        let mut plan = Plan::default();
        let mut replays = match self.jobs.iter().filter(|job| job.generates()).count() {
            0 | 1 => REPLAYS_ALONE.min(self.settings.rows - 1),
            n => REPLAYS.min(self.settings.rows.saturating_sub(n)),
        };
        for at in 0..self.jobs.len() {
            let job = &self.jobs[at];
            let left = job.pending();
            let n = left.min(1 + replays);
            if n == 0 || !job.generates() {
                continue;
            }
            let has_drafts = n == left && self.has_room_for_drafts(kv_cache, at, &mut plan);
            if !has_drafts && !self.reserve(kv_cache, at, n, &mut plan) {
                continue;
            }
            let job = &self.jobs[at];
            match has_drafts {
                true => plan.push_with_drafts(job),
                false => plan.push(job, n, usize::from(n == left)),
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
        plan: &mut Plan,
    ) -> bool {
        let job = &mut self.jobs[at];
        if job.n_drafts == 0 {
            return false;
        }
        let copies = kv_cache.reserve(&mut job.kv, job.tokens.len());
        let is_there = copies.is_ok();
        plan.copies.extend(copies.unwrap_or_default());
        is_there
    }

    /// Plans the prefill step, to be taken after the decode step. Waiting requests begin here, in
    /// order of arrival.
    pub fn prefills(&mut self, kv_cache: &mut KvCacheManager) -> Plan {
        let (mut plan, mut rows) = (Plan::default(), self.chunk());
        let mut outputs = self.settings.wanted;
        let mut is_open = true;
        for at in 0..self.jobs.len() {
            if rows == 0 || outputs == 0 {
                break;
            }
            if self.jobs[at].state != State::Running && !self.may_run(kv_cache, at, &mut is_open) {
                continue;
            }
            let job = &self.jobs[at];
            let left = job.n_prompt.saturating_sub(job.kv.len());
            let n = left
                .min(rows)
                .min(if job.wants_all { outputs } else { rows });
            if self.settings.whole && n < left {
                // in a step of its own, before any newer request
                break;
            }
            if n == 0 || !self.reserve(kv_cache, at, n, &mut plan) {
                continue;
            }
            let job = &self.jobs[at];
            let is_last = job.kv.len() + n == job.tokens.len();
            let wanted = if job.wants_all {
                n
            } else {
                usize::from(is_last)
            };
            plan.push(job, n, wanted);
            rows -= n;
            outputs -= wanted;
        }
        plan
    }

    /// Returns the inputs of a plan's chunks, in its order.
    pub fn inputs(&mut self, plan: &Plan) -> Vec<ChunkInput<'_>> {
        let mut chunks = plan.chunks.iter().peekable();
        let mut entries = Vec::with_capacity(plan.chunks.len());
        for job in &mut self.jobs {
            if let Some(chunk) = chunks.next_if(|chunk| chunk.id == job.id) {
                let (before, rest) = job.tokens.split_at(job.kv.len());
                entries.push(ChunkInput {
                    before,
                    tokens: &rest[..chunk.n],
                    kv: &mut job.kv,
                });
            }
        }
        entries
    }

    /// Records a step and its time: adds the pages that it filled to the prefix cache, and frees
    /// those behind sliding windows.
    pub fn took(
        &mut self,
        kv_cache: &mut KvCacheManager,
        phase: Phase,
        plan: &Plan,
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
                self.jobs[at].keep(kv_cache, self.settings.reuse_generated);
            }
            if self.all_run(at) {
                kv_cache.pass(&mut self.jobs[at].kv);
            }
        }
    }

    /// Returns all requests, in order of arrival.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Returns a request.
    pub fn job(&self, id: RequestId) -> Option<&Job> {
        self.place(id).map(|at| &self.jobs[at])
    }

    /// Returns the number of preemptions so far.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    fn place(&self, id: RequestId) -> Option<usize> {
        self.jobs.binary_search_by_key(&id, |job| job.id).ok()
    }

    /// Returns the number of prompt tokens for the next step.
    fn chunk(&self) -> usize {
        if !self.jobs.iter().any(Job::generates) {
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
            let mut readers = self.jobs.iter().filter(|job| job.is_reading());
            let depth = readers.next().map_or(0, |job| job.kv.len()) as f64;
            least = (least as f64 / (1.0 + depth / self.settings.balance)) as usize;
        }
        let in_time = self.rate.unwrap_or(0.0) * prefill_budget;
        (in_time as usize).max(least.max(FEWEST)).min(most)
    }
}
