//! Generates text from a prompt, one sequence at a time: drives a [`Sequence`] over an [`Lm`],
//! reports to an [`Observer`] and measures the times.

use std::io;
use std::time::{Duration, Instant};

use octavo_kernels::Phase;

use crate::sample::{Constraint, Logprobs};
use crate::sequence::{Bounds, Computed, Sequence, SequenceError, Want};
use crate::speculative::{CostModel, DraftBudget, DraftModel, DraftStats, Proposer};

pub use crate::sequence::{FinishReason, GenerationParams, Vocabulary};

/// One sequence of a language model, as generation needs it; tests implement it too.
pub trait Lm {
    /// Error of a failed step.
    type Error: std::error::Error + 'static;

    /// Returns the context length in tokens.
    fn n_ctx(&self) -> usize;

    /// Returns the size of the vocabulary.
    fn n_vocab(&self) -> usize;

    /// Returns the tokens in the KV cache.
    fn tokens(&self) -> &[u32];

    /// Returns the maximum number of tokens in a step if each is to have outputs.
    fn most_outputs(&self) -> usize {
        usize::MAX
    }

    /// Returns the draft model for speculative decoding, if there is one.
    fn draft(&self) -> Option<&DraftModel> {
        None
    }

    /// Truncates the cache to the first `n` tokens, or to fewer if it cannot go back to exactly
    /// `n`.
    fn truncate(&mut self, n: usize);

    /// Appends tokens and computes the outputs that `next` asks for.
    ///
    /// # Errors
    /// If a step fails; the tokens before it stay cached.
    fn eval(&mut self, tokens: &[u32], phase: Phase, next: Next<'_>) -> Result<(), Self::Error>;
}

/// Outputs to compute for the last of the new tokens.
#[derive(Debug)]
pub enum Next<'a> {
    /// No outputs: more tokens follow.
    Nothing,
    /// Logits of the whole vocabulary.
    Logits {
        /// Number of tokens, from the last, to return logits for.
        rows: usize,
        /// `[rows][n_vocab]`
        into: &'a mut Vec<f32>,
    },
    /// The most likely next token, the lowest id of equals.
    Argmax {
        /// Number of tokens, from the last, to return it for.
        rows: usize,
        /// `[rows]` token ids
        into: &'a mut Vec<u32>,
    },
}

impl Lm for crate::Session {
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

    fn most_outputs(&self) -> usize {
        self.most_outputs()
    }

    fn draft(&self) -> Option<&DraftModel> {
        self.engine().draft()
    }

    fn truncate(&mut self, n: usize) {
        self.truncate(n);
    }

    fn eval(&mut self, tokens: &[u32], phase: Phase, next: Next<'_>) -> Result<(), Self::Error> {
        use crate::LogitsFor;
        match next {
            Next::Nothing => self.eval_with(tokens, phase, LogitsFor::None, None, &mut |_, _| {}),
            Next::Logits { rows, into } => {
                into.clear();
                self.eval_with(tokens, phase, LogitsFor::Tail(rows), None, &mut |_, row| {
                    into.extend_from_slice(row);
                })
            }
            Next::Argmax { rows, into } => {
                *into = self.eval_argmax_of(tokens, phase, LogitsFor::Tail(rows))?;
                Ok(())
            }
        }
    }
}

/// Watches a generation and can end it.
pub trait Observer {
    /// Reports the progress of the prefill, in prompt tokens.
    fn prompt(&mut self, _done: usize, _total: usize) {}

    /// Receives more text, never half a character, never part of a stop string.
    ///
    /// # Errors
    /// If it cannot be written; the generation ends with that error.
    fn text(&mut self, text: &str) -> io::Result<()>;

    /// Polled with every step: true ends the generation with the text so far.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Receives the text and nothing else.
impl<F: FnMut(&str)> Observer for F {
    fn text(&mut self, text: &str) -> io::Result<()> {
        self(text);
        Ok(())
    }
}

/// Counts and times of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: usize,
    /// Prompt tokens that the cache already held.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time of the prefill.
    pub prompt: Duration,
    /// Time from the start until the first token is chosen and shown.
    pub first_token: Option<Duration>,
    /// Time from the first token to the last.
    pub generation: Duration,
    /// Draft and accepted tokens of speculative decoding.
    pub drafts: DraftStats,
}

impl Stats {
    /// Returns the prefill speed: prompt tokens computed (not cached) per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt)
    }

    /// Returns the decode speed: tokens per second after the first one.
    pub fn generation_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.generation)
    }

    /// Returns the seconds per token after the first one.
    pub fn per_token(&self) -> Option<f64> {
        self.generation_rate().map(|r| 1.0 / r)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The text, exactly as the observer received it.
    pub text: String,
    /// All generated tokens, including one that ended the text.
    pub tokens: Vec<u32>,
    /// Finish reason.
    pub finish: FinishReason,
    /// Log-probabilities of each token, if asked for.
    pub logprobs: Vec<Logprobs>,
    /// Counts and times.
    pub stats: Stats,
}

/// Errors of a generation.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error + 'static> {
    /// The prompt or an option does not fit, or no token can be chosen.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The text cannot be written.
    #[error("cannot write the text: {0}")]
    Output(#[source] io::Error),
    /// A step failed.
    #[error(transparent)]
    Model(E),
    /// A step of the draft model failed.
    #[error("the draft model: {0}")]
    Draft(#[source] crate::Error),
}

/// Continues a prompt. Tokens of it that the KV cache already holds are not computed again.
///
/// # Errors
/// [`enum@Error`]; the sequence stays usable.
pub fn generate<L: Lm>(
    lm: &mut L,
    vocabulary: &dyn Vocabulary,
    prompt: &[u32],
    options: &GenerationParams,
    observer: &mut dyn Observer,
) -> Result<Generation, Error<L::Error>> {
    generate_within(lm, vocabulary, prompt, options, None, observer)
}

/// Continues a prompt as [`generate`] does, with tokens that a constraint allows.
///
/// # Errors
/// [`enum@Error`]; the sequence stays usable.
pub fn generate_within<L: Lm>(
    lm: &mut L,
    vocabulary: &dyn Vocabulary,
    prompt: &[u32],
    options: &GenerationParams,
    constraint: Option<Box<dyn Constraint>>,
    observer: &mut dyn Observer,
) -> Result<Generation, Error<L::Error>> {
    let bounds = Bounds {
        n_ctx: lm.n_ctx(),
        n_vocab: lm.n_vocab(),
    };
    let mut sequence = Sequence::new(prompt, options, bounds, vocabulary)?;
    if let Some(constraint) = constraint {
        sequence.constrain(constraint);
    }
    let proposer = Proposer::new(options.lookup, lm.draft());
    let alike = sequence.reuse(lm.tokens());
    lm.truncate(alike);
    let cached = sequence.reuse(lm.tokens());
    let run = Run {
        lm,
        vocabulary,
        observer,
        sequence,
        proposer,
        cost_model: CostModel::default(),
        start: Instant::now(),
        stats: Stats {
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            ..Stats::default()
        },
    };
    run.generate(options.chunk.max(1))
}

/// A generation in progress.
struct Run<'a, L: Lm> {
    lm: &'a mut L,
    vocabulary: &'a dyn Vocabulary,
    observer: &'a mut dyn Observer,
    sequence: Sequence,
    proposer: Proposer,
    cost_model: CostModel,
    start: Instant,
    stats: Stats,
}

/// Outputs of a step.
#[derive(Default)]
struct Outputs {
    /// `[rows][n_vocab]`, or empty
    logits: Vec<f32>,
    /// `[rows]`, or empty
    argmax: Vec<u32>,
}

impl Outputs {
    fn row(&self, want: Want, row: usize, n_vocab: usize) -> Computed<'_> {
        match want {
            Want::Argmax => Computed::Argmax(self.argmax[row]),
            Want::Logits => Computed::Logits(&self.logits[row * n_vocab..(row + 1) * n_vocab]),
        }
    }
}

impl<L: Lm> Run<'_, L> {
    fn generate(mut self, chunk: usize) -> Result<Generation, Error<L::Error>> {
        let mut outputs = Outputs::default();
        let total = self.stats.prompt_tokens - self.stats.cached_tokens;
        let mut read = 0;
        loop {
            self.add_drafts(chunk)?;
            let Some(work) = self.sequence.work() else {
                return Ok(self.done());
            };
            let reads = work.phase == Phase::Prefill;
            if reads {
                self.observer.prompt(read, total);
                if self.observer.cancelled() {
                    return self.cancel();
                }
            }
            let n = work.tokens.len().min(chunk);
            let (tokens, want, rows) = (&work.tokens[..n], work.want, work.outputs);
            let is_last = n == work.tokens.len();
            let next = match want {
                _ if !is_last => Next::Nothing,
                Want::Argmax => Next::Argmax {
                    rows,
                    into: &mut outputs.argmax,
                },
                Want::Logits => Next::Logits {
                    rows,
                    into: &mut outputs.logits,
                },
            };
            let start = Instant::now();
            match self.lm.eval(tokens, work.phase, next) {
                Ok(()) => {}
                // a draft token may be one that the model cannot compute: go on without drafts
                Err(_) if rows > 1 => {
                    self.proposer.stop();
                    self.sequence.set_drafts(&[]);
                    continue;
                }
                Err(error) => return Err(Error::Model(error)),
            }
            let took = start.elapsed();
            if reads {
                read += n;
            }
            if !is_last {
                self.sequence.feed(Computed::Cached(n), self.vocabulary)?;
                continue;
            }
            if reads {
                self.observer.prompt(read, total);
                self.stats.prompt = self.start.elapsed();
            }
            if self.observer.cancelled() {
                return self.cancel();
            }
            let accepted = self.feed(&outputs, want)?;
            if !reads {
                self.cost_model
                    .record_step(n + 1 - rows, rows - 1, accepted, took);
                self.proposer.learn(accepted);
            }
        }
    }

    /// Adds draft tokens to the next step, as many as fit.
    fn add_drafts(&mut self, chunk: usize) -> Result<(), Error<L::Error>> {
        let text = self.sequence.tokens();
        let pending = text.len() - self.sequence.n_cached();
        let in_step = chunk.min(self.lm.most_outputs()).saturating_sub(pending);
        let budget = DraftBudget {
            texts: 1,
            rows: pending,
            max: self.sequence.draft_room().min(in_step),
        };
        if budget.max > 0 {
            let drafts = self.proposer.propose(text, budget, &mut self.cost_model);
            self.sequence.set_drafts(&drafts.map_err(Error::Draft)?);
        }
        Ok(())
    }

    /// Feeds the outputs of a step to the sequence as long as draft tokens are accepted; returns
    /// how many were.
    fn feed(&mut self, outputs: &Outputs, want: Want) -> Result<usize, Error<L::Error>> {
        let n_vocab = self.lm.n_vocab();
        let mut row = 0;
        loop {
            let computed = outputs.row(want, row, n_vocab);
            let text = self.sequence.feed(computed, self.vocabulary)?;
            self.show(&text)?;
            self.clock();
            if !self.sequence.has_accepted_draft() {
                break;
            }
            row += 1;
        }
        let n_cached = self.sequence.n_cached();
        if self.lm.tokens().len() > n_cached {
            self.lm.truncate(n_cached);
            self.sequence.forget(self.lm.tokens().len());
        }
        Ok(row)
    }

    fn cancel(mut self) -> Result<Generation, Error<L::Error>> {
        let text = self.sequence.cancel();
        self.show(&text)?;
        Ok(self.done())
    }

    fn show(&mut self, text: &str) -> Result<(), Error<L::Error>> {
        if text.is_empty() {
            return Ok(());
        }
        self.observer.text(text).map_err(Error::Output)
    }

    /// Records the time of a newly generated token.
    fn clock(&mut self) {
        let (stats, n) = (&mut self.stats, self.sequence.generated().len());
        if n > stats.generated_tokens {
            let now = self.start.elapsed();
            stats.generated_tokens = n;
            stats.generation = now - *stats.first_token.get_or_insert(now);
        }
    }

    fn done(self) -> Generation {
        let stats = Stats {
            drafts: self.proposer.stats(),
            ..self.stats
        };
        let text = self.sequence.into_text();
        Generation {
            text: text.text,
            tokens: text.tokens,
            finish: text.finish,
            logprobs: text.logprobs,
            stats,
        }
    }
}
