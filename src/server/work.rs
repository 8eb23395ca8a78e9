//! Requests running in the engine, on behalf of one answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use octavo_engine::sample::{Logprobs, mean_logprob};
use octavo_engine::{BeamOutput, Event, EventStream, Request, Timing};
use octavo_engine::{FinishReason, Text};

use crate::app::App;
use crate::error::ApiError;
use crate::logging::{self, Logged};
use crate::model::Admission;

/// Longest wait for an answer's first event before the response starts without one: later errors
/// are reported inside the response.
const FIRST: Duration = Duration::from_secs(5);

/// An event of one of an answer's prompts.
pub(crate) struct Update {
    pub(crate) prompt: usize,
    pub(crate) event: Event,
}

/// Requests of one answer, one for each of its prompts. Dropping it cancels them.
pub(crate) struct Work {
    streams: Vec<Option<EventStream>>,
    /// Stream to poll first; rotates so that none is starved.
    turn: usize,
    seen: VecDeque<Update>,
    _admission: Admission,
    /// Log state of the request.
    logged: Option<Arc<Logged>>,
    // dropped last: the model may be unloaded then
    app: Arc<App>,
}

impl Work {
    /// Submits requests to the engine.
    pub(crate) fn begin(app: &Arc<App>, requests: Vec<Request>) -> Result<Work, ApiError> {
        let admission = app.admit()?;
        let submit = |request| app.handle.submit(request).map(Some);
        let streams = requests.into_iter().map(submit).collect::<Result<_, _>>()?;
        Ok(Work {
            streams,
            turn: 0,
            seen: VecDeque::new(),
            _admission: admission,
            logged: logging::current(),
            app: Arc::clone(app),
        })
    }

    /// Waits until the first of them starts, up to a time limit.
    ///
    /// # Errors
    /// If one cannot start.
    pub(crate) async fn has_begun(&mut self) -> Result<(), ApiError> {
        let first = poll_fn(|context| self.poll(context));
        match tokio::time::timeout(FIRST, first).await {
            Ok(Some(Update {
                event: Event::Failed(error),
                ..
            })) => Err(error.into()),
            Ok(Some(update)) => {
                self.seen.push_back(update);
                Ok(())
            }
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// Returns the next event of any request; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Update> {
        match self.seen.pop_front() {
            Some(update) => Some(update),
            None => poll_fn(|context| self.poll(context)).await,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        let n = self.streams.len();
        for i in 0..n {
            let prompt = (self.turn + i) % n;
            let Some(stream) = &mut self.streams[prompt] else {
                continue;
            };
            match stream.poll_next(context) {
                Poll::Pending => {}
                Poll::Ready(None) => self.streams[prompt] = None,
                Poll::Ready(Some(event)) => {
                    self.turn = prompt + 1;
                    self.app.metrics.note(&event);
                    if let Some(logged) = &self.logged {
                        logged.note(&event);
                    }
                    return Poll::Ready(Some(Update { prompt, event }));
                }
            }
        }
        if self.streams.iter().all(Option::is_none) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// Waits for all requests to finish.
    ///
    /// # Errors
    /// If one of the requests fails.
    pub(crate) async fn collect(mut self) -> Result<Vec<Answer>, ApiError> {
        let mut answers: Vec<Answer> = self.streams.iter().map(|_| Answer::default()).collect();
        while let Some(Update { prompt, event }) = self.next().await {
            let answer = &mut answers[prompt];
            match event {
                Event::Started { .. } | Event::Read { .. } | Event::Delta { .. } => {}
                Event::Prompt(logprobs) => answer.prompt = logprobs,
                Event::Finished {
                    choice,
                    text,
                    timing,
                } => answer.choices.push(Choice::of(choice, text, timing)),
                Event::Beams { texts, timing } => {
                    let texts = texts.into_iter().enumerate();
                    let choice =
                        |(index, found): (usize, BeamOutput)| Choice::of(index, found.text, timing);
                    answer.choices = texts.map(choice).collect();
                }
                Event::Embedded { vector, .. } => answer.vector = vector,
                Event::Failed(error) => return Err(error.into()),
            }
        }
        for answer in &mut answers {
            answer.choices.sort_by_key(|choice| choice.index);
        }
        Ok(answers)
    }
}

/// Complete result of one prompt.
#[derive(Default)]
pub(crate) struct Answer {
    /// Log-probabilities of the prompt from its second token on, if requested.
    pub(crate) prompt: Vec<Logprobs>,
    /// Generated texts, in order.
    pub(crate) choices: Vec<Choice>,
    /// Embedding, if requested.
    pub(crate) vector: Vec<f32>,
}

/// One generated text.
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Logprobs>,
    pub(crate) finish: FinishReason,
    /// Index of the stop string that ended it.
    pub(crate) stopped_by: Option<usize>,
    pub(crate) timing: Timing,
}

impl Choice {
    fn of(index: usize, text: Text, timing: Timing) -> Choice {
        Choice {
            index,
            timing: Timing {
                // of a beam search, the longest text's
                generated_tokens: text.tokens.len(),
                ..timing
            },
            text: text.text,
            tokens: text.tokens,
            logprobs: text.logprobs,
            finish: text.finish,
            stopped_by: text.stopped_by,
        }
    }
}

/// Retains the `n` likeliest texts, best first.
pub(crate) fn keep_best(choices: &mut Vec<Choice>, n: usize) {
    if choices.len() > n {
        let mean = |choice: &Choice| mean_logprob(&choice.logprobs);
        choices.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        choices.truncate(n);
        (0..)
            .zip(choices)
            .for_each(|(index, choice)| choice.index = index);
    }
}
