//! Answers that are sent while they are made: server-sent events.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Response, header};
use futures_util::stream::unfold;
use serde_json::Value;

/// Silence for so long is broken by a comment, so that nobody on the way takes the connection for
/// dead.
const SILENCE: Duration = Duration::from_secs(15);

/// What an answer is made of.
pub(crate) enum Message {
    /// `data: {…}`
    Data(Value),
    /// The same, with a name: `event: …`.
    Named(&'static str, Value),
    /// `data: [DONE]`
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

/// Makes an answer piece by piece.
pub(crate) trait Writer: Send + 'static {
    /// What comes next; `None` at the end. May be dropped while it waits and asked again.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Message>>> + Send;
}

/// The answer that a writer makes.
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
    // proxies that gather answers before they pass them on
    let name = header::HeaderName::from_static("x-accel-buffering");
    headers.insert(name, header::HeaderValue::from_static("no"));
    response
}
