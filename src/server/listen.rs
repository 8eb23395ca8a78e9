//! Sockets that a server listens on: ports, Unix sockets, and sockets that a service manager has
//! opened.

#[cfg(unix)]
mod socket_file;
#[cfg(unix)]
mod timed;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
#[cfg(unix)]
use std::time::Duration;

use socket2::SockRef;
#[cfg(unix)]
use timed::Timed;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// Time without progress after which a client counts as gone.
#[cfg(unix)]
const SEND_TIME: Duration = Duration::from_secs(30);

/// Ending of a host that is the path of a Unix socket, as in llama-server.
const SOCKET_ENDING: &str = ".sock";

/// Address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Address and port.
    Port(SocketAddr),
    /// Path of a Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Port(address) => address.fmt(f),
            Address::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Returns whether there are ports, and only this machine can reach them, every user and browser on
/// it. No browser reaches a Unix socket.
pub(crate) fn is_local(addresses: &[Address]) -> bool {
    let ports = addresses.iter().filter_map(|address| match address {
        Address::Port(port) => Some(port.ip().is_loopback()),
        Address::Socket(_) => None,
    });
    let ports: Vec<bool> = ports.collect();
    !ports.is_empty() && !ports.contains(&false)
}

/// Returns the path of the Unix socket that a host stands for: `unix:PATH`, or a path that ends in
/// `.sock`.
pub fn socket_path(host: &str) -> Option<PathBuf> {
    match host.strip_prefix("unix:") {
        Some(path) => Some(path.into()),
        None => host.ends_with(SOCKET_ENDING).then(|| host.into()),
    }
}

/// A listening socket that a service manager has opened (systemd's socket activation).
#[derive(Clone, Debug)]
pub struct OpenedSocket(Arc<Opened>);

#[derive(Debug)]
enum Opened {
    Port(std::net::TcpListener),
    #[cfg(unix)]
    Socket(std::os::unix::net::UnixListener),
}

impl OpenedSocket {
    /// Returns the sockets that the environment passes to this process (`LISTEN_FDS`,
    /// `LISTEN_PID`), and takes them out of it.
    ///
    /// # Errors
    /// If one of them is neither a TCP nor a Unix stream socket.
    pub fn from_env() -> io::Result<Vec<OpenedSocket>> {
        #[cfg(unix)]
        return socket_file::passed();
        #[cfg(not(unix))]
        Ok(Vec::new())
    }

    fn listen(&self) -> io::Result<Listener> {
        match &*self.0 {
            Opened::Port(listener) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Port(TcpListener::from_std(listener)?))
            }
            #[cfg(unix)]
            Opened::Socket(listener) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Socket {
                    listener: UnixListener::from_std(listener)?,
                    _file: None,
                })
            }
        }
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    /// Host and port, or socket.
    pub address: String,
    /// The system's error.
    pub source: io::Error,
}

impl ListenError {
    fn new(host: &str, port: u16, source: io::Error) -> ListenError {
        let address = match socket_path(host) {
            Some(path) => Address::Socket(path).to_string(),
            None => format!("{host}:{port}"),
        };
        ListenError { address, source }
    }
}

/// Returns the hosts of a list with commas between them.
pub(crate) fn hosts(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// Checks that hosts can be listened on, before anything that takes long; several have commas
/// between them.
///
/// # Errors
/// As of opening them.
pub fn check_listen(list: &str, port: u16) -> Result<(), ListenError> {
    for host in hosts(list) {
        let checked = match socket_path(host) {
            #[cfg(unix)]
            Some(path) => socket_file::make_room(&path),
            #[cfg(not(unix))]
            Some(_) => Err(no_sockets()),
            None => std::net::TcpListener::bind((host, port)).map(drop),
        };
        checked.map_err(|source| ListenError::new(host, port, source))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn no_sockets() -> io::Error {
    let what = "Unix sockets: expected an address, since this system has none of them here";
    io::Error::new(io::ErrorKind::Unsupported, what)
}

enum Listener {
    Port(TcpListener),
    #[cfg(unix)]
    Socket {
        listener: UnixListener,
        /// Removed with the listener.
        _file: Option<socket_file::SocketFile>,
    },
}

impl Listener {
    async fn open(host: &str, port: u16) -> io::Result<Listener> {
        match socket_path(host) {
            #[cfg(unix)]
            Some(path) => {
                let (listener, file) = socket_file::open(&path)?;
                Ok(Listener::Socket {
                    listener,
                    _file: Some(file),
                })
            }
            #[cfg(not(unix))]
            Some(_) => Err(no_sockets()),
            None => Ok(Listener::Port(TcpListener::bind((host, port)).await?)),
        }
    }

    fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Port(listener) => Ok(Address::Port(listener.local_addr()?)),
            #[cfg(unix)]
            Listener::Socket { listener, .. } => {
                let address = listener.local_addr()?;
                Ok(Address::Socket(
                    address.as_pathname().unwrap_or(Path::new("")).to_owned(),
                ))
            }
        }
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        match self {
            Listener::Port(listener) => {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                prepare(&stream);
                Poll::Ready(Ok(Stream::Port(stream)))
            }
            #[cfg(unix)]
            Listener::Socket { listener, .. } => {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                Poll::Ready(Ok(Stream::Socket(Timed::new(stream, SEND_TIME))))
            }
        }
    }
}

/// All sockets of a server.
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    /// Opens hosts (addresses, names or Unix sockets, with commas between them), or listens on the
    /// sockets that are open already. Port 0 is a free one of the first, and that of the others.
    ///
    /// # Errors
    /// If one is in use, or may not be opened.
    pub(crate) async fn open(
        list: &str,
        mut port: u16,
        opened: &[OpenedSocket],
    ) -> Result<Listeners, ListenError> {
        if !opened.is_empty() {
            let all: io::Result<_> = opened.iter().map(OpenedSocket::listen).collect();
            let address = "the sockets of the environment".to_owned();
            return Ok(Listeners(
                all.map_err(|source| ListenError { address, source })?,
            ));
        }
        let mut all = Vec::new();
        for host in hosts(list) {
            let listener = Listener::open(host, port).await;
            let listener = listener.map_err(|source| ListenError::new(host, port, source))?;
            if let Ok(Address::Port(address)) = listener.address() {
                port = address.port();
            }
            all.push(listener);
        }
        Ok(Listeners(all))
    }

    /// Returns the address of each, as far as the system tells it.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let addresses = self.0.iter().map(Listener::address);
        addresses.filter_map(Result::ok).collect()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// If it cannot be accepted.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        poll_fn(|context| {
            let mut polled = self.0.iter().map(|listener| listener.poll_accept(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

/// Sends small writes at once (no Nagle), and drops clients that stop receiving.
fn prepare(stream: &TcpStream) {
    // both are optional: without them the server is only less prompt
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let _ = socket.set_keepalive(true);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(SEND_TIME));
}

/// A connection.
pub(crate) enum Stream {
    Port(TcpStream),
    #[cfg(unix)]
    Socket(Timed<UnixStream>),
}

/// Calls a method of whichever stream it is.
macro_rules! delegate {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        match $self.get_mut() {
            Stream::Port(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(unix)]
            Stream::Socket(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        delegate!(self, poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_sockets_are_recognized() {
        let path = |host: &str| socket_path(host).map(|path| path.display().to_string());
        assert_eq!(path("/run/x.sock").as_deref(), Some("/run/x.sock"));
        assert_eq!(path("unix:/run/x").as_deref(), Some("/run/x"));
        for host in ["127.0.0.1", "localhost", "::1", "0.0.0.0", "sock"] {
            assert_eq!(path(host), None, "{host}");
        }
    }
}
