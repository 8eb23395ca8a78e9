//! Connections: how many, how long they may take to say what they want, and how they end.

use std::io;
use std::net::SocketAddr;
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
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::json;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 1024;

/// Time for the head of a request, and for its body.
const HEAD_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(30);

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;

/// A client that takes nothing for so long is gone.
const SEND_TIME: Duration = Duration::from_secs(30);

/// How much of a body that nobody wants is read and thrown away, so that its sender hears why.
const DISCARD: usize = 64 << 20;

/// What connections have left to do when all is done.
const FAREWELL: Duration = Duration::from_secs(2);

/// Takes connections until `stop` is ready; then lets them end.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // out of files, say: others must be closed first
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tokio::spawn(turn_away(stream));
            continue;
        };
        prepare(&stream);
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(MAX_HEAD)
            .half_close(false)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // an error is the client's end of the connection: there is nobody to tell
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FAREWELL, graceful.shutdown()).await;
}

/// Small answers leave at once, and a client that takes nothing does not stay for ever.
fn prepare(stream: &TcpStream) {
    // a system that cannot do either serves as well, only less promptly
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let _ = socket.set_keepalive(true);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(SEND_TIME));
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, SEND_TIME);
}

async fn turn_away(mut stream: TcpStream) {
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

/// The body of a request as JSON.
///
/// # Errors
/// If it is too long, too slow, not JSON, or nested deeper than JSON is.
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

/// Reads what an error answer left unread of a body, and throws it away: a connection that is
/// closed before is reset, and whoever still sends never hears what was wrong.
pub(crate) async fn read_out(request: Request, next: Next) -> Response<Body> {
    // who asks first whether to send the body will not send it now
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

/// A body that can be read on after whoever had it is gone.
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

/// Reads and forgets, up to a point.
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

/// An answer of JSON.
pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, value.to_string()).into_response()
}

/// Opens a port.
///
/// # Errors
/// If it is in use, or may not be opened.
pub(crate) async fn listen(host: &str, port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
