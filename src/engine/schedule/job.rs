//! A request as the scheduler sees it, and a step as it plans it.

use std::time::Duration;

use crate::kv::{GroupCopy, History, Ledger, OutOfPages, PAGE, PageId, Timeline};

/// Which request; later ones have higher numbers.
pub type RequestId = u64;

/// What a scheduler may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Requests that run at a time.
    pub sequences: usize,
    /// Tokens of a step.
    pub rows: usize,
    /// Tokens of a step with outputs.
    pub wanted: usize,
    /// How long requests that generate should wait for a step of prompts.
    pub stall: Duration,
    /// Positions behind a token whose attention takes as long as its products with weights.
    pub balance: f64,
    /// A prompt is computed in one step: its tokens see those behind them.
    pub whole: bool,
    /// Keep full pages for later prompts that begin alike.
    pub prefixes: bool,
    /// Let prompts begin with pages that were generated. Their bits differ from a prompt's.
    pub reuse_generated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    /// Waiting again: it ran, and its pages were needed by older ones.
    Preempted,
}

/// Tokens of a request that were computed another number of times than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// Taken from the cache when it began.
    pub cached: usize,
    /// Computed again because its pages were needed by others.
    pub recomputed: usize,
}

/// A request as the scheduler sees it.
#[derive(Debug)]
pub struct Job {
    pub(super) id: RequestId,
    /// The number of the first beam of its group; its own if it is no beam.
    pub(super) group: RequestId,
    /// Beams that its group may have. Their numbers follow each other, so that they are as old as
    /// their request.
    pub(super) width: usize,
    /// The prompt, then what was generated, then guesses of what will be.
    pub(super) tokens: Vec<u32>,
    pub(super) n_guessed: usize,
    pub(super) n_prompt: usize,
    pub(super) salt: Option<String>,
    /// Outputs of every token of the prompt are wanted, so none may come from the cache.
    pub(super) wants_all: bool,
    pub(super) timeline: Timeline,
    pub(super) state: State,
    pub(super) reused: Reused,
}

impl Job {
    /// A request that waits; `wants_all` if outputs of every token of its prompt are wanted.
    pub fn new(id: RequestId, prompt: Vec<u32>, salt: Option<String>, wants_all: bool) -> Job {
        Job {
            id,
            group: id,
            width: 1,
            n_prompt: prompt.len(),
            tokens: prompt,
            n_guessed: 0,
            salt,
            wants_all,
            timeline: Timeline::default(),
            state: State::Waiting,
            reused: Reused::default(),
        }
    }

    /// The same as the first beam of a group of so many at most, whose numbers are this one's and
    /// those after it.
    pub fn with_beams(self, width: usize) -> Job {
        Job { width, ..self }
    }

    /// The job that goes on from where this one stands with a token, on the same pages until one of
    /// the two writes.
    pub(super) fn followed_by(&self, ledger: &mut Ledger, id: RequestId, token: u32) -> Job {
        let followed = [&self.tokens[..], &[token]].concat();
        Job {
            n_prompt: self.n_prompt,
            group: self.group,
            width: self.width,
            timeline: ledger.fork(&self.timeline),
            state: self.state,
            reused: Reused {
                recomputed: 0,
                ..self.reused
            },
            ..Job::new(id, followed, self.salt.clone(), false)
        }
    }

    /// Its number.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The number of the first beam of its group; its own if it is no beam.
    pub fn group(&self) -> RequestId {
        self.group
    }

    /// Tokens of its prompt.
    pub fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Its prompt and its salt.
    pub fn asked(&self) -> (Vec<u32>, Option<String>) {
        (self.tokens[..self.n_prompt].to_vec(), self.salt.clone())
    }

    /// What it is doing: `waiting`, `running`, or `preempted`, which is waiting once more.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Preempted => "preempted",
        }
    }

    /// What it did not need to compute, and what it had to compute again.
    pub fn reused(&self) -> Reused {
        self.reused
    }

    /// Tokens that must be computed before it can go on.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.n_guessed - self.timeline.len()
    }

    /// Its pages.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn reads(&self) -> bool {
        self.timeline.len() < self.n_prompt
    }

    /// Whether it runs and reads its prompt.
    pub(super) fn is_reading(&self) -> bool {
        self.state == State::Running && self.reads()
    }

    /// Whether it runs and has read its prompt.
    pub fn generates(&self) -> bool {
        self.state == State::Running && !self.reads()
    }
}

/// Pages that a group will need before its next tokens, beyond those it has: the full pages of the
/// prompt once, and what follows for each beam that there may be. A page that beams share until
/// they write counts as the copies that they will make. A page that was given back counts as one
/// that they have: it is not needed again.
pub(super) fn pages_to_come(group: &[Job]) -> usize {
    let first = &group[0];
    let end = (first.tokens.len() + 1).div_ceil(PAGE);
    let common = match first.width {
        1 => end,
        _ => first.n_prompt / PAGE,
    };
    let needed = common + first.width * (end - common);
    let tables = group.iter().filter_map(|job| job.timeline.tables().first());
    let has = tables.clone().map(|table| table.places().min(common));
    let mut own: Vec<(usize, Option<PageId>)> = tables
        .flat_map(|table| (common..table.places()).map(|place| (place, table.page(place))))
        .collect();
    own.sort_unstable();
    own.dedup();
    needed.saturating_sub(has.max().unwrap_or(0) + own.len())
}

impl Job {
    /// Takes what the cache holds of its tokens; answers how many. The last one is always computed:
    /// its outputs are what follows from.
    pub(super) fn adopt(&mut self, ledger: &mut Ledger, reuse_generated: bool) -> usize {
        let end = self.tokens.len() - 1;
        let history = history(&self.tokens, self.n_prompt, &self.salt, reuse_generated);
        ledger.adopt(&mut self.timeline, &history, end)
    }

    /// Keeps its full pages for later.
    pub(super) fn keep(&mut self, ledger: &mut Ledger, reuse_generated: bool) {
        let history = history(&self.tokens, self.n_prompt, &self.salt, reuse_generated);
        ledger.keep(&mut self.timeline, &history);
    }

    /// What its pages hold.
    pub(super) fn history(&self, reuse_generated: bool) -> History<'_> {
        history(&self.tokens, self.n_prompt, &self.salt, reuse_generated)
    }
}

/// What pages hold; all of it counts as a prompt where generated pages are reused.
fn history<'a>(
    tokens: &'a [u32],
    n_prompt: usize,
    salt: &'a Option<String>,
    reuse_generated: bool,
) -> History<'a> {
    History {
        tokens,
        n_prompt: if reuse_generated {
            tokens.len()
        } else {
            n_prompt
        },
        salt: salt.as_deref(),
    }
}

/// Tokens of one request in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub id: RequestId,
    /// The number of the first beam of its group; its own if it is no beam.
    pub group: RequestId,
    /// How many.
    pub n: usize,
    /// How many of them, from the last, need outputs.
    pub wanted: usize,
    /// How many of them, from the last, are guesses.
    pub guessed: usize,
}

/// What a share of a plan is to compute.
#[derive(Debug)]
pub struct Due<'a> {
    /// What its timeline holds.
    pub before: &'a [u32],
    /// What follows.
    pub tokens: &'a [u32],
    /// Where it goes.
    pub timeline: &'a mut Timeline,
}

/// A step: its pages are reserved.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order in which requests came.
    pub shares: Vec<Share>,
    /// Pages to copy first.
    pub copies: Vec<GroupCopy>,
    /// Requests that cannot go on though nobody younger is left to make room.
    pub failed: Vec<(RequestId, OutOfPages)>,
}

impl Plan {
    /// Adds tokens of a request; outputs of so many of them, from the last, are wanted.
    pub(super) fn push(&mut self, job: &Job, n: usize, wanted: usize) {
        self.shares.push(Share {
            id: job.id,
            group: job.group,
            n,
            wanted,
            guessed: 0,
        });
    }

    /// Adds all that is left of a request with its guesses, whose outputs are wanted too.
    pub(super) fn push_guessed(&mut self, job: &Job) {
        self.push(job, job.pending() + job.n_guessed, 1 + job.n_guessed);
        if let Some(share) = self.shares.last_mut() {
            share.guessed = job.n_guessed;
        }
    }

    /// Takes the tokens of a group out again: its pages are gone. What was to be copied for it
    /// still is, before everything that is copied to the same pages for others.
    pub(super) fn retract(&mut self, group: RequestId) {
        self.shares.retain(|share| share.group != group);
    }
}
