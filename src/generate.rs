//! From a prompt to text: reads the prompt, samples, stops, and hands out text as soon as it is
//! certain.

use std::io;
use std::time::{Duration, Instant};

use octavo_kernels::Role;
use serde::Serialize;

use crate::sample::{ConfigError, Logprobs, SampleError, Sampler, SamplerConfig, logprobs};
use crate::stop::{EmptyStop, StopMatcher};
use crate::tokenizer::{Tokenizer, Utf8Stream};

/// One timeline of a language model: what generation needs of it, and what a test stands in for.
pub trait Lm {
    /// Why a step failed.
    type Error: std::error::Error + 'static;

    /// Positions there are.
    fn n_ctx(&self) -> usize;

    /// Size of the vocabulary.
    fn n_vocab(&self) -> usize;

    /// Tokens that the cache holds.
    fn tokens(&self) -> &[u32];

    /// Forgets all but the first `n` tokens.
    fn truncate(&mut self, n: usize);

    /// Appends tokens, and says what is wanted of the last one.
    ///
    /// # Errors
    /// If a step fails; the tokens before it stay.
    fn eval(&mut self, tokens: &[u32], role: Role, next: Next<'_>) -> Result<(), Self::Error>;
}

/// What is wanted of what may come next.
#[derive(Debug)]
pub enum Next<'a> {
    /// Nothing: more tokens follow.
    Nothing,
    /// Every token's logit.
    Logits(&'a mut Vec<f32>),
    /// The most likely token, the lowest id of equals.
    Best(&'a mut u32),
}

impl Lm for crate::engine::Session<'_> {
    type Error = crate::Error;

    fn n_ctx(&self) -> usize {
        self.n_ctx()
    }

    fn n_vocab(&self) -> usize {
        self.engine().hparams().n_vocab()
    }

    fn tokens(&self) -> &[u32] {
        self.tokens()
    }

    fn truncate(&mut self, n: usize) {
        self.truncate(n);
    }

    fn eval(&mut self, tokens: &[u32], role: Role, next: Next<'_>) -> Result<(), Self::Error> {
        use crate::engine::Wanted;
        match next {
            Next::Nothing => self.eval_with(tokens, role, Wanted::None, None, &mut |_, _| {}),
            Next::Logits(logits) => {
                self.eval_with(tokens, role, Wanted::Last, None, &mut |_, row| {
                    logits.clear();
                    logits.extend_from_slice(row);
                })
            }
            Next::Best(best) => {
                *best = self.eval_best(tokens, role)?;
                Ok(())
            }
        }
    }
}

/// What tokens mean as text.
pub trait Vocabulary {
    /// The bytes of a token.
    fn piece(&self, id: u32) -> &[u8];

    /// Whether a token is no part of the text (control tokens).
    fn is_special(&self, id: u32) -> bool;

    /// Tokens that end a generation.
    fn eog_ids(&self) -> &[u32];
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
}

/// Watches a generation and may end it.
pub trait Observer {
    /// So many of so many prompt tokens are read.
    fn prompt(&mut self, _done: usize, _total: usize) {}

    /// More text, never half a character, never part of a stop string.
    ///
    /// # Errors
    /// If it cannot be shown; the generation ends with that error.
    fn text(&mut self, text: &str) -> io::Result<()>;

    /// Asked before every step: true ends the generation with what there is.
    fn cancelled(&self) -> bool {
        false
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
    /// Record log-probabilities with so many alternatives.
    pub logprobs: Option<usize>,
    /// Write control tokens as their text instead of nothing.
    pub show_special: bool,
    /// Prompt tokens read between two looks at [`Observer::cancelled`].
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
            logprobs: None,
            show_special: false,
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
    /// [`Observer::cancelled`].
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

/// Counts and times of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Prompt tokens, the cached ones included.
    pub prompt_tokens: usize,
    /// Prompt tokens that the cache already held.
    pub cached_tokens: usize,
    /// Tokens chosen.
    pub generated_tokens: usize,
    /// Time to read the prompt.
    pub prompt: Duration,
    /// From the start to the first token chosen and shown.
    pub first_token: Option<Duration>,
    /// From the first token to the last.
    pub generation: Duration,
}

impl Stats {
    /// Prompt tokens read (not taken from the cache) per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt)
    }

    /// Tokens per second after the first one, each of which took one step.
    pub fn generation_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.generation)
    }

    /// Seconds per token after the first one.
    pub fn per_token(&self) -> Option<f64> {
        self.generation_rate().map(|r| 1.0 / r)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// What was generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The text: exactly what the observer saw.
    pub text: String,
    /// Every token chosen, one that ended the text included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// One per token if asked for.
    pub logprobs: Vec<Logprobs>,
    /// Counts and times.
    pub stats: Stats,
}

/// Why nothing, or no more, can be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error + 'static> {
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
    /// The text cannot be shown.
    #[error("cannot write the text: {0}")]
    Output(#[source] io::Error),
    /// A step failed.
    #[error(transparent)]
    Model(E),
}

/// Continues a prompt. What the timeline already holds of it is not read again.
///
/// # Errors
/// [`enum@Error`]; the timeline stays usable.
pub fn generate<L: Lm>(
    lm: &mut L,
    vocabulary: &dyn Vocabulary,
    prompt: &[u32],
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Generation, Error<L::Error>> {
    let run = Run::new(lm, vocabulary, prompt, options, observer)?;
    run.generate(prompt)
}

/// One generation under way.
struct Run<'a, L: Lm> {
    lm: &'a mut L,
    vocabulary: &'a dyn Vocabulary,
    options: &'a Options,
    observer: &'a mut dyn Observer,
    sampler: Sampler,
    utf8: Utf8Stream,
    stops: StopMatcher,
    start: Instant,
    /// Only the most likely token is asked for, and this is it; otherwise these are the logits.
    plain: bool,
    best: u32,
    logits: Vec<f32>,
    out: Generation,
}

impl<'a, L: Lm> Run<'a, L> {
    fn new(
        lm: &'a mut L,
        vocabulary: &'a dyn Vocabulary,
        prompt: &[u32],
        options: &'a Options,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, Error<L::Error>> {
        let (n_ctx, n_vocab) = (lm.n_ctx(), lm.n_vocab());
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > n_ctx {
            return Err(Error::PromptTooLong {
                prompt: prompt.len(),
                n_ctx,
            });
        }
        if let Some(&id) = prompt
            .iter()
            .chain(&options.stop_ids)
            .find(|&&id| id as usize >= n_vocab)
        {
            return Err(Error::UnknownToken { id, n_vocab });
        }
        let mut config = options.sampler.clone();
        if options.ignore_eos {
            let ends = vocabulary
                .eog_ids()
                .iter()
                .filter(|&&id| (id as usize) < n_vocab);
            config
                .logit_bias
                .extend(ends.map(|&id| (id, f32::NEG_INFINITY)));
        }
        let mut sampler = Sampler::new(config, n_vocab)?;
        prompt.iter().for_each(|&id| sampler.accept(id));
        let stops = StopMatcher::new(&options.stop)?;
        let stats = Stats {
            prompt_tokens: prompt.len(),
            ..Stats::default()
        };
        let out = Generation {
            text: String::new(),
            tokens: Vec::new(),
            finish: Finish::Length,
            logprobs: Vec::new(),
            stats,
        };
        let (utf8, start, logits) = (Utf8Stream::new(), Instant::now(), Vec::new());
        let (plain, best) = (sampler.takes_the_largest() && options.logprobs.is_none(), 0);
        Ok(Run {
            lm,
            vocabulary,
            options,
            observer,
            sampler,
            utf8,
            stops,
            start,
            plain,
            best,
            logits,
            out,
        })
    }

    fn generate(mut self, prompt: &[u32]) -> Result<Generation, Error<L::Error>> {
        self.out.finish = if self.read(prompt)? {
            self.produce()?
        } else {
            Finish::Cancelled
        };
        let tail = self.utf8.finish();
        if self.show(&tail)? {
            self.out.finish = Finish::Stop;
        }
        let held = self.stops.finish();
        self.emit(&held)?;
        Ok(self.out)
    }

    /// Reads what the cache does not hold; false if cancelled.
    fn read(&mut self, prompt: &[u32]) -> Result<bool, Error<L::Error>> {
        let common = self
            .lm
            .tokens()
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        // the last token is always read: its logits are what follows from
        let cached = common.min(prompt.len() - 1);
        self.lm.truncate(cached);
        self.out.stats.cached_tokens = cached;
        let new = &prompt[cached..];
        let mut done = 0;
        for part in new.chunks(self.options.chunk.max(1)) {
            self.observer.prompt(done, new.len());
            if self.observer.cancelled() {
                return Ok(false);
            }
            done += part.len();
            let last = done == new.len();
            self.step(part, Role::Prompt, last)?;
        }
        self.observer.prompt(done, new.len());
        self.out.stats.prompt = self.start.elapsed();
        Ok(true)
    }

    fn produce(&mut self) -> Result<Finish, Error<L::Error>> {
        let most = self.options.max_tokens.unwrap_or(usize::MAX);
        while self.out.tokens.len() < most {
            if self.observer.cancelled() {
                return Ok(Finish::Cancelled);
            }
            let id = if self.plain {
                self.best
            } else {
                self.sampler.sample(&self.logits)?
            };
            if let Some(n) = self.options.logprobs {
                self.out.logprobs.push(logprobs(&self.logits, id, n)?);
            }
            self.sampler.accept(id);
            self.out.tokens.push(id);
            let stopped = self.take(id)?;
            self.clock();
            if stopped {
                return Ok(Finish::Stop);
            }
            if self.out.tokens.len() == most {
                break;
            }
            if self.lm.tokens().len() == self.lm.n_ctx() {
                return Ok(Finish::ContextFull);
            }
            self.step(&[id], Role::Generated, true)?;
        }
        Ok(Finish::Length)
    }

    /// Appends tokens; if they are the last for now, with what the next one is chosen from.
    fn step(&mut self, tokens: &[u32], role: Role, last: bool) -> Result<(), Error<L::Error>> {
        let next = match (last, self.plain) {
            (false, _) => Next::Nothing,
            (true, true) => Next::Best(&mut self.best),
            (true, false) => Next::Logits(&mut self.logits),
        };
        self.lm.eval(tokens, role, next).map_err(Error::Model)
    }

    fn clock(&mut self) {
        let stats = &mut self.out.stats;
        let now = self.start.elapsed();
        stats.generated_tokens = self.out.tokens.len();
        stats.generation = now - *stats.first_token.get_or_insert(now);
    }

    /// Adds a token's text; true if it ends the generation.
    fn take(&mut self, id: u32) -> Result<bool, Error<L::Error>> {
        if self.options.stop_ids.contains(&id) || self.vocabulary.eog_ids().contains(&id) {
            return Ok(true);
        }
        if self.vocabulary.is_special(id) && !self.options.show_special {
            return Ok(false);
        }
        let vocabulary = self.vocabulary;
        let text = self.utf8.push(vocabulary.piece(id));
        self.show(&text)
    }

    fn show(&mut self, text: &str) -> Result<bool, Error<L::Error>> {
        let pushed = self.stops.push(text);
        self.emit(&pushed.text)?;
        Ok(pushed.stop.is_some())
    }

    fn emit(&mut self, text: &str) -> Result<(), Error<L::Error>> {
        if !text.is_empty() {
            self.out.text.push_str(text);
            self.observer.text(text).map_err(Error::Output)?;
        }
        Ok(())
    }
}
