//! Connections: their number, time limits, and shutdown.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::json;
use crate::listen::{Listeners, Stream};
use crate::tls::Tls;

/// Largest number of concurrent connections.
const MAX_CONNECTIONS: usize = 1024;

/// Time limits for the head of a request, which a TLS handshake has too, and for its body.
const HEAD_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(30);

/// Largest request head, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Bytes of an unwanted body that are read and discarded, so that the client sees the error.
const DISCARD: usize = 64 << 20;

/// Time for connections to finish at shutdown.
const FAREWELL: Duration = Duration::from_secs(2);

/// Accepts connections until `stop` completes; then lets them finish.
pub(crate) async fn serve(
    listeners: Listeners,
    tls: Option<Tls>,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listeners.accept() => match accepted {
                Ok(stream) => stream,
                Err(_) => {
                    // e.g. out of file descriptors: others must be closed first
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // the answer would take a handshake
            if tls.is_none() {
                tokio::spawn(turn_away(stream));
            }
            continue;
        };
        let (watcher, router) = (graceful.watcher(), router.clone());
        let acceptor = tls.as_ref().map(Tls::acceptor);
        tokio::spawn(async move {
            match acceptor {
                None => converse(stream, router, watcher).await,
                Some(acceptor) => {
                    let handshake = tokio::time::timeout(HEAD_TIME, acceptor.accept(stream));
                    // an error is the client's
                    if let Ok(Ok(stream)) = handshake.await {
                        converse(stream, router, watcher).await;
                    }
                }
            }
            drop(place);
        });
    }
    drop(listeners);
    let _ = tokio::time::timeout(FAREWELL, graceful.shutdown()).await;
}

/// Answers the requests of a connection.
async fn converse<S>(stream: S, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // some clients do not find names in small letters
        .title_case_headers(true)
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // an error is the client's: the connection is gone
    let _ = watcher.watch(connection).await;
}

async fn turn_away(mut stream: Stream) {
    use tokio::io::AsyncWriteExt;
    let body = ApiError::unavailable("too many connections")
        .to_json()
        .to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = tokio::time::timeout(HEAD_TIME, stream.write_all(answer.as_bytes())).await;
}

/// Reads the body of a request as JSON.
///
/// # Errors
/// If it is too long, too slow, not JSON, or nested too deeply.
pub(crate) async fn read_json(request: Request, limit: usize) -> Result<Value, ApiError> {
    let announced = announced_length(request.headers());
    let body = request.into_body();
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    let read = tokio::time::timeout(BODY_TIME, read(body, limit));
    let bytes = read.await.map_err(|_| ApiError::slow())??;
    if bytes.is_empty() {
        return Err(ApiError::bad_request(
            "the body is empty: expected a JSON object",
        ));
    }
    json::parse(&bytes)
        .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let expected = body.size_hint().lower().min(limit as u64);
    let mut all = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| ApiError::bad_request("the body ended before its end"))?;
        if all.len() + piece.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Reads and discards the rest of a body after an error response: closing the connection earlier
/// would reset it, and a client still sending would never see the error.
pub(crate) async fn read_out(request: Request, next: Next) -> Response<Body> {
    // a client that asked first whether to send the body will not send it now
    let is_sent = !request.headers().contains_key(header::EXPECT);
    let (head, body) = request.into_parts();
    let rest = SharedBody(Arc::new(Mutex::new(body)));
    let body = Body::new(SharedBody(Arc::clone(&rest.0)));
    let response = next.run(Request::from_parts(head, body)).await;
    let status = response.status();
    if is_sent && (status.is_client_error() || status.is_server_error()) {
        let rest = std::mem::take(&mut *rest.lock());
        let _ = tokio::time::timeout(HEAD_TIME, discard(rest)).await;
    }
    response
}

/// A body whose rest can be read after its first reader is gone.
struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}

/// Reads and discards a body, up to a limit.
async fn discard(body: Body) {
    let mut stream = body.into_data_stream();
    let mut seen = 0;
    while let Some(Ok(piece)) = stream.next().await {
        seen += piece.len();
        if seen > DISCARD {
            return;
        }
    }
}

/// Returns a JSON response.
pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, value.to_string()).into_response()
}
