//! One HTTP exchange on an existing connection.

use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderName, Request, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Url;

use super::{CONNECT_TIME, Error, name};

/// Largest size of a response head, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Most characters of a host's text that are quoted in messages.
const MAX_TOLD: usize = 80;

/// User agent; some hosts refuse requests without one.
const AGENT: &str = concat!("octavo/", env!("CARGO_PKG_VERSION"));

/// Response of a host.
pub(super) enum Answer {
    /// Contents of the file.
    File(Vec<u8>),
    /// The file is larger than allowed.
    TooMany,
    /// Redirect to an absolute or relative URL.
    Moved(String),
}

/// Creates a TLS connector that trusts `roots`.
pub(super) fn connector(roots: RootCertStore) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers of both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Performs the TLS handshake with the host of the URL.
pub(super) async fn secure(
    tls: &TlsConnector,
    url: &Url,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Error> {
    let wrong = |why: String| Error::Tls {
        host: name(url),
        why,
    };
    // brackets are part of the URL, not of the address
    let host = name(url);
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let server = ServerName::try_from(host).map_err(|error| wrong(error.to_string()))?;
    match timeout(CONNECT_TIME, tls.connect(server, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(wrong(error.to_string())),
        Err(_) => Err(wrong("it does not answer".to_owned())),
    }
}

/// Requests a file of at most `most` bytes.
pub(super) async fn get<S>(stream: S, url: &Url, most: usize) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let wrong = |error: hyper::Error| Error::Http {
        host: name(url),
        why: error.to_string(),
    };
    let request = request(url)?;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD);
    let (mut sender, connection) = builder
        .handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(wrong)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(wrong)?;
        read(answer, url, most).await
    };
    // the connection lives as long as the exchange, which sees its errors
    let connection = async {
        let _ = connection.await;
        std::future::pending().await
    };
    let (exchange, connection) = (pin!(exchange), pin!(connection));
    tokio::select! {
        answer = exchange => answer,
        never = connection => never,
    }
}

fn request(url: &Url) -> Result<Request<Body>, Error> {
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    // includes the port, unless it is the scheme's default
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let request = Request::builder()
        .uri(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, AGENT)
        .header(
            header::ACCEPT,
            "image/png, image/jpeg, image/webp, image/bmp, image/gif",
        )
        .header(header::CONNECTION, "close")
        .body(Body::empty())?;
    Ok(request)
}

async fn read(answer: hyper::Response<Incoming>, url: &Url, most: usize) -> Result<Answer, Error> {
    let (head, body) = answer.into_parts();
    let host = || name(url);
    match head.status {
        StatusCode::OK => {}
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let to = text(&head.headers, header::LOCATION);
            return to.map(Answer::Moved).ok_or_else(|| Error::Http {
                host: host(),
                why: "a redirect to nowhere".to_owned(),
            });
        }
        status => {
            return Err(Error::Status {
                host: host(),
                status: status.as_u16(),
            });
        }
    }
    if let Some(found) = text(&head.headers, header::CONTENT_TYPE)
        && !may_be_image(&found)
    {
        let found = found.chars().take(MAX_TOLD).collect();
        return Err(Error::Type {
            host: host(),
            found,
        });
    }
    if body.size_hint().lower() > most as u64 {
        return Ok(Answer::TooMany);
    }
    let mut file = Vec::new();
    let mut stream = Body::new(body).into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| Error::Cut { host: host() })?;
        if file.len() + piece.len() > most {
            return Ok(Answer::TooMany);
        }
        file.extend_from_slice(&piece);
    }
    Ok(Answer::File(file))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let value = headers.get(name)?.as_bytes();
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Returns whether a file of this media type may be an image: some hosts send images as bytes.
fn may_be_image(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    essence.starts_with("image/") || essence.ends_with("/octet-stream")
}
