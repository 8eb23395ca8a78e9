//! Interfaces whose requests are converted to chat requests, and whose answers are written from the
//! engine's events: what they share.

mod names;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use octavo_engine::{Event, Request};
use serde_json::{Map, Value};

use super::chat::{self, Prepared, Ready};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::json_response;
use crate::params;
pub(crate) use crate::sse::Framing;
use crate::sse::{self, Message, Writer};
use crate::work::{Update, Work};
pub(crate) use names::{Item, Names, Renames};

/// Fields that every interface has under the name and with the meaning of a chat request's, beside
/// those of sampling.
const SHARED: [&str; 8] = [
    "model",
    "stream",
    "chat_template_kwargs",
    "enable_thinking",
    "continue_final_message",
    "cache_salt",
    "timings_per_token",
    "return_progress",
];

/// Begins a chat request with the fields that are the same in all interfaces, and with some that
/// are so in this one.
pub(crate) fn copied(fields: &Fields<'_>, own: &[&'static str]) -> Map<String, Value> {
    let names = SHARED.iter().chain(own).copied().chain(params::names());
    let given = names.filter_map(|name| Some((name.to_owned(), fields.get(name)?.clone())));
    given.collect()
}

/// Reads a converted request, and compiles the constraint on its answer. Errors have the names of
/// its own fields.
pub(crate) async fn ready(
    app: &Arc<App>,
    caller: Caller,
    (chat, names): (Value, Names),
) -> Result<Ready, ApiError> {
    let ready = chat::ready(app, caller, chat).await;
    ready.map_err(|error| error.renamed(|name| names.of(name)))
}

/// Reads a converted request. Errors have the names of its own fields.
pub(crate) async fn read(
    app: &Arc<App>,
    caller: Caller,
    (chat, names): (Value, Names),
) -> Result<Prepared, ApiError> {
    let read = chat::read(app, caller, chat).await;
    read.map_err(|error| error.renamed(|name| names.of(name)))
}

/// Writes an answer from the events of its request.
pub(crate) trait AnswerWriter: Send + 'static {
    /// Form of a streamed answer.
    const FRAMING: Framing = Framing::Events;

    /// Takes the next event.
    fn take(&mut self, event: Event);

    /// Returns the messages of a stream that are due.
    fn drain(&mut self) -> Vec<Message>;

    /// Returns the whole answer, after its last event.
    fn whole(&self) -> Value;
}

/// Runs a request and answers whole, or as a stream.
pub(crate) async fn answer<W: AnswerWriter>(
    app: &Arc<App>,
    request: Request,
    stream: bool,
    mut writer: W,
) -> Result<Response<Body>, ApiError> {
    let mut work = Work::begin(app, vec![request])?;
    if stream {
        work.has_begun().await?;
        let streamed = Streamed {
            writer,
            work,
            has_ended: false,
        };
        return Ok(sse::framed(streamed, W::FRAMING));
    }
    while let Some(Update { event, .. }) = work.next().await {
        if let Event::Failed(error) = event {
            return Err(error.into());
        }
        writer.take(event);
    }
    Ok(json_response(&writer.whole()))
}

/// A streamed answer.
struct Streamed<W> {
    writer: W,
    work: Work,
    has_ended: bool,
}

impl<W: AnswerWriter> Writer for Streamed<W> {
    async fn next(&mut self) -> Option<Vec<Message>> {
        let due = self.writer.drain();
        if !due.is_empty() {
            return Some(due);
        }
        if self.has_ended {
            return None;
        }
        match self.work.next().await {
            None => self.has_ended = true,
            Some(Update { event, .. }) => {
                self.has_ended = matches!(event, Event::Failed(_));
                self.writer.take(event);
            }
        }
        Some(self.writer.drain())
    }
}
