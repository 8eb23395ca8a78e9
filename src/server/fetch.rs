//! Pictures that requests name by an address of the web: fetched within bounds, and only from hosts
//! that were allowed.
//!
//! Who may send requests could otherwise have the server ask for them what lies inside its network.
//! So a name is looked up once and its addresses are checked; what is connected to is an address
//! that was checked; and each redirect is a new address, checked as the first was. Everything here
//! waits in the future of whoever asked, and ends when that is dropped.

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
pub use hosts::{HostError, PictureHost};

/// Requests whose pictures are fetched, or fetched and not seen yet, at a time.
const PLACES: usize = 4;

/// How long a request may wait for such a place before it is turned away.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names that are looked up at a time. The system's look-up cannot be stopped, so that one that
/// takes long holds its thread after whoever asked is gone.
pub(crate) const LOOKUPS: usize = 4;

/// Time to look a name up, to connect to one address, and to agree on a cipher.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

const MAX_REDIRECTS: usize = 5;

/// Why a picture was not fetched.
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
    /// Not on the list.
    #[error("expected a host that this server may fetch pictures from, found {0}")]
    Host(String),
    /// Where only public addresses are allowed. Which one it has is nobody's business.
    #[error("expected a host with a public address, found {0}")]
    Private(String),
    #[error("{0}: expected an address, found none")]
    Unknown(String),
    #[error("{host}: cannot connect: {why}")]
    Connect { host: String, why: String },
    #[error("{host}: no secure connection: {why}")]
    Tls { host: String, why: String },
    #[error("{host}: expected the picture within {} seconds, it is not there", time.as_secs())]
    Slow { host: String, time: Duration },
    #[error("{host}: expected an answer of HTTP, found {why}")]
    Http { host: String, why: String },
    #[error("{host}: expected status 200, found {status}")]
    Status { host: String, status: u16 },
    #[error("{host}: expected a picture, found {found:?}")]
    Type { host: String, found: String },
    #[error("{host}: expected at most {most} bytes, of all pictures together, found more")]
    TooMany { host: String, most: usize },
    #[error("{host}: the picture ended before its end")]
    Cut { host: String },
    #[error("expected at most {MAX_REDIRECTS} redirects, found more")]
    Redirects,
}

/// What all pictures of a request may take together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

impl Bounds {
    /// So many bytes, and half a minute.
    pub(crate) fn of_bytes(bytes: usize) -> Bounds {
        Bounds {
            bytes,
            time: Duration::from_secs(30),
        }
    }
}

/// A picture to fetch.
pub(crate) struct Wanted {
    /// The field that names it.
    pub(crate) field: String,
    pub(crate) url: String,
}

/// Pictures that were fetched for a request; others' are fetched once this is dropped.
pub(crate) struct Fetched {
    by_url: HashMap<String, Vec<u8>>,
    _place: OwnedSemaphorePermit,
}

impl Fetched {
    /// The file that an address has.
    pub(crate) fn file(&self, url: &str) -> Option<&[u8]> {
        self.by_url.get(url).map(Vec::as_slice)
    }
}

/// Whether this names something to fetch.
pub(crate) fn is_remote(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme.trim());
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Fetches pictures.
pub(crate) struct Fetcher {
    hosts: Vec<PictureHost>,
    bounds: Bounds,
    tls: TlsConnector,
    places: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

impl Fetcher {
    /// From these hosts, which certificates of these authorities vouch for.
    pub(crate) fn new(hosts: Vec<PictureHost>, bounds: Bounds, roots: RootCertStore) -> Fetcher {
        Fetcher {
            hosts,
            bounds,
            tls: exchange::connector(roots),
            places: Arc::new(Semaphore::new(PLACES)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Fetches all pictures of a request, each address once.
    ///
    /// # Errors
    /// About the field of the first that cannot be had.
    pub(crate) async fn all(&self, wanted: &[Wanted]) -> Result<Fetched, ApiError> {
        let places = Arc::clone(&self.places);
        let Ok(Ok(place)) = timeout(PATIENCE, places.acquire_owned()).await else {
            return Err(ApiError::busy("too many pictures are being fetched"));
        };
        let mut by_url: HashMap<String, Vec<u8>> = HashMap::new();
        let Bounds {
            bytes: mut left,
            time,
        } = self.bounds;
        let end = tokio::time::Instant::now() + time;
        for Wanted { field, url } in wanted {
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

    /// Fetches one, of at most `left` bytes.
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

    /// Connects to the host of an address, if that is allowed.
    async fn connect(&self, url: &Url) -> Result<TcpStream, Error> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::Credentials);
        }
        let host = name(url);
        let is_named = self.hosts.iter().any(|allowed| allowed.names(url));
        if !is_named && !self.hosts.contains(&PictureHost::Public) {
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

    /// The addresses of a host, in the system's order; none if it is not known.
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

/// Whether the other end is this machine, by an address that looks like any other.
fn is_own(stream: &TcpStream) -> bool {
    let ends: io::Result<_> = stream
        .local_addr()
        .and_then(|own| Ok((own, stream.peer_addr()?)));
    // one that is closed already says nothing
    ends.is_ok_and(|(own, other)| own.ip() == other.ip())
}

/// What an address calls its host.
fn name(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

fn host_of(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| name(&url))
}

/// The certificate authorities that this system trusts.
pub(crate) fn authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // one that cannot be read is one that is not trusted
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
