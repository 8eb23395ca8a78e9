//! Writes a response of the newer API, whole or streamed.

use std::sync::Arc;

use octavo_engine::Event;
use octavo_engine::FinishReason;
use octavo_text::chat::answer::{AnswerParser, Piece};
use serde_json::{Value, json};

use super::EchoedFields;
use super::custom::InputReader;
use crate::app::App;
use crate::error::ApiError;
use crate::progress::Progress;
use crate::routes::chat::Style;
use crate::routes::converted::AnswerWriter;
use crate::server::now;
use crate::sse::Message;
use crate::stored::{EventLog, Stored};
use crate::wire::timings;

/// An output item as it grows.
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

enum Kind {
    Reasoning,
    Text,
    Call {
        call_id: String,
        name: String,
    },
    /// A call of a custom tool; its input is read from the arguments.
    Custom {
        call_id: String,
        name: String,
        reader: InputReader,
    },
}

impl Item {
    fn to_json(&self, is_done: bool) -> Value {
        let status = if is_done { "completed" } else { "in_progress" };
        let text = if is_done { self.text.as_str() } else { "" };
        match &self.kind {
            Kind::Reasoning => json!({
                "id": self.id,
                "type": "reasoning",
                "summary": [],
                "content": [{ "type": "reasoning_text", "text": text }],
                "status": status,
            }),
            Kind::Text => {
                let parts = if is_done {
                    json!([part(text)])
                } else {
                    json!([])
                };
                json!({
                    "id": self.id,
                    "type": "message",
                    "role": "assistant",
                    "status": status,
                    "content": parts,
                })
            }
            Kind::Call { call_id, name } => json!({
                "id": self.id,
                "type": "function_call",
                "call_id": call_id,
                "name": name,
                "arguments": text,
                "status": status,
            }),
            Kind::Custom { call_id, name, .. } => json!({
                "id": self.id,
                "type": "custom_tool_call",
                "call_id": call_id,
                "name": name,
                "input": text,
                "status": status,
            }),
        }
    }
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// Writes a response, whole or streamed.
pub(super) struct ResponseWriter {
    app: Arc<App>,
    id: String,
    model: String,
    echoed: EchoedFields,
    /// The conversation, if the response is to be stored.
    kept: Option<Stored>,
    warnings: Vec<String>,
    created: u64,
    parser: AnswerParser,
    items: Vec<Item>,
    /// Whether the last item may still grow.
    is_open: bool,
    sequence: u64,
    messages: Vec<Message>,
    usage: Value,
    progress: Progress,
    /// Whether the pieces of a text include timings.
    timings_per_token: bool,
    /// Timings of the answer so far, until they are sent.
    timings: Option<Value>,
    finish: Option<FinishReason>,
    /// Error that ended the response.
    error: Value,
}

impl ResponseWriter {
    pub(super) fn new(
        app: Arc<App>,
        style: &Style,
        echoed: EchoedFields,
        kept: Option<Stored>,
    ) -> ResponseWriter {
        let mut writer = ResponseWriter {
            id: app.new_id("resp_"),
            model: style.model.clone(),
            echoed,
            kept,
            warnings: style.warnings.clone(),
            app,
            created: now(),
            parser: style.parser(),
            items: Vec::new(),
            is_open: false,
            sequence: 0,
            messages: Vec::new(),
            usage: Value::Null,
            progress: style.progress.clone(),
            timings_per_token: style.timings_per_token,
            timings: None,
            finish: None,
            error: Value::Null,
        };
        for name in ["response.created", "response.in_progress"] {
            let response = writer.response("in_progress");
            writer.tell(name, json!({ "response": response }));
        }
        writer
    }

    fn status(&self) -> &'static str {
        match self.finish {
            _ if !self.error.is_null() => "failed",
            Some(FinishReason::Length | FinishReason::ContextFull) => "incomplete",
            _ => "completed",
        }
    }

    fn response(&self, status: &str) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": self.error,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": self.items.iter().map(|item| item.to_json(true)).collect::<Vec<_>>(),
            "parallel_tool_calls": self.echoed.parallel_tool_calls,
            "tool_choice": self.echoed.tool_choice,
            "tools": self.echoed.tools,
            "metadata": self.echoed.metadata,
            "previous_response_id": self.echoed.previous_response_id,
            "instructions": self.echoed.instructions,
            "store": self.echoed.store,
            "background": self.echoed.background,
            "usage": self.usage,
        });
        crate::wire::warn(&mut object, &self.warnings);
        object
    }

    /// Stores the response, if the client wants that.
    fn keep(&mut self, response: &Value) {
        if let Some(kept) = self.kept.take() {
            self.app
                .server
                .responses
                .insert(&self.id, kept.with(response));
        }
    }

    /// Stores the response as one that runs in the background, with its events if it is streamed;
    /// returns its id and itself.
    pub(super) fn begin_in_background(&mut self, events: Option<Arc<EventLog>>) -> (String, Value) {
        let response = self.response("in_progress");
        if let Some(kept) = &self.kept {
            let stored = kept.clone().streamed(events).with(&response);
            self.app.server.responses.insert(&self.id, stored);
        }
        // events end with the work, which stores the response itself
        self.kept = None;
        (self.id.clone(), response)
    }

    fn tell(&mut self, name: &'static str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.messages.push(Message::Named(name, data));
    }

    /// Sends an event about the last item.
    fn tell_of_item(&mut self, name: &'static str, mut data: Value) {
        let at = self.items.len() - 1;
        data["item_id"] = json!(self.items[at].id);
        data["output_index"] = json!(at);
        self.tell(name, data);
    }

    fn open(&mut self, kind: Kind) {
        self.close();
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Text => "msg_",
            Kind::Call { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        let is_text = matches!(kind, Kind::Text);
        self.items.push(Item {
            id: self.app.new_id(prefix),
            kind,
            text: String::new(),
        });
        self.is_open = true;
        let at = self.items.len() - 1;
        let item = self.items[at].to_json(false);
        self.tell(
            "response.output_item.added",
            json!({ "output_index": at, "item": item }),
        );
        if is_text {
            let data = json!({ "content_index": 0, "part": part("") });
            self.tell_of_item("response.content_part.added", data);
        }
    }

    fn close(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let at = self.items.len() - 1;
        let text = self.items[at].text.clone();
        match self.items[at].kind {
            Kind::Text => {
                let data = json!({ "content_index": 0, "text": text, "logprobs": [] });
                self.tell_of_item("response.output_text.done", data);
                let data = json!({ "content_index": 0, "part": part(&text) });
                self.tell_of_item("response.content_part.done", data);
            }
            Kind::Reasoning => {
                let data = json!({ "content_index": 0, "text": text });
                self.tell_of_item("response.reasoning_text.done", data);
            }
            Kind::Call { .. } => {
                let data = json!({ "arguments": text });
                self.tell_of_item("response.function_call_arguments.done", data);
            }
            Kind::Custom { .. } => {
                let data = json!({ "input": text });
                self.tell_of_item("response.custom_tool_call_input.done", data);
            }
        }
        let item = self.items[at].to_json(true);
        self.tell(
            "response.output_item.done",
            json!({ "output_index": at, "item": item }),
        );
    }

    fn last_is(&self, is_kind: impl Fn(&Kind) -> bool) -> bool {
        self.is_open && self.items.last().is_some_and(|item| is_kind(&item.kind))
    }

    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => {
                    // white space between calls is not a message
                    let is_text = self.last_is(|kind| matches!(kind, Kind::Text));
                    if !is_text && text.trim().is_empty() && !self.items.is_empty() {
                        continue;
                    }
                    if !is_text {
                        self.open(Kind::Text);
                    }
                    self.grow("response.output_text.delta", text);
                }
                Piece::Reasoning(text) => {
                    if !self.last_is(|kind| matches!(kind, Kind::Reasoning)) {
                        self.open(Kind::Reasoning);
                    }
                    self.grow("response.reasoning_text.delta", text);
                }
                Piece::CallBegins { name, id, .. } => {
                    let call_id = id.unwrap_or_else(|| self.app.new_id("call_"));
                    let is_custom = self.echoed.has_custom_tool(&name);
                    self.open(match is_custom {
                        false => Kind::Call { call_id, name },
                        true => Kind::Custom {
                            call_id,
                            name,
                            reader: InputReader::default(),
                        },
                    });
                }
                Piece::CallArguments { text, .. } => self.call(text),
            }
        }
    }

    /// Adds to the arguments of the last item, which is a call.
    fn call(&mut self, text: String) {
        match self.items.last_mut().map(|item| &mut item.kind) {
            Some(Kind::Custom { reader, .. }) => {
                let input = reader.push(&text);
                if !input.is_empty() {
                    self.grow("response.custom_tool_call_input.delta", input);
                }
            }
            _ => self.grow("response.function_call_arguments.delta", text),
        }
    }

    fn grow(&mut self, name: &'static str, text: String) {
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(&text);
            let mut data = json!({ "content_index": 0, "delta": text });
            if matches!(item.kind, Kind::Text) {
                data["logprobs"] = json!([]);
            }
            if let Some(timings) = self.timings.take() {
                data["timings"] = timings;
            }
            self.tell_of_item(name, data);
        }
    }
}

impl AnswerWriter for ResponseWriter {
    fn take(&mut self, event: Event) {
        match event {
            Event::Delta { delta, timing, .. } => {
                self.timings = self.timings_per_token.then(|| timings(&timing));
                let pieces = self.parser.push(&delta.text);
                self.add(pieces);
            }
            Event::Finished { text, timing, .. } => {
                let pieces = self.parser.finish();
                self.add(pieces);
                self.close();
                self.finish = Some(text.finish);
                self.usage = json!({
                    "input_tokens": timing.prompt_tokens,
                    "input_tokens_details": { "cached_tokens": timing.cached },
                    "output_tokens": timing.generated_tokens,
                    "output_tokens_details": { "reasoning_tokens": 0 },
                    "total_tokens": timing.prompt_tokens + timing.generated_tokens,
                });
                let status = self.status();
                let name = match status {
                    "incomplete" => "response.incomplete",
                    _ => "response.completed",
                };
                let response = self.response(status);
                self.keep(&response);
                let timings = timings(&timing);
                self.tell(name, json!({ "response": response, "timings": timings }));
            }
            Event::Failed(error) => {
                self.error = ApiError::from(error).to_json()["error"].take();
                let response = self.response(self.status());
                self.keep(&response);
                self.tell("response.failed", json!({ "response": response }));
            }
            Event::Started { .. } | Event::Read { .. } => {
                if self.progress.note(&event) {
                    let data = json!({ "response": self.response("in_progress") });
                    self.tell("response.in_progress", self.progress.reported_in(data));
                }
            }
            Event::Prompt(_) | Event::Beams { .. } | Event::Embedded { .. } => {}
        }
    }

    fn drain(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    fn whole(&self) -> Value {
        self.response(self.status())
    }
}
