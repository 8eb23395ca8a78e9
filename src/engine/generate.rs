//! From a prompt to text, one sequence at a time: drives a [`Sequence`] over one timeline, tells
//! who watches and takes the times.

use std::io;
use std::time::{Duration, Instant};

use octavo_kernels::Role;

use crate::sample::{Constraint, Logprobs};
use crate::sequence::{Bounds, Computed, Sequence, SequenceError, Want};
use crate::speculate::{Draft, Guessed, Guesser, Pace, Room};

pub use crate::sequence::{Finish, Options, Vocabulary};

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

    /// Tokens of a step, at most, if each is to have outputs.
    fn most_outputs(&self) -> usize {
        usize::MAX
    }

    /// A smaller model that may guess for it.
    fn draft(&self) -> Option<&Draft> {
        None
    }

    /// Forgets all but the first `n` tokens, or as many of them as it can go back to.
    fn truncate(&mut self, n: usize);

    /// Appends tokens, and says what is wanted of the last ones.
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
    Logits {
        /// Of how many of the tokens, from the last.
        rows: usize,
        /// `[rows][n_vocab]`
        into: &'a mut Vec<f32>,
    },
    /// The most likely token, the lowest id of equals.
    Best {
        /// Of how many of the tokens, from the last.
        rows: usize,
        /// One for each.
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

    fn draft(&self) -> Option<&Draft> {
        self.engine().draft()
    }

    fn truncate(&mut self, n: usize) {
        self.truncate(n);
    }

    fn eval(&mut self, tokens: &[u32], role: Role, next: Next<'_>) -> Result<(), Self::Error> {
        use crate::Wanted;
        match next {
            Next::Nothing => self.eval_with(tokens, role, Wanted::None, None, &mut |_, _| {}),
            Next::Logits { rows, into } => {
                into.clear();
                self.eval_with(tokens, role, Wanted::Tail(rows), None, &mut |_, row| {
                    into.extend_from_slice(row);
                })
            }
            Next::Best { rows, into } => {
                *into = self.eval_best_of(tokens, role, Wanted::Tail(rows))?;
                Ok(())
            }
        }
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

/// Only listens.
impl<F: FnMut(&str)> Observer for F {
    fn text(&mut self, text: &str) -> io::Result<()> {
        self(text);
        Ok(())
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
    /// Tokens that were computed before it was certain that they are chosen.
    pub guessed: Guessed,
}

impl Stats {
    /// Prompt tokens read (not taken from the cache) per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt)
    }

    /// Tokens per second after the first one.
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
    /// The prompt or an option does not fit, or no token can be chosen.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The text cannot be shown.
    #[error("cannot write the text: {0}")]
    Output(#[source] io::Error),
    /// A step failed.
    #[error(transparent)]
    Model(E),
    /// A step of the model that guesses failed.
    #[error("the draft model: {0}")]
    Draft(#[source] crate::Error),
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
    generate_within(lm, vocabulary, prompt, options, None, observer)
}

/// Continues a prompt as [`generate`] does, with tokens that a constraint allows.
///
/// # Errors
/// [`enum@Error`]; the timeline stays usable.
pub fn generate_within<L: Lm>(
    lm: &mut L,
    vocabulary: &dyn Vocabulary,
    prompt: &[u32],
    options: &Options,
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
    let guesser = Guesser::new(options.lookup, lm.draft());
    let alike = sequence.reuse(lm.tokens());
    lm.truncate(alike);
    let cached = sequence.reuse(lm.tokens());
    let run = Run {
        lm,
        vocabulary,
        observer,
        sequence,
        guesser,
        pace: Pace::default(),
        start: Instant::now(),
        stats: Stats {
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            ..Stats::default()
        },
    };
    run.generate(options.chunk.max(1))
}

/// One generation under way.
struct Run<'a, L: Lm> {
    lm: &'a mut L,
    vocabulary: &'a dyn Vocabulary,
    observer: &'a mut dyn Observer,
    sequence: Sequence,
    guesser: Guesser,
    pace: Pace,
    start: Instant,
    stats: Stats,
}

/// What a step gave.
#[derive(Default)]
struct Outputs {
    /// `[rows][n_vocab]`, or nothing.
    logits: Vec<f32>,
    /// One for each row, or nothing.
    best: Vec<u32>,
}

impl Outputs {
    fn row(&self, want: Want, row: usize, n_vocab: usize) -> Computed<'_> {
        match want {
            Want::Argmax => Computed::Argmax(self.best[row]),
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
            self.guess(chunk)?;
            let Some(work) = self.sequence.work() else {
                return Ok(self.done());
            };
            let reads = work.role == Role::Prompt;
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
                Want::Argmax => Next::Best {
                    rows,
                    into: &mut outputs.best,
                },
                Want::Logits => Next::Logits {
                    rows,
                    into: &mut outputs.logits,
                },
            };
            let start = Instant::now();
            match self.lm.eval(tokens, work.role, next) {
                Ok(()) => {}
                // a token that is not chosen may be one that the model cannot compute
                Err(_) if rows > 1 => {
                    self.guesser.stop();
                    self.sequence.guess(&[]);
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
                self.pace.took(n + 1 - rows, rows - 1, accepted, took);
                self.guesser.learn(accepted);
            }
        }
    }

    /// Adds guesses to what must be computed next, as far as they fit a step.
    fn guess(&mut self, chunk: usize) -> Result<(), Error<L::Error>> {
        let text = self.sequence.tokens();
        let pending = text.len() - self.sequence.n_cached();
        let in_step = chunk.min(self.lm.most_outputs()).saturating_sub(pending);
        let room = Room {
            texts: 1,
            rows: pending,
            most: self.sequence.room().min(in_step),
        };
        if room.most > 0 {
            let guesses = self.guesser.guess(text, room, &mut self.pace);
            self.sequence.guess(&guesses.map_err(Error::Draft)?);
        }
        Ok(())
    }

    /// Takes the outputs of a step, as far as what was guessed is chosen; answers how many guesses
    /// were.
    fn feed(&mut self, outputs: &Outputs, want: Want) -> Result<usize, Error<L::Error>> {
        let n_vocab = self.lm.n_vocab();
        let mut row = 0;
        loop {
            let computed = outputs.row(want, row, n_vocab);
            let text = self.sequence.feed(computed, self.vocabulary)?;
            self.show(&text)?;
            self.clock();
            if !self.sequence.is_fed_more() {
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

    /// Notes the time of a token that was chosen.
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
            guessed: self.guesser.guessed(),
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
