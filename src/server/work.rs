//! Requests on their way through the engine, as one answer needs them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use octavo_engine::sample::{Logprobs, mean_logprob};
use octavo_engine::sequence::{Finish, Text};
use octavo_engine::{Event, EventStream, Found, Request, Timing};

use crate::app::{Admission, App};
use crate::error::ApiError;
use crate::logging::{self, Logged};

/// How long an answer waits for its first event before it begins without one: an error after that
/// is told inside the answer.
const FIRST: Duration = Duration::from_secs(5);

/// What became of one of the prompts of an answer.
pub(crate) struct Update {
    pub(crate) prompt: usize,
    pub(crate) event: Event,
}

/// Requests of one answer, one for each of its prompts. Dropping it ends them.
pub(crate) struct Work {
    app: Arc<App>,
    streams: Vec<Option<EventStream>>,
    /// Which stream is asked first: none is served before others for ever.
    turn: usize,
    seen: VecDeque<Update>,
    _admission: Admission,
    /// What the log will say of the request.
    logged: Option<Arc<Logged>>,
}

impl Work {
    /// Hands requests to the engine.
    pub(crate) fn begin(app: &Arc<App>, requests: Vec<Request>) -> Result<Work, ApiError> {
        let admission = app.admit()?;
        let submit = |request| app.front.submit(request).map(Some);
        let streams = requests.into_iter().map(submit).collect::<Result<_, _>>()?;
        Ok(Work {
            app: Arc::clone(app),
            streams,
            turn: 0,
            seen: VecDeque::new(),
            _admission: admission,
            logged: logging::current(),
        })
    }

    /// Waits until the first of them has begun, though not for ever.
    ///
    /// # Errors
    /// If one cannot begin.
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

    /// The next event of any; `None` after the last of all.
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

    /// Waits for all of it.
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
                Event::Found { texts, timing } => {
                    let texts = texts.into_iter().enumerate();
                    let choice =
                        |(index, found): (usize, Found)| Choice::of(index, found.text, timing);
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

/// All that came of one prompt.
#[derive(Default)]
pub(crate) struct Answer {
    /// Log-probabilities of the prompt from its second token on, if asked for.
    pub(crate) prompt: Vec<Logprobs>,
    /// In order.
    pub(crate) choices: Vec<Choice>,
    /// The embedding, if that was asked for.
    pub(crate) vector: Vec<f32>,
}

/// One text.
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Logprobs>,
    pub(crate) finish: Finish,
    /// The stop string that ended it, by its place in the list.
    pub(crate) stopped_by: Option<usize>,
    pub(crate) timing: Timing,
}

impl Choice {
    fn of(index: usize, text: Text, timing: Timing) -> Choice {
        Choice {
            index,
            timing: Timing {
                // of a search, the longest text's
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

/// Keeps the `n` likeliest texts of more, the best first.
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
