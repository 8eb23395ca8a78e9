//! Writes an answer, whole or streamed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use octavo_engine::{Event, FinishReason, Timing};
use octavo_text::chat::answer::{AnswerParser, Piece};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::json;
use crate::routes::chat::Style;
use crate::routes::converted::{AnswerWriter, Framing};
use crate::sse::Message;
use crate::wire;

/// Form of an answer: what it has where the text goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A message.
    Chat,
    /// A text in `response`.
    Generate,
}

/// A tool call as it grows.
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// Content of a piece of a stream, or of the whole answer.
#[derive(Default)]
struct Content {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Content {
    fn is_empty(&self) -> bool {
        let Content {
            text,
            thinking,
            calls,
            logprobs,
        } = self;
        text.is_empty() && thinking.is_empty() && calls.is_empty() && logprobs.is_empty()
    }

    fn append(&mut self, more: Content) {
        self.text.push_str(&more.text);
        self.thinking.push_str(&more.thinking);
        self.calls.extend(more.calls);
        self.logprobs.extend(more.logprobs);
    }
}

/// Writes an answer, whole or streamed.
pub(super) struct OllamaWriter {
    app: Arc<App>,
    form: Form,
    model: String,
    warnings: Vec<String>,
    parser: Option<AnswerParser>,
    /// A call whose arguments are not complete yet.
    call: Option<Call>,
    n_calls: usize,
    /// Content that is not sent yet.
    due: Content,
    /// Content that is sent.
    sent: Content,
    messages: Vec<Message>,
    finish: FinishReason,
    timing: Timing,
}

impl OllamaWriter {
    /// Writes the answer of a chat.
    pub(super) fn of_chat(
        app: &Arc<App>,
        form: Form,
        model: String,
        style: &Style,
    ) -> OllamaWriter {
        OllamaWriter {
            parser: Some(style.parser()),
            ..OllamaWriter::of_text(app, form, model, style.warnings.clone())
        }
    }

    /// Writes a text as the model wrote it.
    pub(super) fn of_text(
        app: &Arc<App>,
        form: Form,
        model: String,
        warnings: Vec<String>,
    ) -> OllamaWriter {
        OllamaWriter {
            app: Arc::clone(app),
            form,
            model,
            warnings,
            parser: None,
            call: None,
            n_calls: 0,
            due: Content::default(),
            sent: Content::default(),
            messages: Vec::new(),
            finish: FinishReason::Stop,
            timing: Timing::default(),
        }
    }

    /// Adds warnings for the client.
    pub(super) fn warn(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.due.text.push_str(&text),
                Piece::Reasoning(text) => self.due.thinking.push_str(&text),
                Piece::CallBegins { name, id, .. } => {
                    self.end_call();
                    self.call = Some(Call {
                        id: id.unwrap_or_else(|| self.app.new_id("call_")),
                        name,
                        arguments: String::new(),
                    });
                }
                Piece::CallArguments { text, .. } => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// Adds the call that has become complete.
    fn end_call(&mut self) {
        if let Some(call) = self.call.take() {
            // arguments that were cut short are no object
            let arguments = json::parse(call.arguments.as_bytes()).ok();
            let arguments = arguments.filter(Value::is_object).unwrap_or(json!({}));
            self.due.calls.push(json!({
                "id": call.id,
                "function": {
                    "index": self.n_calls, "name": call.name, "arguments": arguments,
                },
            }));
            self.n_calls += 1;
        }
    }

    /// Sends the content that is due.
    fn send(&mut self) {
        if !self.due.is_empty() {
            let due = std::mem::take(&mut self.due);
            self.messages.push(Message::Data(self.piece(&due, false)));
            self.sent.append(due);
        }
    }

    /// Returns an object with some content.
    fn piece(&self, content: &Content, done: bool) -> Value {
        let mut object = object(self.form, &self.model, &content.text, done);
        let of_text = match self.form {
            Form::Chat => &mut object["message"],
            Form::Generate => &mut object,
        };
        if !content.thinking.is_empty() {
            of_text["thinking"] = json!(content.thinking);
        }
        if !content.calls.is_empty() {
            of_text["tool_calls"] = json!(content.calls);
        }
        if !content.logprobs.is_empty() {
            object["logprobs"] = json!(content.logprobs);
        }
        object
    }

    /// Returns the object at the end of an answer.
    fn last(&self, content: &Content) -> Value {
        let mut object = self.piece(content, true);
        let Timing {
            prompt, generation, ..
        } = self.timing;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        object["done_reason"] = json!(wire::finish_reason(self.finish));
        object["total_duration"] = json!(nanoseconds(self.timing.queued + prompt + generation));
        object["load_duration"] = json!(0);
        object["prompt_eval_count"] = json!(self.timing.prompt_tokens);
        object["prompt_eval_duration"] = json!(nanoseconds(prompt));
        object["eval_count"] = json!(self.timing.generated_tokens);
        object["eval_duration"] = json!(nanoseconds(generation));
        wire::warn(&mut object, &self.warnings);
        object
    }
}

impl AnswerWriter for OllamaWriter {
    const FRAMING: Framing = Framing::Lines;

    fn take(&mut self, event: Event) {
        match event {
            Event::Delta { delta, .. } => {
                let pieces = match &mut self.parser {
                    Some(parser) => parser.push(&delta.text),
                    None => vec![Piece::Content(delta.text)],
                };
                self.add(pieces);
                let logprobs = wire::chat_logprobs(self.app.tokenizer(), &delta.logprobs);
                if let Some(tokens) = logprobs["content"].as_array() {
                    self.due.logprobs.extend_from_slice(tokens);
                }
                self.send();
            }
            Event::Finished { text, timing, .. } => {
                let pieces = self.parser.as_mut().map(AnswerParser::finish);
                self.add(pieces.unwrap_or_default());
                self.end_call();
                self.send();
                self.finish = text.finish;
                self.timing = timing;
                self.messages
                    .push(Message::Data(self.last(&Content::default())));
            }
            Event::Failed(error) => {
                let error = ApiError::from(error).to_ollama();
                self.messages.push(Message::Data(error));
            }
            Event::Started { .. }
            | Event::Read { .. }
            | Event::Prompt(_)
            | Event::Beams { .. }
            | Event::Embedded { .. } => {}
        }
    }

    fn drain(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    fn whole(&self) -> Value {
        self.last(&self.sent)
    }
}

/// Returns an object with a text.
fn object(form: Form, model: &str, text: &str, done: bool) -> Value {
    let now = humantime::format_rfc3339_nanos(SystemTime::now());
    let mut object = json!({ "model": model, "created_at": now.to_string(), "done": done });
    match form {
        Form::Chat => object["message"] = json!({ "role": "assistant", "content": text }),
        Form::Generate => object["response"] = json!(text),
    }
    object
}

/// Returns the answer to a request that only loads the model.
pub(super) fn loaded(form: Form, model: &str, is_unloaded: bool) -> Value {
    let mut object = object(form, model, "", true);
    object["done_reason"] = json!(if is_unloaded { "unload" } else { "load" });
    object
}
