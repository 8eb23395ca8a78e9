//! Streamed answers: server-sent events, or lines of JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Response, header};
use futures_util::stream::unfold;
use serde_json::Value;

/// Longest silence before a comment is sent, so that no proxy drops the connection.
const SILENCE: Duration = Duration::from_secs(15);

/// Form of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// An object on each line.
    Lines,
}

/// One message of a stream.
pub(crate) enum Message {
    /// `data: {…}`, or a line.
    Data(Value),
    /// `event: …` followed by `data: {…}`.
    Named(&'static str, Value),
    /// A server-sent event as it is sent.
    Text(Arc<str>),
    /// `data: [DONE]`.
    Done,
}

impl Message {
    fn encode(&self, framing: Framing, into: &mut String) {
        match self {
            Message::Data(value) if framing == Framing::Lines => {
                into.push_str(&format!("{value}\n"));
            }
            Message::Data(value) => into.push_str(&format!("data: {value}\n\n")),
            Message::Named(name, value) => {
                into.push_str(&format!("event: {name}\ndata: {value}\n\n"));
            }
            Message::Text(text) => into.push_str(text),
            Message::Done => into.push_str("data: [DONE]\n\n"),
        }
    }

    /// Returns the message as a server-sent event.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        self.encode(Framing::Events, &mut text);
        text
    }
}

/// Produces an answer piece by piece.
pub(crate) trait Writer: Send + 'static {
    /// Returns the next messages; `None` at the end. Cancel-safe: may be dropped and called again.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Message>>> + Send;
}

/// Streams the answer of a writer as server-sent events.
pub(crate) fn response(writer: impl Writer) -> Response<Body> {
    framed(writer, Framing::Events)
}

/// Streams the answer of a writer.
pub(crate) fn framed(writer: impl Writer, framing: Framing) -> Response<Body> {
    let stream = unfold(writer, move |mut writer| async move {
        loop {
            match tokio::time::timeout(SILENCE, writer.next()).await {
                Err(_) if framing == Framing::Events => {
                    return Some((Bytes::from_static(b": \n\n"), writer));
                }
                // lines have no comments
                Err(_) => {}
                Ok(None) => return None,
                Ok(Some(messages)) => {
                    let mut text = String::new();
                    messages
                        .iter()
                        .for_each(|message| message.encode(framing, &mut text));
                    if !text.is_empty() {
                        return Some((Bytes::from(text), writer));
                    }
                }
            }
        }
    });
    let body = Body::from_stream(futures_util::StreamExt::map(
        stream,
        Ok::<_, std::io::Error>,
    ));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let content_type = header::HeaderValue::from_static(match framing {
        Framing::Events => "text/event-stream; charset=utf-8",
        Framing::Lines => "application/x-ndjson",
    });
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-cache"),
    );
    // keeps proxies from buffering the answer
    let name = header::HeaderName::from_static("x-accel-buffering");
    headers.insert(name, header::HeaderValue::from_static("no"));
    response
}
