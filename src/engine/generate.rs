//! Generates one text in one call: runs a batch of one request to its end and reports to an
//! [`Observer`].

use std::io;

use crate::batch::{Batch, BatchError, BatchOptions, Event, Request, RequestId, Timing};
use crate::decoder::{FinishReason, GenerationParams, Text};
use crate::sample::{Constraint, Logprobs};
use crate::session::Session;

/// Watches a generation and can end it.
pub trait Observer {
    /// Reports the progress of the prefill, in prompt tokens that are not cached.
    fn prompt(&mut self, _done: usize, _total: usize) {}

    /// Receives more text, never half a character, never part of a stop string.
    ///
    /// # Errors
    /// If it cannot be written; the generation ends with that error.
    fn text(&mut self, text: &str) -> io::Result<()>;

    /// Polled before every step: true ends the generation with the text so far.
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
    pub timing: Timing,
}

/// Errors of a generation.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The prompt or an option does not fit, or a step failed.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The text cannot be written.
    #[error("cannot write the text: {0}")]
    Output(#[source] io::Error),
}

impl Session {
    /// Continues a prompt, as a batch of one request, with tokens that a constraint allows.
    ///
    /// Tokens at the beginning of the prompt that the session holds are not computed again, those
    /// that it generated included; it drops others. Then it holds the prompt and the text.
    ///
    /// # Errors
    /// [`GenerateError`]; the session stays usable.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        params: &GenerationParams,
        constraint: Option<Box<dyn Constraint>>,
        observer: &mut dyn Observer,
    ) -> Result<Generation, GenerateError> {
        let options = BatchOptions {
            // a session has pages of its own, some of which hold generated tokens
            prefixes: false,
            ..BatchOptions::default()
        };
        let mut batch = Batch::new(self.engine(), options);
        let id = batch.add(Request {
            images: self.images().to_vec(),
            constraint,
            ..Request::new(prompt, params)
        })?;
        batch.lend(id, self.lend(prompt).map_err(BatchError::from)?);
        let result = run(&mut batch, id, observer);
        self.take_back(batch.take_back());
        result
    }
}

/// Runs the only request of a batch to its end.
pub(crate) fn run(
    batch: &mut Batch,
    id: RequestId,
    observer: &mut dyn Observer,
) -> Result<Generation, GenerateError> {
    let mut progress = Progress {
        observer,
        prompt: 0,
        cached: 0,
        result: None,
    };
    while !batch.is_empty() {
        if progress.observer.cancelled() {
            batch.cancel(id, &mut |_, event| progress.take(event));
        } else if let Err(error) = batch.step(&mut |_, event| progress.take(event)) {
            progress.result = Some(Err(BatchError::from(error).into()));
        }
        if let Some(Err(_)) = progress.result {
            batch.abort(id);
        }
    }
    let result = progress.result;
    result.expect("a request for text ends with one, or with an error")
}

/// State of a generation between two events.
struct Progress<'a> {
    observer: &'a mut dyn Observer,
    /// Tokens of the prompt, and how many of them were cached.
    prompt: usize,
    cached: usize,
    result: Option<Result<Generation, GenerateError>>,
}

impl Progress<'_> {
    /// Takes the next event of the request.
    fn take(&mut self, event: Event) {
        match event {
            Event::Started { prompt, cached } => {
                (self.prompt, self.cached) = (prompt, cached);
                self.report(cached);
            }
            Event::Read { done } => self.report(done),
            Event::Delta { delta, .. } => self.show(&delta.text),
            Event::Finished { text, timing, .. } => {
                self.result.get_or_insert(Ok(Generation::new(text, timing)));
            }
            Event::Failed(error) => self.result = Some(Err(error.into())),
            Event::Prompt(_) | Event::Beams { .. } | Event::Embedded { .. } => {}
        }
    }

    /// Reports how many tokens of the prompt are computed or cached.
    fn report(&mut self, done: usize) {
        let (done, total) = (done - self.cached, self.prompt - self.cached);
        self.observer.prompt(done, total);
    }

    fn show(&mut self, text: &str) {
        // after an error nothing more is shown
        if !text.is_empty()
            && self.result.is_none()
            && let Err(error) = self.observer.text(text)
        {
            self.result = Some(Err(GenerateError::Output(error)));
        }
    }
}

impl Generation {
    fn new(text: Text, timing: Timing) -> Generation {
        Generation {
            text: text.text,
            tokens: text.tokens,
            finish: text.finish,
            logprobs: text.logprobs,
            timing,
        }
    }
}
