//! What a sequence is asked, what it answers, and what tokens mean to it.

use octavo_kernels::Role;
use octavo_text::stop::EmptyStop;
use octavo_text::tokenizer::Tokenizer;
use serde::Serialize;

use crate::sample::{ConfigError, Logprobs, SampleError, SamplerConfig};
use crate::speculate::Lookup;

/// What tokens mean as text.
pub trait Vocabulary {
    /// The bytes of a token.
    fn piece(&self, id: u32) -> &[u8];

    /// Whether a token is no part of the text (control tokens).
    fn is_special(&self, id: u32) -> bool;

    /// Tokens that end a generation.
    fn eog_ids(&self) -> &[u32];

    /// Tokens that the model may name and that are never chosen.
    fn suppressed_ids(&self) -> &[u32] {
        &[]
    }
}

impl Vocabulary for Tokenizer {
    fn piece(&self, id: u32) -> &[u8] {
        // a model may have more rows of logits than its vocabulary has tokens: those decode to
        // nothing
        self.piece(id).unwrap_or_default()
    }

    fn is_special(&self, id: u32) -> bool {
        self.is_special(id)
    }

    fn eog_ids(&self) -> &[u32] {
        self.eog_ids()
    }

    fn suppressed_ids(&self) -> &[u32] {
        self.suppressed_ids()
    }
}

/// How to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Tokens to generate at most; to the end of the context if not given.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// Strings that end the text before them.
    pub stop: Vec<String>,
    /// Tokens that end the text before them.
    pub stop_ids: Vec<u32>,
    /// Never choose a token that ends the generation.
    pub ignore_eos: bool,
    /// Neither a token nor a string ends the text before so many tokens.
    pub min_tokens: usize,
    /// Record log-probabilities with so many alternatives.
    pub logprobs: Option<usize>,
    /// Write control tokens as their text instead of nothing.
    pub show_special: bool,
    /// Whether what the text said before is a guess of what follows. That changes no token.
    pub lookup: Lookup,
    /// Prompt tokens given to a model at a time, at most; between them a generation can be
    /// cancelled.
    pub chunk: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_tokens: None,
            sampler: SamplerConfig::default(),
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            logprobs: None,
            show_special: false,
            lookup: Lookup::Auto,
            chunk: 512,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// A token or a string that ends the text.
    Stop,
    /// The most tokens asked for.
    Length,
    /// Every position of the context holds a token.
    #[serde(rename = "length")]
    ContextFull,
    /// Whoever drives it wanted no more.
    Cancelled,
}

impl Finish {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length | Finish::ContextFull => "length",
            Finish::Cancelled => "cancelled",
        }
    }

    /// Which limit a `length` is: other programs know that name for both, so the two are told apart
    /// beside it.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            Finish::Length => Some("max_tokens"),
            Finish::ContextFull => Some("context_full"),
            Finish::Stop | Finish::Cancelled => None,
        }
    }
}

/// Why nothing, or no more, can be generated.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// There is nothing to continue.
    #[error(
        "the prompt has no tokens: expected at least one (this model puts no BOS token in front)"
    )]
    EmptyPrompt,
    /// More prompt than context.
    #[error("the prompt has {prompt} tokens: expected at most the context of {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions there are.
        n_ctx: usize,
    },
    /// A prompt or stop id that is not in the vocabulary.
    #[error("token id {id}: expected an id below {n_vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A setting of the sampler is out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An unusable stop string.
    #[error(transparent)]
    Stop(#[from] EmptyStop),
    /// No token can be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// What is wanted of the last token of some [`Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The most likely token after it, the lowest id of equals.
    Argmax,
    /// Every token's logit.
    Logits,
}

/// Tokens that must be computed before a sequence can go on.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// In order, at least one. The first so many may be computed alone: then nothing is wanted.
    pub tokens: &'a [u32],
    /// How they came to be.
    pub role: Role,
    /// What is wanted once all are computed.
    pub want: Want,
    /// Of how many of the tokens, from the last: one, and one for each guess.
    pub outputs: usize,
}

/// What came of some [`Work`].
#[derive(Clone, Copy, Debug)]
pub enum Computed<'a> {
    /// So many of its tokens are cached; others are left.
    Cached(usize),
    /// All of them are; this is the most likely token.
    Argmax(u32),
    /// All of them are; these are the logits of what may follow.
    Logits(&'a [f32]),
}

/// The sizes that a sequence must fit.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Positions there are.
    pub n_ctx: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
}

/// What a sequence has brought forth.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// All that was handed out.
    pub text: String,
    /// Every token chosen, one that ended the text included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The stop string that ended it, by its place in the list.
    pub stopped_by: Option<usize>,
    /// One per token if asked for.
    pub logprobs: Vec<Logprobs>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were cached before it began.
    pub cached_tokens: usize,
}
