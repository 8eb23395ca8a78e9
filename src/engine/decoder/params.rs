//! Settings, limits and results of a text, and the vocabulary that its tokens come from.

use octavo_text::stop::EmptyStop;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use serde::Serialize;

use super::context_shift::ContextShift;
use crate::sample::{ConfigError, DryBreakers, Logprobs, SampleError, SamplerConfig};
use crate::speculative::Lookup;

/// Maps tokens to text.
pub trait Vocabulary {
    /// Returns the bytes of a token.
    fn piece(&self, id: u32) -> &[u8];

    /// Returns whether a token is no part of the text (a control token).
    fn is_special(&self, id: u32) -> bool;

    /// Returns the tokens that end a generation.
    fn eog_ids(&self) -> &[u32];

    /// Returns the tokens that are never chosen, if the model names some.
    fn suppressed_ids(&self) -> &[u32] {
        &[]
    }

    /// Returns the token sequences of strings that end a repetition, where the vocabulary has any.
    fn dry_breakers(&self, _strings: &[String]) -> DryBreakers {
        DryBreakers::default()
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

    fn dry_breakers(&self, strings: &[String]) -> DryBreakers {
        let n_vocab = u32::try_from(self.n_vocab()).unwrap_or(u32::MAX);
        let encode = |text: &[u8]| self.encode(text, EncodeOptions::PIECE).ok();
        DryBreakers::find(
            strings,
            n_vocab,
            |id| self.piece(id).unwrap_or_default(),
            encode,
        )
    }
}

/// Settings of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationParams {
    /// Maximum number of tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Sampling settings.
    pub sampler: SamplerConfig,
    /// Stop strings; the text ends before them.
    pub stop: Vec<String>,
    /// Stop tokens; the text ends before them.
    pub stop_ids: Vec<u32>,
    /// Never choose a token that ends the generation.
    pub ignore_eos: bool,
    /// Number of tokens before which neither a token nor a string ends the text.
    pub min_tokens: usize,
    /// Record log-probabilities with this many alternatives.
    pub logprobs: Option<usize>,
    /// Record them as the sampler left them, after bias, penalties and filters, and not over the
    /// whole vocabulary before those.
    pub logprobs_after_sampling: bool,
    /// Write control tokens as their text instead of nothing.
    pub show_special: bool,
    /// How the text goes on when the context is full; it ends there if not given, if the prompt has
    /// images, and in a beam search.
    pub context_shift: Option<ContextShift>,
    /// Whether to draft tokens from the text itself (n-gram lookup). That changes no token.
    pub lookup: Lookup,
    /// Number of tokens that a draft model proposes at a time, whatever they cost; `None` means as
    /// many as are worth their time. That changes no token.
    pub draft_max: Option<usize>,
}

impl Default for GenerationParams {
    fn default() -> Self {
        GenerationParams {
            max_tokens: None,
            sampler: SamplerConfig::default(),
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            logprobs: None,
            logprobs_after_sampling: false,
            show_special: false,
            context_shift: None,
            lookup: Lookup::Auto,
            draft_max: None,
        }
    }
}

/// Finish reason of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A token or a string ended the text.
    Stop,
    /// The maximum number of tokens was generated.
    Length,
    /// Every position of the context holds a token.
    #[serde(rename = "length")]
    ContextFull,
    /// The caller wanted no more.
    Cancelled,
}

impl FinishReason {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// Returns which limit a `length` is: other programs use that name for both, so this is a
    /// separate field.
    pub fn detail(self) -> Option<&'static str> {
        match self {
            FinishReason::Length => Some("max_tokens"),
            FinishReason::ContextFull => Some("context_full"),
            FinishReason::Stop | FinishReason::Cancelled => None,
        }
    }
}

/// Errors of a generation.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// An empty prompt.
    #[error(
        "the prompt has no tokens: expected at least one (this model puts no BOS token in front)"
    )]
    EmptyPrompt,
    /// A prompt longer than the context.
    #[error("the prompt has {prompt} tokens: expected at most the context of {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Context length in tokens.
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
    /// A setting of the sampler out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An unusable stop string.
    #[error(transparent)]
    Stop(#[from] EmptyStop),
    /// No token can be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// Sizes that a sequence must fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Context length in tokens.
    pub(crate) n_ctx: usize,
    /// Size of the vocabulary.
    pub(crate) n_vocab: usize,
}

/// A finished text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// All text that was handed out.
    pub text: String,
    /// All generated tokens, including one that ended the text.
    pub tokens: Vec<u32>,
    /// Finish reason.
    pub finish: FinishReason,
    /// Index of the stop string that ended it.
    pub stopped_by: Option<usize>,
    /// Log-probabilities of each token, if asked for.
    pub logprobs: Vec<Logprobs>,
}
