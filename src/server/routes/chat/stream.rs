//! Streams the assistant's message piece by piece.

use std::sync::Arc;

use octavo_engine::FinishReason;
use octavo_engine::{Event, Timing};
use octavo_text::chat::answer::{AnswerParser, Piece};
use serde_json::{Value, json};

use super::{Head, Style, finish_reason};
use crate::app::App;
use crate::error::ApiError;
use crate::progress::Progress;
use crate::sse::{Message, Writer};
use crate::wire::{self, Usage};
use crate::work::{Update, Work};

/// Writes a streamed answer.
pub(super) struct ChatWriter {
    app: Arc<App>,
    work: Work,
    head: Head,
    style: Style,
    choices: Vec<ChoiceWriter>,
    usage: Usage,
    timings: Value,
    progress: Progress,
    has_ended: bool,
}

struct ChoiceWriter {
    parser: AnswerParser,
    has_begun: bool,
    has_called: bool,
}

impl ChatWriter {
    pub(super) fn new(app: Arc<App>, work: Work, head: Head, style: Style) -> ChatWriter {
        let choice = || ChoiceWriter {
            parser: style.parser(),
            has_begun: false,
            has_called: false,
        };
        ChatWriter {
            choices: (0..style.n).map(|_| choice()).collect(),
            app,
            work,
            head,
            progress: style.progress.clone(),
            style,
            usage: Usage::default(),
            timings: Value::Null,
            has_ended: false,
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.style.model,
            "system_fingerprint": crate::FINGERPRINT,
            "choices": choices,
        });
        if self.style.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: Value) -> Value {
        self.chunk(json!([{ "index": index, "delta": delta, "finish_reason": null }]))
    }

    /// Sends the first piece of a text, unless already sent.
    fn begin(&mut self, index: usize, messages: &mut Vec<Message>) {
        if !std::mem::replace(&mut self.choices[index].has_begun, true) {
            let delta = json!({ "role": "assistant", "content": null });
            messages.push(Message::Data(self.delta(index, delta)));
        }
    }

    /// Sends the first piece of the answer, and how much of the prompt is computed.
    fn progress(&mut self, event: &Event, messages: &mut Vec<Message>) {
        self.begin(0, messages);
        if self.progress.note(event) {
            let piece = self.progress.reported_in(self.delta(0, json!({})));
            messages.push(Message::Data(piece));
        }
    }

    fn pieces(&mut self, index: usize, pieces: Vec<Piece>) -> Vec<Value> {
        let mut deltas = Vec::new();
        for piece in pieces {
            deltas.push(match piece {
                Piece::Content(text) => json!({ "content": text }),
                Piece::Reasoning(text) => json!({ "reasoning_content": text }),
                Piece::CallBegins {
                    index: call,
                    name,
                    id,
                } => {
                    self.choices[index].has_called = true;
                    json!({ "tool_calls": [{
                        "index": call,
                        "id": id.unwrap_or_else(|| self.app.new_id("call_")),
                        "type": "function",
                        "function": { "name": name, "arguments": "" },
                    }] })
                }
                Piece::CallArguments { index: call, text } => {
                    json!({ "tool_calls": [{
                        "index": call,
                        "function": { "arguments": text },
                    }] })
                }
            });
        }
        deltas
    }

    fn grow(
        &mut self,
        index: usize,
        delta: &octavo_engine::Delta,
        timing: &Timing,
        messages: &mut Vec<Message>,
    ) {
        self.begin(index, messages);
        let pieces = self.choices[index].parser.push(&delta.text);
        let mut deltas = self.pieces(index, pieces);
        let has_more = self.style.logprobs || self.style.return_token_ids;
        if deltas.is_empty() && has_more && !delta.tokens.is_empty() {
            deltas.push(json!({ "content": "" }));
        }
        for (i, value) in deltas.into_iter().enumerate() {
            let mut chunk = self.delta(index, value);
            // log-probabilities of the tokens go with the first piece
            if i == 0 && self.style.logprobs {
                let logprobs = wire::chat_logprobs(self.app.tokenizer(), &delta.logprobs);
                chunk["choices"][0]["logprobs"] = logprobs;
            }
            if i == 0 && self.style.return_token_ids {
                chunk["choices"][0]["token_ids"] = json!(delta.tokens);
            }
            if i == 0 && self.style.timings_per_token {
                chunk["timings"] = wire::timings(timing);
            }
            messages.push(Message::Data(chunk));
        }
    }

    fn end(
        &mut self,
        index: usize,
        finish: FinishReason,
        timing: &Timing,
        messages: &mut Vec<Message>,
    ) {
        self.begin(index, messages);
        let pieces = self.choices[index].parser.finish();
        for value in self.pieces(index, pieces) {
            messages.push(Message::Data(self.delta(index, value)));
        }
        self.usage.prompt = timing.prompt_tokens;
        self.usage.completion += timing.generated_tokens;
        if index == 0 {
            self.usage.cached = timing.cached;
            self.timings = wire::timings(timing);
        }
        let reason = finish_reason(finish, self.choices[index].has_called);
        let mut chunk = self.chunk(json!([{
            "index": index,
            "delta": {},
            "finish_reason": reason,
        }]));
        chunk["timings"] = wire::timings(timing);
        wire::warn(&mut chunk, &self.style.warnings);
        messages.push(Message::Data(chunk));
    }
}

impl Writer for ChatWriter {
    async fn next(&mut self) -> Option<Vec<Message>> {
        if self.has_ended {
            return None;
        }
        let mut messages = Vec::new();
        match self.work.next().await {
            None => {
                self.has_ended = true;
                if self.style.include_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = self.usage.to_json();
                    chunk["timings"] = self.timings.take();
                    messages.push(Message::Data(chunk));
                }
                messages.push(Message::Done);
            }
            Some(Update { event, .. }) => match event {
                Event::Started { .. } | Event::Read { .. } => self.progress(&event, &mut messages),
                Event::Delta {
                    choice,
                    delta,
                    timing,
                } => self.grow(choice, &delta, &timing, &mut messages),
                Event::Finished {
                    choice,
                    text,
                    timing,
                } => self.end(choice, text.finish, &timing, &mut messages),
                Event::Failed(error) => {
                    self.has_ended = true;
                    messages.push(Message::Data(ApiError::from(error).to_json()));
                }
                Event::Prompt(_) | Event::Beams { .. } | Event::Embedded { .. } => {}
            },
        }
        Some(messages)
    }
}
