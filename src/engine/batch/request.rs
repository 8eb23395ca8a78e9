//! Requests to a batch, and the events that answer them.

use std::ops::AddAssign;
use std::time::Duration;

use octavo_model::Pooling;

use crate::adapters::LoraScale;
use crate::decoder::{FinishReason, GenerationError, GenerationParams, Text};
use crate::error::Error;
use crate::image_registry::ImageHandle;
use crate::kv::{PageCounts, PromptCacheStats};
use crate::sample::{Constraint, Logprobs};
use crate::speculative::DraftStats;

pub use crate::scheduler::RequestId;

/// Task of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Task {
    /// Text that continues the prompt.
    #[default]
    Text,
    /// The best texts that a beam search finds. Nothing is drawn: seed, temperature and filters
    /// such as top-k are not used.
    Beams(BeamSearch),
    /// One vector for the whole prompt, or, without pooling, one for each token.
    Embedding(Embed),
}

/// How to embed a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    /// How the vectors of its tokens become one.
    pub pooling: Pooling,
    /// Whether to divide each vector by its length.
    pub normalize: bool,
}

impl Embed {
    /// The scores of a classifier.
    pub const RANK: Embed = Embed {
        pooling: Pooling::Rank,
        normalize: false,
    };
}

/// How a beam search finds likely texts.
///
/// At each step every beam proposes its `2 * width` most likely tokens, by natural log-probability
/// among the tokens that bias, penalties and the constraint leave. All are ranked by the sum over
/// their text, equal ones by beam and then by token. Those that end a text are found if they are
/// among the best `width`, and the best `width` others go on. The search is over when `width` texts
/// have been found and the best beam would not be better than the worst of them if it ended there,
/// or when the texts may not become longer: then the beams that go on are found too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// Number of beams, and of texts to find before the search ends.
    pub width: usize,
    /// Power of the length in a found text's score, which is its sum divided by its number of
    /// tokens, including the one that ended it, to this power: 0 prefers short texts, 1 compares
    /// means.
    pub length_penalty: f64,
}

/// A text found by a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamOutput {
    /// The text.
    pub text: Text,
    /// Sum of its tokens' natural log-probabilities.
    pub logprob: f64,
    /// Score that it was ranked by; the higher the better.
    pub score: f64,
}

/// A prompt, and what to compute from it.
#[derive(Debug, Default)]
pub struct Request {
    /// The tokens to continue.
    pub prompt: Vec<u32>,
    /// Images whose tokens are in the prompt.
    pub images: Vec<ImageHandle>,
    /// Settings of the generation.
    pub options: GenerationParams,
    /// Number of texts to generate, each with a seed one above the last's; of a beam search, number
    /// of the best texts to return.
    pub n: usize,
    /// Return log-probabilities of the prompt's own tokens, with this many alternatives. Nothing of
    /// the prompt then comes from the cache.
    pub prompt_logprobs: Option<usize>,
    /// Constraint on the generated tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Only requests with the same salt share cached prompts, because the time of an answer tells
    /// what is cached.
    pub salt: Option<String>,
    /// Adapters to use, each with a factor; `None` or empty for the engine's defaults.
    pub adapters: Option<Vec<LoraScale>>,
    /// The slot that it names, for [`Batch::slot_pages`](crate::Batch::slot_pages).
    pub slot: Option<usize>,
    /// Task: text, beam search or embedding.
    pub task: Task,
}

impl Request {
    /// Creates a request for one text that continues a prompt.
    pub fn new(prompt: &[u32], options: &GenerationParams) -> Request {
        Request {
            prompt: prompt.to_vec(),
            options: options.clone(),
            n: 1,
            ..Request::default()
        }
    }

    /// Creates a request for the vectors of a prompt.
    pub fn embedding(prompt: Vec<u32>, embed: Embed) -> Request {
        Request {
            prompt,
            n: 1,
            task: Task::Embedding(embed),
            ..Request::default()
        }
    }
}

/// Tokens chosen in one step, and the text that became certain with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Never half a character, never part of a stop string.
    pub text: String,
    /// The tokens; their text may follow later.
    pub tokens: Vec<u32>,
    /// Log-probabilities of each token, if asked for.
    pub logprobs: Vec<Logprobs>,
}

impl Delta {
    /// Appends a later delta.
    pub fn append(&mut self, mut later: Delta) {
        self.text.push_str(&later.text);
        self.tokens.append(&mut later.tokens);
        self.logprobs.append(&mut later.logprobs);
    }
}

/// An event of a request.
#[derive(Debug)]
pub enum Event {
    /// The prefill has begun.
    Started {
        /// Tokens of the prompt.
        prompt: usize,
        /// Prompt tokens that come from the cache.
        cached: usize,
    },
    /// More of the prompt has been computed.
    Read {
        /// Prompt tokens computed or cached so far.
        done: usize,
    },
    /// Log-probabilities of the prompt's tokens, from the second on.
    Prompt(Vec<Logprobs>),
    /// More of one of its texts.
    Delta {
        /// Index of the text, from 0.
        choice: usize,
        /// New tokens and text.
        delta: Delta,
        /// Times and counts of the text so far.
        timing: Timing,
    },
    /// One of its texts has ended.
    Finished {
        /// Index of the text, from 0.
        choice: usize,
        /// The whole text.
        text: Text,
        /// Times and counts of the text.
        timing: Timing,
    },
    /// The texts that its beam search has found, the best first, as many as were asked for unless
    /// there are fewer. The last event.
    Beams {
        /// At least one.
        texts: Vec<BeamOutput>,
        /// Times and counts of the search.
        timing: Timing,
    },
    /// Its embedding. The last event.
    Embedded {
        /// `[n_embd]`, or without pooling `[tokens][n_embd]`
        vector: Vec<f32>,
        /// Times and counts of the request.
        timing: Timing,
    },
    /// It has failed. The last event.
    Failed(BatchError),
}

/// Times and counts of one text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Time from its arrival to the start of its prefill.
    pub queued: Duration,
    /// Time of the prefill.
    pub prompt: Duration,
    /// Time from its arrival until its first token was chosen.
    pub first_token: Option<Duration>,
    /// Time from the first token to the last.
    pub generation: Duration,
    /// Time from its arrival to its end.
    pub total: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Prompt tokens that came from the cache.
    pub cached: usize,
    /// Tokens recomputed after preemptions and context shifts.
    pub recomputed: usize,
    /// Tokens that context shifts have dropped.
    pub discarded: usize,
    /// Draft and accepted tokens of speculative decoding.
    pub drafts: DraftStats,
}

impl Timing {
    /// Returns the mean time between two tokens of the text.
    pub fn per_token(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.generation.checked_div(gaps)
    }

    /// Returns the prefill speed: prompt tokens computed (not cached) per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached, self.prompt)
    }

    /// Returns the decode speed: tokens per second after the first one.
    pub fn generation_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.generation)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// Reasons that a request is refused, or fails.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The prompt or an option does not fit, or no token can be chosen.
    #[error(transparent)]
    Sequence(#[from] GenerationError),
    /// Its tokens cannot be computed.
    #[error(transparent)]
    Engine(#[from] Error),
    /// A full queue.
    #[error("{waiting} requests wait already: expected no more at a time")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// A number of texts out of its range.
    #[error("{n} texts: expected 1 to {most}")]
    Choices {
        /// Texts asked for.
        n: usize,
        /// Maximum number.
        most: usize,
    },
    /// Log-probabilities asked of a prompt with image tokens, which have none.
    #[error("log-probabilities of a prompt's tokens: expected a prompt without images")]
    ImageLogprobs,
    /// A number of beams out of its range.
    #[error("{width} beams: expected 1 to {most}, which is how many texts run at a time")]
    Beams {
        /// Beams asked for.
        width: usize,
        /// Maximum number.
        most: usize,
    },
    /// A step of the draft model failed.
    #[error("the draft model: {0}")]
    Draft(#[source] Error),
    /// The device failed in a step of the request, or the batch no longer runs.
    #[error("{0}")]
    Step(String),
}

/// Options of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchOptions {
    /// Target time of a prefill step while other requests generate (chunked prefill).
    pub prefill_budget: Duration,
    /// Maximum number of waiting requests.
    pub queue: usize,
    /// Keep full pages in the prefix cache, for later prompts that begin alike.
    pub prefixes: bool,
    /// Let prompts begin with cached pages of generated tokens, whose bits are not a prompt's.
    pub reuse_generated: bool,
}

impl Default for BatchOptions {
    fn default() -> Self {
        BatchOptions {
            prefill_budget: Duration::from_millis(100),
            queue: 1024,
            prefixes: true,
            reuse_generated: false,
        }
    }
}

/// State of a request, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    /// Its id.
    pub id: RequestId,
    /// Index of its text, or of its beam.
    pub choice: usize,
    /// `waiting`, `running` or `preempted`.
    pub state: &'static str,
    /// KV cache pages that it uses, including shared ones.
    pub pages: usize,
    /// Its tokens in the KV cache.
    pub tokens: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its prompt that were in the cache.
    pub cached: usize,
    /// Tokens generated.
    pub generated: usize,
}

/// State of a batch, and its counts since it began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Pages of the KV cache.
    pub pages: PageCounts,
    /// Requests, in order of arrival.
    pub requests: Vec<RequestView>,
    /// Counts so far.
    pub totals: Totals,
    /// State of the prefix cache on disk, if there is one.
    pub disk: Option<PromptCacheStats>,
}

/// Counts since a batch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Steps taken.
    pub steps: u64,
    /// Time spent in steps.
    pub busy: Duration,
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens recomputed after preemptions and context shifts.
    pub recomputed_tokens: u64,
    /// Tokens dropped by context shifts.
    pub discarded_tokens: u64,
    /// Draft tokens computed.
    pub draft_tokens: u64,
    /// Draft tokens accepted.
    pub accepted_tokens: u64,
    /// Preemptions of requests.
    pub preemptions: u64,
    /// Pages evicted from the prefix cache.
    pub evictions: u64,
    /// Texts with finish reason [`FinishReason::Stop`].
    pub stopped: u64,
    /// Texts with finish reason [`FinishReason::Length`] or [`FinishReason::ContextFull`].
    pub full: u64,
    /// Aborted requests.
    pub aborted: u64,
    /// Failed requests.
    pub failed: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.busy += more.busy;
        let own = self.counts();
        own.into_iter()
            .zip({ more }.counts())
            .for_each(|(own, more)| *own += *more);
    }
}

impl Totals {
    /// Returns all counts.
    fn counts(&mut self) -> [&mut u64; 14] {
        [
            &mut self.steps,
            &mut self.prompt_tokens,
            &mut self.cached_tokens,
            &mut self.generated_tokens,
            &mut self.recomputed_tokens,
            &mut self.discarded_tokens,
            &mut self.draft_tokens,
            &mut self.accepted_tokens,
            &mut self.preemptions,
            &mut self.evictions,
            &mut self.stopped,
            &mut self.full,
            &mut self.aborted,
            &mut self.failed,
        ]
    }

    pub(super) fn count(&mut self, finish: FinishReason) {
        match finish {
            FinishReason::Stop => self.stopped += 1,
            FinishReason::Length | FinishReason::ContextFull => self.full += 1,
            FinishReason::Cancelled => self.aborted += 1,
        }
    }
}
