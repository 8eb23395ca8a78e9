//! Images given by URL: fetched within limits, and only from allowed hosts.
//!
//! Clients could otherwise make the server fetch resources inside its own network (SSRF). So a name
//! is resolved once and its addresses are checked; the connection goes to a checked address; and
//! each redirect is checked like the first URL. All work happens in the caller's future, and ends
//! when that is dropped.

mod exchange;
mod hosts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::error::ApiError;
use exchange::Answer;
pub use hosts::{HostError, ImageHost};

/// Requests whose images are being fetched, or are fetched but not yet encoded, at a time.
const PLACES: usize = 4;

/// Longest wait for such a slot before the request is refused.
const PATIENCE: Duration = Duration::from_secs(60);

/// Concurrent name look-ups. The system's look-up cannot be cancelled, so a slow one occupies its
/// thread even after its request is gone.
pub(crate) const LOOKUPS: usize = 4;

/// Time limit for a name look-up, for connecting to one address, and for the TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

const MAX_REDIRECTS: usize = 5;

/// Reasons an image was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("expected a URL: {0}")]
    Url(#[from] url::ParseError),
    #[error("expected a URL that a host can be asked for: {0}")]
    Request(#[from] axum::http::Error),
    #[error("expected http or https, found {0}")]
    Scheme(String),
    #[error("expected a URL without a user and a password")]
    Credentials,
    /// The host is not on the list.
    #[error("expected a host that this server may fetch images from, found {0}")]
    Host(String),
    /// The host has a private address where only public ones are allowed. The address is not
    /// revealed.
    #[error("expected a host with a public address, found {0}")]
    Private(String),
    #[error("{0}: expected an address, found none")]
    Unknown(String),
    #[error("{host}: cannot connect: {why}")]
    Connect { host: String, why: String },
    #[error("{host}: no secure connection: {why}")]
    Tls { host: String, why: String },
    #[error("{host}: expected the image within {} seconds, it is not there", time.as_secs())]
    Slow { host: String, time: Duration },
    #[error("{host}: expected an answer of HTTP, found {why}")]
    Http { host: String, why: String },
    #[error("{host}: expected status 200, found {status}")]
    Status { host: String, status: u16 },
    #[error("{host}: expected an image, found {found:?}")]
    Type { host: String, found: String },
    #[error("{host}: expected at most {most} bytes, of all images together, found more")]
    TooMany { host: String, most: usize },
    #[error("{host}: the image ended before its end")]
    Cut { host: String },
    #[error("expected at most {MAX_REDIRECTS} redirects, found more")]
    Redirects,
}

/// Limits for all images of a request together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

impl Bounds {
    /// Returns limits of this many bytes, and half a minute.
    pub(crate) fn of_bytes(bytes: usize) -> Bounds {
        Bounds {
            bytes,
            time: Duration::from_secs(30),
        }
    }
}

/// URL of an image to fetch.
pub(crate) struct ImageUrl {
    /// Field that contains the URL.
    pub(crate) field: String,
    pub(crate) url: String,
}

/// Images fetched for a request; dropping this frees the slot for other requests.
pub(crate) struct Fetched {
    by_url: HashMap<String, Vec<u8>>,
    _place: OwnedSemaphorePermit,
}

impl Fetched {
    /// Returns the file fetched from a URL.
    pub(crate) fn file(&self, url: &str) -> Option<&[u8]> {
        self.by_url.get(url).map(Vec::as_slice)
    }
}

/// Returns whether a URL must be fetched.
pub(crate) fn is_remote(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme.trim());
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Fetches images.
pub(crate) struct Fetcher {
    hosts: Vec<ImageHost>,
    bounds: Bounds,
    tls: TlsConnector,
    places: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

impl Fetcher {
    /// Creates a fetcher for these hosts, which verifies certificates against `roots`.
    pub(crate) fn new(hosts: Vec<ImageHost>, bounds: Bounds, roots: RootCertStore) -> Fetcher {
        Fetcher {
            hosts,
            bounds,
            tls: exchange::connector(roots),
            places: Arc::new(Semaphore::new(PLACES)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Fetches all images of a request, each URL once.
    ///
    /// # Errors
    /// Names the field of the first image that cannot be fetched.
    pub(crate) async fn all(&self, urls: &[ImageUrl]) -> Result<Fetched, ApiError> {
        let places = Arc::clone(&self.places);
        let Ok(Ok(place)) = timeout(PATIENCE, places.acquire_owned()).await else {
            return Err(ApiError::busy("too many images are being fetched"));
        };
        let mut by_url: HashMap<String, Vec<u8>> = HashMap::new();
        let Bounds {
            bytes: mut left,
            time,
        } = self.bounds;
        let end = tokio::time::Instant::now() + time;
        for ImageUrl { field, url } in urls {
            if by_url.contains_key(url) {
                continue;
            }
            let one = tokio::time::timeout_at(end, self.one(url, left)).await;
            let one = one.unwrap_or_else(|_| {
                let host = host_of(url);
                Err(Error::Slow { host, time })
            });
            let file = one.map_err(|error| ApiError::bad_field(field, error.to_string()))?;
            left -= file.len();
            by_url.insert(url.clone(), file);
        }
        Ok(Fetched {
            by_url,
            _place: place,
        })
    }

    /// Fetches one image, of at most `left` bytes.
    async fn one(&self, url: &str, left: usize) -> Result<Vec<u8>, Error> {
        let mut url = Url::parse(url)?;
        for _ in 0..=MAX_REDIRECTS {
            let stream = self.connect(&url).await?;
            let answer = match url.scheme() {
                "https" => {
                    let stream = exchange::secure(&self.tls, &url, stream).await?;
                    exchange::get(stream, &url, left).await
                }
                _ => exchange::get(stream, &url, left).await,
            };
            match answer? {
                Answer::File(file) => return Ok(file),
                Answer::TooMany => {
                    return Err(Error::TooMany {
                        host: name(&url),
                        most: self.bounds.bytes,
                    });
                }
                Answer::Moved(to) => url = url.join(&to)?,
            }
        }
        Err(Error::Redirects)
    }

    /// Connects to the host of a URL, if that is allowed.
    async fn connect(&self, url: &Url) -> Result<TcpStream, Error> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::Credentials);
        }
        let host = name(url);
        let is_named = self.hosts.iter().any(|allowed| allowed.names(url));
        if !is_named && !self.hosts.contains(&ImageHost::Public) {
            return Err(Error::Host(host));
        }
        let mut addresses = self.look_up(url).await?;
        if addresses.is_empty() {
            return Err(Error::Unknown(host));
        }
        addresses.retain(|address| is_named || hosts::is_public(address.ip()));
        if addresses.is_empty() {
            return Err(Error::Private(host));
        }
        let mut why = String::new();
        for address in addresses.iter().take(MAX_ADDRESSES) {
            match timeout(CONNECT_TIME, TcpStream::connect(address)).await {
                Ok(Ok(stream)) if is_named || !is_own(&stream) => return Ok(stream),
                Ok(Ok(_)) => return Err(Error::Private(host)),
                Ok(Err(error)) => why = error.kind().to_string(),
                Err(_) => why = "it does not answer".to_owned(),
            }
        }
        Err(Error::Connect { host, why })
    }

    /// Returns the addresses of a host, in the system's order; empty if unknown.
    async fn look_up(&self, url: &Url) -> Result<Vec<SocketAddr>, Error> {
        let port = url.port_or_known_default().unwrap_or_default();
        let host = match url.host() {
            Some(url::Host::Ipv4(ip)) => return Ok(vec![(ip, port).into()]),
            Some(url::Host::Ipv6(ip)) => return Ok(vec![(ip, port).into()]),
            Some(url::Host::Domain(name)) => name.to_owned(),
            None => return Err(Error::Unknown(name(url))),
        };
        let lookups = Arc::clone(&self.lookups);
        let found = async {
            // the semaphore is never closed
            let place = lookups.acquire_owned().await.ok()?;
            let look_up = move || {
                let _place = place;
                (host, port).to_socket_addrs()
            };
            tokio::task::spawn_blocking(look_up).await.ok()?.ok()
        };
        match timeout(CONNECT_TIME, found).await {
            Ok(found) => Ok(found.map_or_else(Vec::new, Iterator::collect)),
            Err(_) => Err(Error::Unknown(name(url))),
        }
    }
}

/// Returns whether the peer is this machine, under an address that looks public.
fn is_own(stream: &TcpStream) -> bool {
    let ends: io::Result<_> = stream
        .local_addr()
        .and_then(|own| Ok((own, stream.peer_addr()?)));
    // a connection that is already closed gives no answer
    ends.is_ok_and(|(own, other)| own.ip() == other.ip())
}

/// Returns the host of a URL.
fn name(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

fn host_of(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| name(&url))
}

/// Returns the certificate authorities that this system trusts.
pub(crate) fn authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // an unreadable certificate is not trusted
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
