//! Texts while they are generated: one call's wait for them, and iterators.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use octavo_llm::engine::{Event, EventStream, Request, Text, Timing};
use octavo_server::LocalAnswer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::answer::{ChatPart, Completion, Delta, Finished, Logprob};
use crate::call::TICK;
use crate::error::{Failure, forked};
use crate::load::Loaded;

/// Waits for the next event of a request; `None` after the last. Signals' handlers run meanwhile.
pub(crate) fn wait(py: Python<'_>, stream: &mut EventStream) -> PyResult<Option<Event>> {
    loop {
        let waited = py.detach(|| stream.wait_next_for(TICK));
        // events may come faster than the time that a wait takes at most
        py.check_signals()?;
        if let Poll::Ready(event) = waited {
            return Ok(event);
        }
    }
}

/// Source of a text's events.
enum Source {
    /// A continued text, with its prompt.
    Text(EventStream, Vec<u32>),
    /// A chat answer, which is read as it comes.
    Chat(Box<LocalAnswer>),
}

/// A text while it is generated. Dropping it ends the request.
pub(crate) struct Running {
    source: Source,
    has_logprobs: bool,
    /// Keeps the model.
    _loaded: Arc<Loaded>,
}

/// Next part of a text.
enum Next {
    More(Delta),
    End(Box<(Text, Timing)>),
}

impl Running {
    /// Submits a request for one text.
    pub(crate) fn text(loaded: &Arc<Loaded>, request: Request) -> Result<Running, Failure> {
        let has_logprobs = request.options.logprobs.is_some();
        let prompt = request.prompt.clone();
        let stream = loaded.handle.submit(request)?.patient();
        Ok(Running {
            source: Source::Text(stream, prompt),
            has_logprobs,
            _loaded: Arc::clone(loaded),
        })
    }

    /// Wraps an answer to a chat request.
    pub(crate) fn chat(loaded: &Arc<Loaded>, answer: LocalAnswer, has_logprobs: bool) -> Running {
        Running {
            source: Source::Chat(Box::new(answer)),
            has_logprobs,
            _loaded: Arc::clone(loaded),
        }
    }

    fn next(&mut self, py: Python<'_>) -> PyResult<Next> {
        loop {
            let stream = match &mut self.source {
                Source::Text(stream, _) => stream,
                Source::Chat(answer) => &mut answer.stream,
            };
            match wait(py, stream)? {
                Some(Event::Delta { delta, .. }) => {
                    let (text, reasoning) = match &mut self.source {
                        Source::Text(..) => (delta.text, String::new()),
                        Source::Chat(answer) => answer.push(&delta.text),
                    };
                    let logprobs = delta.logprobs.into_iter().map(Logprob::from);
                    return Ok(Next::More(Delta {
                        text,
                        reasoning,
                        tokens: delta.tokens,
                        logprobs: self.has_logprobs.then(|| logprobs.collect()),
                    }));
                }
                Some(Event::Finished { text, timing, .. }) => {
                    return Ok(Next::End(Box::new((text, timing))));
                }
                Some(Event::Failed(error)) => return Err(Failure::from(error).into_py(py)),
                Some(_) => {}
                None => return Err(PyRuntimeError::new_err("the text has ended already")),
            }
        }
    }

    /// Makes the result of a text that has ended.
    fn finish(&mut self, (text, timing): (Text, Timing)) -> (Option<Delta>, Completion) {
        let (prompt, chat, last) = match &mut self.source {
            Source::Text(_, prompt) => (std::mem::take(prompt), None, None),
            Source::Chat(answer) => {
                let (content, reasoning) = answer.finish();
                let part = ChatPart {
                    message: answer.message(),
                    finish_reason: answer.finish_reason(text.finish),
                    warnings: std::mem::take(&mut answer.warnings),
                };
                let is_more = !content.is_empty() || !reasoning.is_empty();
                let last = is_more.then_some(Delta {
                    text: content,
                    reasoning,
                    tokens: Vec::new(),
                    logprobs: None,
                });
                (std::mem::take(&mut answer.prompt), Some(part), last)
            }
        };
        let finished = Finished {
            text,
            timing,
            prompt,
            has_logprobs: self.has_logprobs,
        };
        (last, Completion::new(finished, chat))
    }

    /// Waits for the whole text.
    pub(crate) fn complete(mut self, py: Python<'_>) -> PyResult<Completion> {
        loop {
            if let Next::End(ended) = self.next(py)? {
                return Ok(self.finish(*ended).1);
            }
        }
    }
}

/// A text while it is generated: an iterator over `Delta`.
///
/// Closing it, leaving its `with` block or dropping it ends the generation. It may be used from any
/// thread, by one at a time.
///
/// Attributes:
///     completion (Completion | None): The whole text, once the iterator has ended by itself.
#[pyclass(frozen, module = "octavo")]
pub(crate) struct Stream {
    state: Mutex<State>,
    /// Process that began it.
    pid: u32,
}

struct State {
    running: Option<Running>,
    completion: Option<Py<Completion>>,
}

impl Stream {
    pub(crate) fn new(running: Running) -> Stream {
        Stream {
            state: Mutex::new(State {
                running: Some(running),
                completion: None,
            }),
            pid: process::id(),
        }
    }

    /// Locks the state; an error if another thread waits for a piece of it, or in a child process.
    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        if self.pid != process::id() {
            return Err(forked(py, self.pid));
        }
        self.state.try_lock().map_err(|_| {
            PyRuntimeError::new_err("another thread waits for this stream's next piece")
        })
    }
}

#[pymethods]
impl Stream {
    fn __iter__(this: Py<Stream>) -> Py<Stream> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Delta>> {
        let mut state = self.state(py)?;
        let Some(running) = &mut state.running else {
            return Ok(None);
        };
        let next = running.next(py);
        match next {
            Ok(Next::More(delta)) => Ok(Some(delta)),
            Ok(Next::End(ended)) => {
                let (last, completion) = running.finish(*ended);
                state.running = None;
                state.completion = Some(Py::new(py, completion)?);
                Ok(last)
            }
            Err(error) => {
                state.running = None;
                Err(error)
            }
        }
    }

    #[getter]
    fn completion(&self, py: Python<'_>) -> PyResult<Option<Py<Completion>>> {
        let state = self.state(py)?;
        Ok(state.completion.as_ref().map(|whole| whole.clone_ref(py)))
    }

    /// Ends the generation. Does nothing if it has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state(py)?.running = None;
        Ok(())
    }

    fn __enter__(this: Py<Stream>) -> Py<Stream> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // a child process has no thread that could answer
        if self.pid != process::id() {
            std::mem::forget(state.running.take());
        }
    }
}
