//! Requests and steps, as the scheduler sees them.

use std::sync::Arc;
use std::time::Duration;

use crate::adapters::AdapterSet;
use crate::kv::{GroupCopy, KvCacheManager, OutOfPages, PAGE, PageId, PrefixKey, SequenceKv};

/// Id of a request; later ones have higher ids.
pub type RequestId = u64;

/// Settings of a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Maximum number of requests that run at once.
    pub sequences: usize,
    /// Maximum number of tokens in a step of texts.
    pub rows: usize,
    /// Maximum number of tokens in a step with images whose tokens attend to each other.
    pub most_rows: usize,
    /// Maximum number of tokens with outputs in a step.
    pub outputs: usize,
    /// Target time of a prefill step while other requests generate.
    pub prefill_budget: Duration,
    /// Positions before a token whose attention takes as long as its products with weights.
    pub balance: f64,
    /// Compute each prompt in one step, because its tokens attend to later ones.
    pub whole: bool,
    /// Keep full pages in the prefix cache, for later prompts that begin alike.
    pub prefixes: bool,
    /// Let prompts begin with pages of generated tokens. Their bits differ from a prompt's.
    pub reuse_generated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    /// Waiting again after running: older requests needed its pages.
    Preempted,
}

/// Tokens of a request that were not computed exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reused {
    /// Taken from the cache when it began.
    pub cached: usize,
    /// Recomputed after preemptions and context shifts.
    pub recomputed: usize,
}

/// The tokens of a request, prompt and text, and the pages that hold their keys and values.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(super) id: RequestId,
    /// Id of the first beam of its group; its own id if it is no beam.
    pub(super) group: RequestId,
    /// Maximum number of beams in its group. Their ids follow each other, so that they are as old
    /// as their request.
    pub(super) width: usize,
    /// The prompt, then generated tokens, then draft tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) n_drafts: usize,
    pub(super) n_prompt: usize,
    pub(super) salt: Option<String>,
    pub(super) adapters: Arc<AdapterSet>,
    /// Outputs of every token of the prompt are needed, so none may come from the cache.
    pub(super) wants_all: bool,
    pub(super) kv: SequenceKv,
    pub(super) state: State,
    pub(super) reused: Reused,
    /// The disk was asked for its pages.
    pub(super) is_looked_up: bool,
}

impl Sequence {
    /// Creates a waiting request; `wants_all` if outputs of every token of its prompt are needed.
    pub(crate) fn new(
        id: RequestId,
        prompt: Vec<u32>,
        salt: Option<String>,
        wants_all: bool,
    ) -> Sequence {
        Sequence {
            id,
            group: id,
            width: 1,
            n_prompt: prompt.len(),
            tokens: prompt,
            n_drafts: 0,
            salt,
            adapters: Arc::default(),
            wants_all,
            kv: SequenceKv::default(),
            state: State::Waiting,
            reused: Reused::default(),
            is_looked_up: false,
        }
    }

    /// Makes it the first beam of a group of at most `width`, whose ids are this one's and those
    /// after it.
    pub(crate) fn with_beams(mut self, width: usize) -> Sequence {
        self.width = width;
        if width > 1 {
            // beams that resume share the prompt's full pages, which takes the state after them
            self.kv.pin_state(self.n_prompt / PAGE * PAGE);
        }
        self
    }

    /// Makes it use these adapters.
    pub(crate) fn with_adapters(self, adapters: Arc<AdapterSet>) -> Sequence {
        Sequence { adapters, ..self }
    }

    /// Creates the sequence that goes on from this one with a token, on the same pages until one of
    /// the two writes.
    pub(super) fn followed_by(
        &self,
        kv_cache: &mut KvCacheManager,
        id: RequestId,
        token: u32,
    ) -> Sequence {
        let followed = [&self.tokens[..], &[token]].concat();
        Sequence {
            n_prompt: self.n_prompt,
            group: self.group,
            width: self.width,
            kv: kv_cache.fork(&self.kv),
            state: self.state,
            adapters: self.adapters.clone(),
            reused: Reused {
                recomputed: 0,
                ..self.reused
            },
            ..Sequence::new(id, followed, self.salt.clone(), false)
        }
    }

    /// Returns its id.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the id of the first beam of its group; its own id if it is no beam.
    pub(crate) fn group(&self) -> RequestId {
        self.group
    }

    /// Returns the number of prompt tokens.
    pub(crate) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Returns its prompt, its salt and its adapters.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            tokens: self.tokens[..self.n_prompt].to_vec(),
            salt: self.salt.clone(),
            adapters: self.adapters.clone(),
        }
    }

    /// Returns its state: `waiting`, `running`, or `preempted`, which is waiting once more.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Preempted => "preempted",
        }
    }

    /// Returns its cached and recomputed tokens.
    pub(crate) fn reused(&self) -> Reused {
        self.reused
    }

    /// Returns the number of tokens to compute before it can go on.
    pub(crate) fn pending(&self) -> usize {
        self.tokens().len() - self.kv.len()
    }

    /// Returns its pages of the KV cache.
    pub(crate) fn kv(&self) -> &SequenceKv {
        &self.kv
    }

    /// Returns the prompt and the text so far, without draft tokens.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.n_drafts]
    }

    /// Splits off what a step over its next `n` tokens needs.
    pub(crate) fn next_tokens(&mut self, n: usize) -> NextTokens<'_> {
        let (cached, next) = self.tokens.split_at(self.kv.len());
        NextTokens {
            before: cached,
            tokens: &next[..n],
            adapters: &self.adapters,
            kv: &mut self.kv,
        }
    }

    pub(super) fn reads(&self) -> bool {
        self.kv.len() < self.n_prompt
    }

    /// Returns whether it runs and is in prefill.
    pub(super) fn is_reading(&self) -> bool {
        self.state == State::Running && self.reads()
    }

    /// Returns whether it runs and its prompt is computed.
    pub(crate) fn generates(&self) -> bool {
        self.state == State::Running && !self.reads()
    }
}

/// Returns the number of pages that a group needs for its next tokens, beyond those it has: the
/// full pages of the prompt once, and later pages for each beam that it may have. A page that beams
/// share until they write counts as the copies that they will make. A page freed behind a window
/// counts as one that they have: it is not needed again.
pub(super) fn pages_to_come(group: &[Sequence]) -> usize {
    let first = &group[0];
    let end = (first.tokens.len() + 1).div_ceil(PAGE);
    let common = match first.width {
        1 => end,
        _ => first.n_prompt / PAGE,
    };
    let needed = common + first.width * (end - common);
    let tables = group
        .iter()
        .filter_map(|sequence| sequence.kv.tables().first());
    let has = tables.clone().map(|table| table.places().min(common));
    let mut own: Vec<(usize, Option<PageId>)> = tables
        .flat_map(|table| (common..table.places()).map(|place| (place, table.page(place))))
        .collect();
    own.sort_unstable();
    own.dedup();
    needed.saturating_sub(has.max().unwrap_or(0) + own.len())
}

impl Sequence {
    /// Adopts what the cache holds of its tokens; returns how many. The last one is always
    /// computed: its outputs choose the next one. A beam adopts tokens of the prompt alone: other
    /// beams go on from there.
    pub(super) fn adopt(&mut self, kv_cache: &mut KvCacheManager, reuse_generated: bool) -> usize {
        let end = self.adoptable();
        let key = PrefixKey {
            tokens: &self.tokens,
            n_prompt: n_prompt(&self.tokens, self.n_prompt, reuse_generated),
            salt: self.salt.as_deref(),
            adapters: &self.adapters,
        };
        kv_cache.adopt(&mut self.kv, &key, end)
    }

    /// Returns the number of its tokens that may come from the cache.
    pub(crate) fn adoptable(&self) -> usize {
        match self.width {
            1 => self.tokens.len() - 1,
            _ => self.n_prompt.min(self.tokens.len() - 1),
        }
    }

    /// Adds its full pages to the prefix cache.
    pub(super) fn keep(&mut self, kv_cache: &mut KvCacheManager, reuse_generated: bool) {
        let key = PrefixKey {
            tokens: &self.tokens,
            n_prompt: n_prompt(&self.tokens, self.n_prompt, reuse_generated),
            salt: self.salt.as_deref(),
            adapters: &self.adapters,
        };
        kv_cache.keep(&mut self.kv, &key);
    }

    /// Describes what its pages hold.
    pub(crate) fn prefix_key(&self, reuse_generated: bool) -> PrefixKey<'_> {
        PrefixKey {
            tokens: &self.tokens,
            n_prompt: n_prompt(&self.tokens, self.n_prompt, reuse_generated),
            salt: self.salt.as_deref(),
            adapters: &self.adapters,
        }
    }
}

/// Returns how many of a text's tokens count as a prompt: all of them where generated pages are
/// reused.
fn n_prompt(tokens: &[u32], n_prompt: usize, reuse_generated: bool) -> usize {
    match reuse_generated {
        true => tokens.len(),
        false => n_prompt,
    }
}

/// The next tokens of a sequence.
pub(crate) struct NextTokens<'a> {
    /// Tokens whose keys and values are cached.
    pub(crate) before: &'a [u32],
    /// The next ones.
    pub(crate) tokens: &'a [u32],
    pub(crate) adapters: &'a AdapterSet,
    pub(crate) kv: &'a mut SequenceKv,
}

/// A prompt, and what else decides which cached pages it may begin with.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) tokens: Vec<u32>,
    pub(crate) salt: Option<String>,
    pub(crate) adapters: Arc<AdapterSet>,
}

impl Asked {
    /// Describes the pages of all of its tokens, as a prompt.
    pub(crate) fn prefix(&self) -> PrefixKey<'_> {
        PrefixKey {
            tokens: &self.tokens,
            n_prompt: self.tokens.len(),
            salt: self.salt.as_deref(),
            adapters: &self.adapters,
        }
    }
}

/// Tokens of one request in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledChunk {
    /// Id of the request.
    pub id: RequestId,
    /// Id of the first beam of its group; its own id if it is no beam.
    pub group: RequestId,
    /// Number of tokens.
    pub n: usize,
    /// How many of them, from the last, need outputs.
    pub outputs: usize,
    /// How many of them, from the last, are draft tokens.
    pub drafts: usize,
}

/// A step, for which pages are reserved.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// In order of arrival of the requests.
    pub chunks: Vec<ScheduledChunk>,
    /// Pages to copy first.
    pub copies: Vec<GroupCopy>,
    /// Requests that ran out of pages with no newer request left to preempt.
    pub failed: Vec<(RequestId, OutOfPages)>,
}

impl StepPlan {
    /// Adds `n` tokens of a request; the last `outputs` of them need outputs.
    pub(super) fn push(&mut self, sequence: &Sequence, n: usize, outputs: usize) {
        self.chunks.push(ScheduledChunk {
            id: sequence.id,
            group: sequence.group,
            n,
            outputs,
            drafts: 0,
        });
    }

    /// Adds all that is left of a request with its draft tokens, which need outputs too.
    pub(super) fn push_with_drafts(&mut self, sequence: &Sequence) {
        self.push(
            sequence,
            sequence.pending() + sequence.n_drafts,
            1 + sequence.n_drafts,
        );
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.drafts = sequence.n_drafts;
        }
    }

    /// Removes the tokens of a preempted group. Its page copies are still made, before everything
    /// that is copied to the same pages for others.
    pub(super) fn retract(&mut self, group: RequestId) {
        self.chunks.retain(|chunk| chunk.group != group);
    }
}
