//! Generated texts as Python objects.

use octavo_llm::engine::sample::Logprobs;
use octavo_llm::engine::{FinishReason, Text, Timing};
use pyo3::prelude::*;
use serde_json::Value;

use crate::json;

/// Log-probability of a token, and those of the most likely ones.
///
/// Attributes:
///     id (int): The token.
///     logprob (float): Its natural log-probability over the whole vocabulary.
///     top (list[tuple[int, float]]): The most likely tokens with theirs, best first.
#[pyclass(frozen, get_all, skip_from_py_object, module = "octavo")]
#[derive(Clone)]
pub(crate) struct Logprob {
    id: u32,
    logprob: f64,
    top: Vec<(u32, f64)>,
}

impl From<Logprobs> for Logprob {
    fn from(token: Logprobs) -> Logprob {
        Logprob {
            id: token.id,
            logprob: token.logprob,
            top: token.top,
        }
    }
}

#[pymethods]
impl Logprob {
    fn __repr__(&self) -> String {
        format!("Logprob(id={}, logprob={})", self.id, self.logprob)
    }
}

/// Counts and times of a text, in tokens and seconds.
///
/// Attributes:
///     prompt_tokens (int): Tokens of the prompt.
///     cached_tokens (int): Tokens of the prompt that came from the cache.
///     generated_tokens (int): Tokens generated.
///     draft_tokens (int): Tokens drafted by speculative decoding.
///     accepted_tokens (int): Drafted tokens that were accepted.
///     queued (float): Seconds until the prefill began.
///     prefill (float): Seconds of the prefill.
///     first_token (float | None): Seconds until the first token was chosen.
///     decode (float): Seconds from the first token to the last.
///     total (float): Seconds from the call to the end of the text.
///     prefill_rate (float | None): Prompt tokens computed per second.
///     decode_rate (float | None): Tokens per second after the first.
#[pyclass(frozen, get_all, skip_from_py_object, module = "octavo")]
#[derive(Clone)]
pub(crate) struct Timings {
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    draft_tokens: usize,
    accepted_tokens: usize,
    queued: f64,
    prefill: f64,
    first_token: Option<f64>,
    decode: f64,
    total: f64,
    prefill_rate: Option<f64>,
    decode_rate: Option<f64>,
}

impl From<&Timing> for Timings {
    fn from(timing: &Timing) -> Timings {
        Timings {
            prompt_tokens: timing.prompt_tokens,
            cached_tokens: timing.cached,
            generated_tokens: timing.generated_tokens,
            draft_tokens: timing.drafts.drafted,
            accepted_tokens: timing.drafts.accepted,
            queued: timing.queued.as_secs_f64(),
            prefill: timing.prompt.as_secs_f64(),
            first_token: timing.first_token.map(|time| time.as_secs_f64()),
            decode: timing.generation.as_secs_f64(),
            total: timing.total.as_secs_f64(),
            prefill_rate: timing.prompt_rate(),
            decode_rate: timing.generation_rate(),
        }
    }
}

#[pymethods]
impl Timings {
    fn __repr__(&self) -> String {
        format!(
            "Timings(prompt_tokens={}, generated_tokens={}, total={:.3})",
            self.prompt_tokens, self.generated_tokens, self.total
        )
    }
}

/// A piece of a text while it is generated.
///
/// Attributes:
///     text (str): More of the text: never half a character, never part of a stop string.
///     reasoning (str): More of a chat answer's reasoning.
///     tokens (list[int]): The tokens chosen; their text may follow later.
///     logprobs (list[Logprob] | None): One for each token, if asked for.
#[pyclass(frozen, get_all, module = "octavo")]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Option<Vec<Logprob>>,
}

#[pymethods]
impl Delta {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("Delta(text={:?}, tokens={:?})", self.text, self.tokens)
    }
}

/// A generated text.
///
/// Attributes:
///     text (str): The text; of a chat answer, its content.
///     tokens (list[int]): All generated tokens, including one that ended the text.
///     prompt_tokens (list[int]): Tokens of the prompt.
///     logprobs (list[Logprob] | None): One for each token, if asked for.
///     timings (Timings): Counts and times.
///     finish_reason (str): "stop", "length", "tool_calls" or "cancelled".
///     finish_detail (str | None): Which limit a "length" is: "max_tokens" or "context_full".
///     message (dict | None): A chat answer as a message of OpenAI's API, with `content`,
///         `reasoning_content` and `tool_calls`: append it to the messages to go on.
///     warnings (list[str]): Parts of the request that have no effect.
#[pyclass(frozen, module = "octavo")]
pub(crate) struct Completion {
    #[pyo3(get)]
    text: String,
    #[pyo3(get)]
    tokens: Vec<u32>,
    #[pyo3(get)]
    prompt_tokens: Vec<u32>,
    #[pyo3(get)]
    logprobs: Option<Vec<Logprob>>,
    #[pyo3(get)]
    timings: Timings,
    #[pyo3(get)]
    finish_reason: &'static str,
    #[pyo3(get)]
    finish_detail: Option<&'static str>,
    #[pyo3(get)]
    warnings: Vec<String>,
    message: Option<Value>,
}

/// A finished text with all that its object needs.
pub(crate) struct Finished {
    pub(crate) text: Text,
    pub(crate) timing: Timing,
    pub(crate) prompt: Vec<u32>,
    pub(crate) has_logprobs: bool,
}

/// Message of a chat answer, and what else only it has.
pub(crate) struct ChatPart {
    pub(crate) message: Value,
    pub(crate) finish_reason: &'static str,
    pub(crate) warnings: Vec<String>,
}

impl Completion {
    pub(crate) fn new(finished: Finished, chat: Option<ChatPart>) -> Completion {
        let Finished {
            text,
            timing,
            prompt,
            has_logprobs,
        } = finished;
        let finish: FinishReason = text.finish;
        let content = chat.as_ref().map(|chat| {
            let content = chat.message["content"].as_str();
            content.unwrap_or_default().to_owned()
        });
        let chat_reason = chat.as_ref().map(|chat| chat.finish_reason);
        let (message, warnings) = match chat {
            Some(chat) => (Some(chat.message), chat.warnings),
            None => (None, Vec::new()),
        };
        Completion {
            text: match content {
                Some(content) => content,
                None => text.text,
            },
            tokens: text.tokens,
            prompt_tokens: prompt,
            logprobs: has_logprobs.then(|| text.logprobs.into_iter().map(Logprob::from).collect()),
            timings: Timings::from(&timing),
            finish_reason: chat_reason.unwrap_or(finish.name()),
            finish_detail: finish.detail(),
            warnings,
            message,
        }
    }
}

#[pymethods]
impl Completion {
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let message = self.message.as_ref();
        message.map(|value| json::to_python(py, value)).transpose()
    }

    /// Tool calls of a chat answer, as OpenAI's API has them.
    #[getter]
    fn tool_calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let calls = self
            .message
            .as_ref()
            .and_then(|message| message.get("tool_calls"));
        json::to_python(py, calls.unwrap_or(&Value::Array(Vec::new())))
    }

    /// Reasoning of a chat answer; empty if there is none.
    #[getter]
    fn reasoning(&self) -> &str {
        let message = self.message.as_ref();
        let reasoning = message.and_then(|message| message["reasoning_content"].as_str());
        reasoning.unwrap_or_default()
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!(
            "Completion(text={:?}, tokens={}, finish_reason={:?})",
            self.text,
            self.tokens.len(),
            self.finish_reason
        )
    }
}
