//! The file of a Unix socket: one that nobody listens on any more is replaced, and a server removes
//! its own at its end. Also sockets that another process has opened.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;

use super::{Opened, OpenedSocket};

/// Returns the sockets that the environment passes to this process.
pub(super) fn passed() -> io::Result<Vec<OpenedSocket>> {
    let mut passed = listenfd::ListenFd::from_env();
    let mut sockets = Vec::new();
    for i in 0..passed.len() {
        let socket = match passed.take_tcp_listener(i) {
            Ok(socket) => socket.map(Opened::Port),
            // the error says which of them is of no such kind
            Err(_) => passed.take_unix_listener(i)?.map(Opened::Socket),
        };
        sockets.extend(socket.map(|socket| OpenedSocket(Arc::new(socket))));
    }
    Ok(sockets)
}

/// The file of a socket. It is removed when this is dropped, which must be after the socket, unless
/// somebody else listens there by then.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // a file that stays is replaced by the next server
        let _ = make_room(&self.0);
    }
}

/// Opens a socket. As of any file, the umask decides who may connect.
pub(super) fn open(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    make_room(path)?;
    let listener = UnixListener::bind(path)?;
    Ok((listener, SocketFile(path.to_owned())))
}

/// Removes a socket that nobody listens on.
///
/// # Errors
/// If somebody does, the file is something else, or its folder is not there.
pub(super) fn make_room(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return has_folder(path),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let what = "expected no file or a socket, found another file";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            let what = "expected a socket that nobody listens on, found one that answers";
            Err(io::Error::new(io::ErrorKind::AddrInUse, what))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

fn has_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    std::fs::metadata(folder.unwrap_or(Path::new("."))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (listener, file) = open(&path).expect("it is free");
            let kind = |path: &Path| open(path).map(drop).expect_err("refused").kind();
            assert_eq!(kind(&path), io::ErrorKind::AddrInUse);
            // as after a crash
            drop(listener);
            std::mem::forget(file);
            assert!(path.exists());
            let (listener, file) = open(&path).expect("nobody listens");
            drop((listener, file));
            assert!(!path.exists(), "a server removes its own");

            std::fs::write(&path, "text").expect("written");
            assert_eq!(kind(&path), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&path).expect("it is there"), b"text");
            let link = folder.path().join("link.sock");
            std::os::unix::fs::symlink(&path, &link).expect("a link");
            assert_eq!(kind(&link), io::ErrorKind::AlreadyExists);
            let nowhere = folder.path().join("none/x.sock");
            assert_eq!(kind(&nowhere), io::ErrorKind::NotFound);
            let long = folder.path().join(format!("{}.sock", "x".repeat(200)));
            assert_eq!(kind(&long), io::ErrorKind::InvalidInput);
        });
    }

    #[test]
    fn the_socket_of_a_later_server_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (listener, file) = open(&path).expect("it is free");
            drop(listener);
            let later = open(&path).expect("nobody listens");
            drop(file);
            assert!(path.exists());
            drop(later);
            assert!(!path.exists());
        });
    }
}
