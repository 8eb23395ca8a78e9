//! What a batch is asked for, and what it answers.

use std::time::Duration;

use octavo_model::Pooling;

use crate::Error;
use crate::kv::PageCounts;
use crate::pictures::Shown;
use crate::sample::{Constraint, Logprobs};
use crate::sequence::{Finish, Options, SequenceError, Text};
use crate::speculate::Guessed;

pub use crate::schedule::RequestId;

/// What is wanted of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Goal {
    /// Text that continues it.
    #[default]
    Text,
    /// The best texts that a beam search finds. Nothing is drawn: seed, temperature and what cuts a
    /// distribution off are not used.
    Beams(BeamSearch),
    /// One vector for all of it, or, without pooling, one for each token.
    Embedding(Embed),
}

/// What vectors are wanted of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embed {
    /// How those of its tokens become one.
    pub pooling: Pooling,
    /// Each is divided by its length.
    pub normalize: bool,
}

/// How to search for likely texts.
///
/// At each step every beam proposes its `2 * width` likeliest tokens, by their natural
/// log-probabilities among what bias, penalties and the constraint leave. All are ranked by the sum
/// over their text, equal ones by beam and then by token. Those that end a text are found if they
/// are among the best `width`, and the best `width` others go on. The search is over when `width`
/// texts have been found and the best that goes on would not be better than the worst of them if it
/// ended there, or when the texts may not become longer: then those that go on are found too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearch {
    /// Texts that go on at a time, and texts that are found before the search ends.
    pub width: usize,
    /// A found text's score is its sum divided by its number of tokens, the one that ended it
    /// included, to this power: 0 prefers short texts, 1 compares means.
    pub length_penalty: f64,
}

/// A text that a beam search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The text.
    pub text: Text,
    /// The sum of its tokens' natural log-probabilities.
    pub logprob: f64,
    /// What it was ranked by; the higher the better.
    pub score: f64,
}

/// A prompt, and what is wanted of it.
#[derive(Debug, Default)]
pub struct Request {
    /// The tokens to continue.
    pub prompt: Vec<u32>,
    /// Pictures whose cells are among the prompt's tokens.
    pub pictures: Vec<Shown>,
    /// How to generate.
    pub options: Options,
    /// Texts to generate, each with a seed one above the last's; of a beam search, the best so
    /// many.
    pub n: usize,
    /// Log-probabilities of the prompt's own tokens, with so many alternatives. Nothing of the
    /// prompt then comes from the cache.
    pub prompt_logprobs: Option<usize>,
    /// Restricts what may be generated.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Only requests with the same salt share cached prompts: what is cached can be told from how
    /// long an answer takes.
    pub salt: Option<String>,
    /// Text, the best texts, or an embedding.
    pub goal: Goal,
}

impl Request {
    /// One text that continues a prompt.
    pub fn new(prompt: &[u32], options: &Options) -> Request {
        Request {
            prompt: prompt.to_vec(),
            options: options.clone(),
            n: 1,
            ..Request::default()
        }
    }
}

/// Tokens chosen at once, and the text that became certain with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Never half a character, never part of a stop string.
    pub text: String,
    /// The tokens; their text may follow later.
    pub tokens: Vec<u32>,
    /// One per token, if asked for.
    pub logprobs: Vec<Logprobs>,
}

impl Delta {
    /// Adds what came after it.
    pub fn append(&mut self, mut later: Delta) {
        self.text.push_str(&later.text);
        self.tokens.append(&mut later.tokens);
        self.logprobs.append(&mut later.logprobs);
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Event {
    /// Its prompt is being read: so many of its tokens came from the cache.
    Started {
        /// Tokens of the prompt.
        prompt: usize,
        /// Those that need not be computed.
        cached: usize,
    },
    /// So many tokens of the prompt are read.
    Read {
        /// Tokens done.
        done: usize,
    },
    /// Log-probabilities of the prompt's tokens, from the second on.
    Prompt(Vec<Logprobs>),
    /// More of one of its texts.
    Delta {
        /// Which text, from 0.
        choice: usize,
        /// What is new.
        delta: Delta,
        /// Times and counts of the text so far.
        timing: Timing,
    },
    /// One of its texts has ended.
    Finished {
        /// Which text, from 0.
        choice: usize,
        /// All of it.
        text: Text,
        /// When what happened.
        timing: Timing,
    },
    /// The texts that its beam search has found, the best first, as many as were asked for unless
    /// there are fewer; nothing follows.
    Found {
        /// At least one.
        texts: Vec<Found>,
        /// When what happened.
        timing: Timing,
    },
    /// Its embedding; nothing follows.
    Embedded {
        /// `[n_embd]`, or without pooling `[tokens][n_embd]`
        vector: Vec<f32>,
        /// When what happened.
        timing: Timing,
    },
    /// It cannot go on; nothing follows.
    Failed(BatchError),
}

/// Times and counts of one text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// From its arrival until its first token was computed.
    pub queued: Duration,
    /// From then until its prompt was read.
    pub prompt: Duration,
    /// From its arrival until its first token was chosen.
    pub first_token: Option<Duration>,
    /// From the first token to the last.
    pub generation: Duration,
    /// From its arrival to its end.
    pub total: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens chosen.
    pub generated_tokens: usize,
    /// Tokens of the prompt that came from the cache.
    pub cached: usize,
    /// Tokens computed more than once because pages were short.
    pub recomputed: usize,
    /// Tokens computed before it was certain that they are chosen.
    pub guessed: Guessed,
}

impl Timing {
    /// Mean time between two tokens of the text.
    pub fn per_token(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.generation.checked_div(gaps)
    }
}

/// Why a request is not taken, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The prompt or an option does not fit, or no token can be chosen.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Its tokens cannot be computed.
    #[error(transparent)]
    Engine(#[from] Error),
    /// As many requests wait as may.
    #[error("{waiting} requests wait already: expected no more at a time")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// Texts of a request.
    #[error("{n} texts: expected 1 to {most}")]
    Choices {
        /// Texts asked for.
        n: usize,
        /// At most.
        most: usize,
    },
    /// Probabilities of what is no token of the vocabulary.
    #[error("log-probabilities of a prompt's tokens: expected a prompt without pictures")]
    PictureLogprobs,
    /// Beams of a search.
    #[error("{width} beams: expected 1 to {most}, which is how many texts run at a time")]
    Beams {
        /// Beams asked for.
        width: usize,
        /// At most.
        most: usize,
    },
    /// A step of the model that guesses failed.
    #[error("the draft model: {0}")]
    Draft(#[source] Error),
    /// The device failed in a step that it was part of, or nobody works any more.
    #[error("{0}")]
    Step(String),
}

/// How requests are worked on together.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchOptions {
    /// How long requests that generate should wait for a piece of somebody's prompt.
    pub stall: Duration,
    /// Requests that may wait.
    pub queue: usize,
    /// Keep what was computed for later prompts that begin alike.
    pub prefixes: bool,
    /// Let prompts begin with what was generated, whose bits are not a prompt's.
    pub reuse_generated: bool,
}

impl Default for BatchOptions {
    fn default() -> Self {
        BatchOptions {
            stall: Duration::from_millis(100),
            queue: 1024,
            prefixes: true,
            reuse_generated: false,
        }
    }
}

/// A request as others may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    /// Its number.
    pub id: RequestId,
    /// Which of its texts, or of its beams.
    pub choice: usize,
    /// `waiting`, `running` or `preempted`.
    pub state: &'static str,
    /// Pages it uses, shared ones included.
    pub pages: usize,
    /// Tokens that are cached for it.
    pub tokens: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens chosen.
    pub generated: usize,
}

/// What a batch is doing, and what it has done since it began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Pages of the cache.
    pub pages: PageCounts,
    /// Requests, in the order in which they came.
    pub requests: Vec<RequestView>,
    /// Counts so far.
    pub totals: Totals,
}

/// Counts since a batch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Steps taken.
    pub steps: u64,
    /// Time spent in them.
    pub busy: Duration,
    /// Tokens of prompts, those from the cache included.
    pub prompt_tokens: u64,
    /// Those from the cache.
    pub cached_tokens: u64,
    /// Tokens chosen.
    pub generated_tokens: u64,
    /// Tokens computed more than once.
    pub recomputed_tokens: u64,
    /// Tokens computed before it was certain that they are chosen.
    pub guessed_tokens: u64,
    /// Those of them that were.
    pub accepted_tokens: u64,
    /// How often a request had to give its pages back.
    pub preemptions: u64,
    /// Cached pages given up.
    pub evictions: u64,
    /// Texts that ended by themselves, by [`Finish`]: stop, length.
    pub stopped: u64,
    /// Texts that met a limit.
    pub full: u64,
    /// Requests that were aborted.
    pub aborted: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl Totals {
    pub(super) fn count(&mut self, finish: Finish) {
        match finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length | Finish::ContextFull => self.full += 1,
            Finish::Cancelled => self.aborted += 1,
        }
    }
}
