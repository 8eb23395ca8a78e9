//! Server log: a record of each request once its answer has ended, and warnings. The program that
//! runs the server writes them; nothing here prints.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use axum::middleware::Next;
use hyper::body::{Frame, SizeHint};
use octavo_engine::{Event, Timing};

/// Header with a request's id, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Anthropic's name for the same header, in answers.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// Longest id from a client, in bytes.
const MAX_ID: usize = 128;

/// Most characters of a client's text in a record.
const MAX_SHOWN: usize = 120;

/// Most characters of a warning.
const MAX_WARNING: usize = 400;

/// Routes of health checks, which are polled every few seconds.
const PROBES: [&str; 5] = ["/health", "/v1/health", "/ready", "/live", "/metrics"];

/// Path of the page's files, of which a browser asks for dozens at once.
const PAGE_FILES: &str = "/page/";

/// A finished request.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Id from the client, or generated.
    pub id: String,
    /// HTTP method, such as `POST`.
    pub method: String,
    /// Path without its query, printable characters only.
    pub route: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Tokens in all its prompts.
    pub prompt_tokens: usize,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
    /// Tokens in all its texts.
    pub generated_tokens: usize,
    /// Time from arrival to the first token.
    pub first_token: Option<Duration>,
    /// Time from arrival to the end of the answer.
    pub duration: Duration,
    /// Whether the client received the whole answer.
    pub is_whole: bool,
    /// Error message, printable characters only.
    pub error: Option<String>,
    /// Whether the request is a health check, or for one of the page's many files.
    pub is_probe: bool,
}

/// A log event.
#[derive(Clone, Copy, Debug)]
pub enum LogEvent<'a> {
    /// The answer to a request has ended.
    Request(&'a RequestRecord),
    /// Something was ignored.
    Warning {
        /// Id of the request it occurred in.
        request: Option<&'a str>,
        /// Message: one line of printable characters.
        text: &'a str,
    },
}

/// Receives log events. It is called on threads that serve connections, and must not block.
#[derive(Clone)]
pub struct LogSink(Arc<dyn Fn(LogEvent<'_>) + Send + Sync>);

impl LogSink {
    /// Creates a sink that calls a function.
    pub fn new(sink: impl Fn(LogEvent<'_>) + Send + Sync + 'static) -> LogSink {
        LogSink(Arc::new(sink))
    }

    pub(crate) fn tell(&self, event: LogEvent<'_>) {
        (self.0)(event);
    }
}

impl Default for LogSink {
    fn default() -> Self {
        LogSink::new(|_| {})
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSink").finish_non_exhaustive()
    }
}

/// Prepares a client's text for a log: printable characters, of limited number.
pub(crate) fn shown(text: &str) -> String {
    shown_within(text, MAX_SHOWN)
}

fn shown_within(text: &str, longest: usize) -> String {
    let start = text.chars().take(longest);
    let mut shown: String = start.flat_map(char::escape_debug).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

tokio::task_local! {
    static CURRENT: Arc<Logged>;
}

/// The log state of a running request.
pub(crate) struct Logged {
    sink: LogSink,
    began: Instant,
    record: Mutex<RequestRecord>,
}

impl Logged {
    fn record(&self) -> MutexGuard<'_, RequestRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the record with an event.
    pub(crate) fn note(&self, event: &Event) {
        let mut record = self.record();
        match event {
            Event::Started { prompt, cached } => {
                record.prompt_tokens += prompt;
                record.cached_tokens += cached;
            }
            Event::Finished { timing, .. } | Event::Beams { timing, .. } => {
                let Timing {
                    generated_tokens,
                    first_token,
                    ..
                } = *timing;
                record.generated_tokens += generated_tokens;
                let sooner = record.first_token.into_iter().chain(first_token).min();
                record.first_token = sooner;
            }
            Event::Failed(error) => record.error = Some(shown(&error.to_string())),
            Event::Read { .. }
            | Event::Prompt(_)
            | Event::Delta { .. }
            | Event::Embedded { .. } => {}
        }
    }

    fn end(&self, is_whole: bool) {
        let mut record = self.record();
        record.duration = self.began.elapsed();
        record.is_whole = is_whole;
        self.sink.tell(LogEvent::Request(&record));
    }
}

/// Returns the request that this task answers, if any.
pub(crate) fn current() -> Option<Arc<Logged>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Returns the id of the request that this task answers, if any.
pub(crate) fn current_id() -> Option<String> {
    current().map(|request| request.record().id.clone())
}

/// Adds the id of the request that this task answers to the response, under Anthropic's name.
pub(crate) async fn with_anthropic_id(mut response: Response<Body>) -> Response<Body> {
    if let Some(id) = current_id().and_then(|id| HeaderValue::try_from(id).ok()) {
        response.headers_mut().insert(ANTHROPIC_ID, id);
    }
    response
}

/// Calls a function as part of answering a request.
pub(crate) fn within<T>(request: Option<Arc<Logged>>, work: impl FnOnce() -> T) -> T {
    match request {
        Some(request) => CURRENT.sync_scope(request, work),
        None => work(),
    }
}

/// Logs a warning about something ignored in the request that this task answers.
pub(crate) fn warn(sink: &LogSink, text: &str) {
    let request = current_id();
    sink.tell(LogEvent::Warning {
        request: request.as_deref(),
        text: &shown_within(text, MAX_WARNING),
    });
}

/// Error message of a refused request, passed from the response to the log.
#[derive(Clone)]
pub(crate) struct Refusal(pub(crate) String);

/// Assigns an id to a request, the client's or a new one, and logs it once its answer has ended.
/// Routes begin with `prefix`.
pub(crate) async fn record(
    sink: &LogSink,
    prefix: &str,
    new_id: impl FnOnce() -> String,
    request: Request,
    next: Next,
) -> Response<Body> {
    let id = named(request.headers()).unwrap_or_else(new_id);
    let path = request.uri().path();
    let bare = path.strip_prefix(prefix).unwrap_or(path);
    let is_head = request.method() == Method::HEAD;
    let logged = Arc::new(Logged {
        sink: sink.clone(),
        began: Instant::now(),
        record: Mutex::new(RequestRecord {
            method: shown(request.method().as_str()),
            route: shown(path),
            status: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            first_token: None,
            duration: Duration::ZERO,
            is_whole: false,
            error: None,
            is_probe: PROBES.contains(&bare) || bare.starts_with(PAGE_FILES),
            id: id.clone(),
        }),
    });
    // a client that disconnects before the answer drops this future
    let mut ending = Ending {
        logged: Arc::clone(&logged),
        is_whole: false,
    };
    let mut response = CURRENT.scope(Arc::clone(&logged), next.run(request)).await;
    {
        let mut record = logged.record();
        record.status = response.status().as_u16();
        if let Some(Refusal(why)) = response.extensions().get() {
            record.error = Some(shown(why));
        }
    }
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    ending.is_whole = is_head || response.body().is_end_stream();
    response.map(|body| Body::new(LoggedBody { body, ending }))
}

/// Returns the id that a client gave its request, if valid.
fn named(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = id.bytes().all(|byte| byte.is_ascii_graphic());
    (is_plain && (1..=MAX_ID).contains(&id.len())).then(|| id.to_owned())
}

/// Logs a request when dropped.
struct Ending {
    logged: Arc<Logged>,
    is_whole: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.logged.end(self.is_whole);
    }
}

/// A response body that logs its end.
struct LoggedBody {
    body: Body,
    ending: Ending,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.ending.is_whole |= matches!(polled, Poll::Ready(None)) || self.body.is_end_stream();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_is_printable_and_short() {
        assert_eq!(shown("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(shown(&"x".repeat(MAX_SHOWN)).len(), MAX_SHOWN);
        assert!(shown(&"\u{7}".repeat(10_000)).chars().count() <= 6 * MAX_SHOWN + 1);
    }

    #[test]
    fn a_name_of_a_request_is_one_plain_word() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(
                REQUEST_ID,
                HeaderValue::from_bytes(value).expect("a header"),
            );
            named(&headers)
        };
        assert_eq!(of(b"abc-1").as_deref(), Some("abc-1"));
        assert_eq!(of(b""), None);
        assert_eq!(of(b"a b"), None);
        assert_eq!(of(b"\xffx"), None);
        assert_eq!(of(&[b'a'; MAX_ID + 1]), None);
    }
}
