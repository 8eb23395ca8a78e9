//! Streamed answers: server-sent events.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Response, header};
use futures_util::stream::unfold;
use serde_json::Value;

/// Longest silence before a comment is sent, so that no proxy drops the connection.
const SILENCE: Duration = Duration::from_secs(15);

/// One message of a stream.
pub(crate) enum Message {
    /// `data: {…}`.
    Data(Value),
    /// `event: …` followed by `data: {…}`.
    Named(&'static str, Value),
    /// `data: [DONE]`.
    Done,
}

impl Message {
    fn encode(&self, into: &mut String) {
        match self {
            Message::Data(value) => into.push_str(&format!("data: {value}\n\n")),
            Message::Named(name, value) => {
                into.push_str(&format!("event: {name}\ndata: {value}\n\n"));
            }
            Message::Done => into.push_str("data: [DONE]\n\n"),
        }
    }
}

/// Produces an answer piece by piece.
pub(crate) trait Writer: Send + 'static {
    /// Returns the next messages; `None` at the end. Cancel-safe: may be dropped and called again.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Message>>> + Send;
}

/// Streams the answer of a writer.
pub(crate) fn response(writer: impl Writer) -> Response<Body> {
    let stream = unfold(writer, |mut writer| async move {
        loop {
            match tokio::time::timeout(SILENCE, writer.next()).await {
                Err(_) => return Some((Bytes::from_static(b": \n\n"), writer)),
                Ok(None) => return None,
                Ok(Some(messages)) => {
                    let mut text = String::new();
                    messages
                        .iter()
                        .for_each(|message| message.encode(&mut text));
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
    let event_stream = header::HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, event_stream);
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-cache"),
    );
    // keeps proxies from buffering the answer
    let name = header::HeaderName::from_static("x-accel-buffering");
    headers.insert(name, header::HeaderValue::from_static("no"));
    response
}
