//! Writes a message, whole or streamed.

use std::sync::Arc;

use octavo_engine::{Event, FinishReason, Text, Timing};
use octavo_text::chat::answer::{AnswerParser, Piece};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::json;
use crate::logging;
use crate::progress::Progress;
use crate::routes::chat::Style;
use crate::routes::converted::AnswerWriter;
use crate::sse::Message;
use crate::wire::{self, timings};

/// A block as it grows.
struct Block {
    kind: Kind,
    /// Text, reasoning, or JSON of a call's input.
    text: String,
}

enum Kind {
    /// Reasoning. Clients hand it back with its signature, which nothing here needs.
    Thinking {
        signature: String,
    },
    Text,
    ToolUse {
        id: String,
        name: String,
    },
}

impl Block {
    /// Returns the block: as it begins, or as it has ended.
    fn to_json(&self, has_ended: bool) -> Value {
        let text = if has_ended { self.text.as_str() } else { "" };
        match &self.kind {
            Kind::Thinking { signature } => {
                let signature = if has_ended { signature.as_str() } else { "" };
                json!({ "type": "thinking", "thinking": text, "signature": signature })
            }
            Kind::Text => json!({ "type": "text", "text": text }),
            Kind::ToolUse { id, name } => {
                json!({ "type": "tool_use", "id": id, "name": name, "input": input(text) })
            }
        }
    }

    /// Returns the piece of a stream for more of the text.
    fn delta(&self, text: &str) -> Value {
        match self.kind {
            Kind::Thinking { .. } => json!({ "type": "thinking_delta", "thinking": text }),
            Kind::Text => json!({ "type": "text_delta", "text": text }),
            Kind::ToolUse { .. } => json!({ "type": "input_json_delta", "partial_json": text }),
        }
    }
}

/// Returns a call's input as an object. JSON that was cut short is in the field `INVALID_JSON`, as
/// Anthropic's documentation advises clients to do.
fn input(text: &str) -> Value {
    match json::parse(text.as_bytes()) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.is_empty() => json!({}),
        _ => json!({ "INVALID_JSON": text }),
    }
}

/// Reason for the end of a message, and the stop sequence that it was.
struct Stop {
    reason: &'static str,
    sequence: Option<String>,
}

/// Writes a message, whole or streamed.
pub(super) struct MessageWriter {
    app: Arc<App>,
    /// Id of the HTTP request, for errors in a stream.
    request_id: Option<String>,
    id: String,
    model: String,
    warnings: Vec<String>,
    /// Stop sequences of the request.
    stops: Vec<String>,
    parser: AnswerParser,
    blocks: Vec<Block>,
    /// Whether the last block may still grow.
    is_open: bool,
    /// White space that is part of a text only if more follows, or if it is all there is.
    space: String,
    has_begun: bool,
    messages: Vec<Message>,
    progress: Progress,
    /// Whether the pieces of a text include timings.
    timings_per_token: bool,
    /// Timings of the message so far, until they are sent.
    timings: Option<Value>,
    stop: Option<Stop>,
    timing: Timing,
}

impl MessageWriter {
    pub(super) fn new(app: Arc<App>, style: &Style, stops: Vec<String>) -> MessageWriter {
        MessageWriter {
            request_id: logging::current_id(),
            id: app.new_id("msg_"),
            app,
            model: style.model.clone(),
            warnings: style.warnings.clone(),
            stops,
            parser: style.parser(),
            blocks: Vec::new(),
            is_open: false,
            space: String::new(),
            has_begun: false,
            messages: Vec::new(),
            progress: style.progress.clone(),
            timings_per_token: style.timings_per_token,
            timings: None,
            stop: None,
            timing: Timing::default(),
        }
    }

    /// Returns the counts of tokens; those of the prompt that were cached are counted apart.
    fn usage(&self) -> Value {
        let cached = self.timing.cached.min(self.timing.prompt_tokens);
        json!({
            "input_tokens": self.timing.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.timing.generated_tokens,
        })
    }

    fn message(&self) -> Value {
        let stop = self.stop.as_ref();
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.blocks.iter().map(|block| block.to_json(true)).collect::<Vec<_>>(),
            "stop_reason": stop.map(|stop| stop.reason),
            "stop_sequence": stop.and_then(|stop| stop.sequence.as_deref()),
            "usage": self.usage(),
        })
    }

    fn tell(&mut self, name: &'static str, data: Value) {
        let mut event = json!({ "type": name });
        if let (Some(event), Value::Object(data)) = (event.as_object_mut(), data) {
            event.extend(data);
        }
        self.messages.push(Message::Named(name, event));
    }

    /// Sends an event about the last block.
    fn tell_of_block(&mut self, name: &'static str, field: &str, value: Value) {
        let mut data = json!({ "index": self.blocks.len() - 1 });
        data[field] = value;
        if name == "content_block_delta"
            && let Some(timings) = self.timings.take()
        {
            data["timings"] = timings;
        }
        self.tell(name, data);
    }

    /// Sends the start of the message, unless already sent.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let message = self.message();
            self.tell("message_start", json!({ "message": message }));
        }
    }

    /// Sends how much of the prompt is computed, if the client wants to know.
    fn report(&mut self, event: &Event) {
        if self.progress.note(event) {
            let data = self.progress.reported_in(json!({}));
            self.tell("ping", data);
        }
    }

    fn open(&mut self, kind: Kind) {
        self.close();
        self.space.clear();
        self.blocks.push(Block {
            kind,
            text: String::new(),
        });
        self.is_open = true;
        let block = self.blocks[self.blocks.len() - 1].to_json(false);
        self.tell_of_block("content_block_start", "content_block", block);
        if self.blocks.len() == 1 {
            self.tell("ping", json!({}));
        }
    }

    fn close(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        if let Kind::Thinking { signature } = &self.blocks[self.blocks.len() - 1].kind {
            let delta = json!({ "type": "signature_delta", "signature": signature });
            self.tell_of_block("content_block_delta", "delta", delta);
        }
        let data = json!({ "index": self.blocks.len() - 1 });
        self.tell("content_block_stop", data);
    }

    fn last_is(&self, is_kind: impl Fn(&Kind) -> bool) -> bool {
        self.is_open && self.blocks.last().is_some_and(|block| is_kind(&block.kind))
    }

    fn grow(&mut self, text: &str) {
        if let Some(block) = self.blocks.last_mut() {
            block.text.push_str(text);
            let delta = block.delta(text);
            self.tell_of_block("content_block_delta", "delta", delta);
        }
    }

    fn add(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.say(&text),
                Piece::Reasoning(text) => {
                    if !self.last_is(|kind| matches!(kind, Kind::Thinking { .. })) {
                        let signature = self.app.new_id("sig_");
                        self.open(Kind::Thinking { signature });
                    }
                    self.grow(&text);
                }
                Piece::CallBegins { name, id, .. } => {
                    let id = id.unwrap_or_else(|| self.app.new_id("toolu_"));
                    self.open(Kind::ToolUse { id, name });
                }
                Piece::CallArguments { text, .. } => self.grow(&text),
            }
        }
    }

    /// Adds to the text. White space alone, as between calls, is no block.
    fn say(&mut self, text: &str) {
        if self.last_is(|kind| matches!(kind, Kind::Text)) {
            return self.grow(text);
        }
        if text.trim().is_empty() {
            return self.space.push_str(text);
        }
        let text = format!("{}{text}", self.space);
        self.open(Kind::Text);
        self.grow(&text);
    }

    /// Returns why a text has ended.
    fn stopped(&self, text: &Text) -> Stop {
        let sequence = text.stopped_by.and_then(|at| self.stops.get(at)).cloned();
        let is_call = |block: &Block| matches!(block.kind, Kind::ToolUse { .. });
        let reason = match text.finish {
            FinishReason::Length => "max_tokens",
            FinishReason::ContextFull => "model_context_window_exceeded",
            FinishReason::Stop | FinishReason::Cancelled if sequence.is_some() => "stop_sequence",
            FinishReason::Stop | FinishReason::Cancelled if self.blocks.iter().any(is_call) => {
                "tool_use"
            }
            FinishReason::Stop | FinishReason::Cancelled => "end_turn",
        };
        Stop { reason, sequence }
    }

    fn end(&mut self, text: &Text) {
        let space = std::mem::take(&mut self.space);
        if self.blocks.is_empty() && !space.is_empty() {
            self.open(Kind::Text);
            self.grow(&space);
        }
        self.close();
        let stop = self.stopped(text);
        let mut data = json!({
            "delta": { "stop_reason": stop.reason, "stop_sequence": stop.sequence },
            "usage": self.usage(),
            "timings": timings(&self.timing),
        });
        self.stop = Some(stop);
        wire::warn(&mut data, &self.warnings);
        self.tell("message_delta", data);
        self.tell("message_stop", json!({}));
    }
}

impl AnswerWriter for MessageWriter {
    fn take(&mut self, event: Event) {
        match event {
            Event::Started { prompt, cached } => {
                self.timing.prompt_tokens = prompt;
                self.timing.cached = cached;
                self.begin();
                self.report(&event);
            }
            Event::Read { .. } => self.report(&event),
            Event::Delta { delta, timing, .. } => {
                self.begin();
                self.timings = self.timings_per_token.then(|| timings(&timing));
                let pieces = self.parser.push(&delta.text);
                self.add(pieces);
            }
            Event::Finished { text, timing, .. } => {
                self.begin();
                let pieces = self.parser.finish();
                self.add(pieces);
                self.timing = timing;
                self.end(&text);
            }
            Event::Failed(error) => {
                let error = ApiError::from(error).to_anthropic(self.request_id.as_deref());
                self.messages.push(Message::Named("error", error));
            }
            Event::Prompt(_) | Event::Beams { .. } | Event::Embedded { .. } => {}
        }
    }

    fn drain(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    fn whole(&self) -> Value {
        let mut message = self.message();
        message["timings"] = timings(&self.timing);
        wire::warn(&mut message, &self.warnings);
        message
    }
}
