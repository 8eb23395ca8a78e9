//! Replaces files atomically: writes a temporary file in the same folder, flushes it to the disk,
//! then renames it.
//!
//! Links are followed: their target is replaced. Only files are replaced: pipes and character
//! devices are written to, everything else is refused. A killed process leaves its temporary file
//! behind. Each is locked while its writer lives, so the next writer of the same file recognizes
//! left-over ones by their free lock and removes them.

use crate::temporary::{self, Temporary};
use crate::{Error, error::label};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of links to follow: Linux's limit.
const MAX_LINKS: usize = 40;

/// Calls `write` with the new content of the file `path`: other processes see either the old file
/// or a whole new one. If `write` fails nothing is left behind. The old file's permissions are
/// preserved. A pipe or a character device gets the bytes as they come. [`Writer`](crate::Writer)
/// writes models this way; this is for other formats.
///
/// # Errors
/// Those of `write`, something other than a file at `path` ([`Error::Target`]), a file created
/// there meanwhile ([`Error::NameTaken`]), or a failure to create or rename the file.
pub fn replace<T, E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    match place(path)? {
        Destination::Stream => {
            let failed = |source| Error::Io {
                file: label(path),
                action: "write to it",
                source,
            };
            let mut stream = Stream(OpenOptions::new().write(true).open(path).map_err(failed)?);
            let result = write(&mut stream)?;
            stream.flush().map_err(failed)?;
            Ok(result)
        }
        Destination::File(found) => {
            let mut new = NewFile::of(path, found)?;
            let result = write(&mut new.file)?;
            new.publish()?;
            Ok(result)
        }
    }
}

/// Checks whether [`replace`] can write `path`, as far as that can be known before: a new file is
/// created in its folder and removed.
///
/// # Errors
/// Something at `path` that can be neither replaced nor written to, or a folder that accepts no new
/// file.
pub fn check_replaceable(path: &Path) -> Result<(), Error> {
    match place(path)? {
        Destination::Stream => Ok(()),
        Destination::File(found) => NewFile::of(path, found).map(drop),
    }
}

/// A new file under a temporary name beside its final one, for writers that take a path. See
/// [`replace`].
#[derive(Debug)]
pub struct NewFile {
    label: String,
    found: Found,
    temporary: Temporary,
    file: File,
}

impl NewFile {
    /// Creates the temporary file for `path`.
    ///
    /// # Errors
    /// Something at `path` that is not a file, or a folder that accepts no new file.
    pub fn beside(path: &Path) -> Result<NewFile, Error> {
        match place(path)? {
            Destination::Stream => Err(Error::Target {
                file: label(path),
                expected: "a file",
                got: "a device or a pipe",
            }),
            Destination::File(found) => NewFile::of(path, found),
        }
    }

    fn of(path: &Path, found: Found) -> Result<NewFile, Error> {
        let label = label(path);
        let failed = |source| Error::Io {
            file: label.clone(),
            action: "create a temporary file beside it",
            source,
        };
        let name = found.path.file_name().ok_or_else(|| Error::NotAFile {
            file: label.clone(),
        })?;
        let folder = folder(&found.path);
        remove_left_over(folder, name);
        let (temporary, file) = create(folder, name).map_err(failed)?;
        if let Some(there) = &found.there {
            // before anything is written: the old file may be readable by its owner only
            keep_owner(&file, there);
            file.set_permissions(there.permissions()).map_err(failed)?;
        }
        Ok(NewFile {
            label,
            found,
            temporary,
            file,
        })
    }

    /// Returns the current, temporary path.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Flushes it to the disk and renames it.
    ///
    /// # Errors
    /// Another file created there meanwhile, or a failure to flush or rename it; it is removed
    /// then.
    pub fn publish(self) -> Result<(), Error> {
        let failed = |action| {
            let file = self.label.clone();
            move |source| Error::Io {
                file,
                action,
                source,
            }
        };
        self.file
            .sync_all()
            .map_err(failed("write it to the disk"))?;
        if self.found.path.metadata().is_ok_and(|now| {
            !self
                .found
                .there
                .as_ref()
                .is_some_and(|m| same_file(m, &now))
        }) {
            return Err(Error::NameTaken { file: self.label });
        }
        let (renamed, flushed) = (
            failed("give it its name"),
            failed("write its folder to the disk"),
        );
        self.temporary.rename(&self.found.path).map_err(renamed)?;
        // only Unix can flush a folder
        if cfg!(unix) {
            File::open(folder(&self.found.path))
                .and_then(|f| f.sync_all())
                .map_err(flushed)?;
        }
        Ok(())
    }
}

/// Destination of the bytes for a path.
enum Destination {
    /// A file of this name.
    File(Found),
    /// An existing pipe or character device.
    Stream,
}

/// A file's own name with all links resolved, and the existing file.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    there: Option<Metadata>,
}

fn place(path: &Path) -> Result<Destination, Error> {
    let there = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(|source| Error::Io {
            file: label(path),
            action: "look at it",
            source,
        })?),
    };
    match there.as_ref().map(Metadata::file_type) {
        Some(found) if is_stream(found) => return Ok(Destination::Stream),
        Some(found) if !found.is_file() => {
            let (expected, got) = ("a file, a pipe or a character device", what(found));
            return Err(Error::Target {
                file: label(path),
                expected,
                got,
            });
        }
        _ => {}
    }
    Ok(Destination::File(Found {
        path: behind_links(path)?,
        there,
    }))
}

/// Resolves a path of symbolic links, whether or not its target exists.
///
/// # Errors
/// Links that form a loop, or cannot be read.
pub fn behind_links(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::Io {
        file: label(path),
        action: "follow the link",
        source,
    };
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        match at.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                at = folder(&at).join(fs::read_link(&at).map_err(failed)?)
            }
            _ => return Ok(at),
        }
    }
    Err(failed(io::Error::other("too many links")))
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Returns whether it consumes bytes in sequence and stores none that could be lost.
fn is_stream(found: FileType) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        found.is_fifo() || found.is_char_device()
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        false
    }
}

fn what(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_block_device() {
            return "a block device";
        }
        if found.is_socket() {
            return "a socket";
        }
    }
    if found.is_dir() {
        "a folder"
    } else {
        "something else"
    }
}

#[cfg(unix)]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Returns true: other systems offer no file numbers to compare.
#[cfg(not(unix))]
fn same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// Preserves the owner. Best effort: only root can give files away.
fn keep_owner(file: &File, there: &Metadata) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let _ = fchown(file, Some(there.uid()), Some(there.gid()));
    }
    #[cfg(not(unix))]
    let _ = (file, there);
}

/// A pipe or a device. A reader that has gone away must be an error here, while a closed standard
/// output is none.
struct Stream(File);

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::other("whoever read it has gone away"),
            _ => error,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns `.model.gguf.<process>-<number>.tmp` for `model.gguf`.
fn temporary_name(name: &OsStr, number: u64) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{number}.tmp", std::process::id()));
    temporary
}

fn is_temporary_of(name: &OsStr, other: &OsStr) -> bool {
    let middle = other
        .as_encoded_bytes()
        .strip_prefix(b".")
        .and_then(|o| o.strip_prefix(name.as_encoded_bytes()));
    let middle = middle
        .and_then(|o| o.strip_prefix(b"."))
        .and_then(|o| o.strip_suffix(b".tmp"));
    middle.is_some_and(|m| m.contains(&b'-') && m.iter().all(|&b| b.is_ascii_digit() || b == b'-'))
}

fn create(folder: &Path, name: &OsStr) -> io::Result<(Temporary, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let path = folder.join(temporary_name(name, NUMBER.fetch_add(1, Ordering::Relaxed)));
        let (temporary, file) = match Temporary::create(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        let taken = match file.try_lock() {
            // another writer took it for a left-over file before it was locked
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => !temporary.path().try_exists()?,
            // on a file system without locks no writer can take it for a left-over file
            Err(TryLockError::Error(_)) => false,
        };
        if !taken {
            return Ok((temporary, file));
        }
    }
}

/// Removes left-over temporary files. Best effort: files that cannot be listed, locked or removed
/// stay.
fn remove_left_over(folder: &Path, name: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary_of(name, &entry.file_name())
            && entry.file_type().is_ok_and(|t| t.is_file())
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            temporary::remove_left_over(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_temporary_files() {
        let name = OsStr::new("a.gguf");
        assert!(is_temporary_of(name, &temporary_name(name, 7)));
        for other in [
            "a.gguf",
            ".a.gguf",
            ".a.gguf.tmp",
            ".a.gguf.x-1.tmp",
            ".b.gguf.1-1.tmp",
            "a.gguf.1-1.tmp",
        ] {
            assert!(!is_temporary_of(name, OsStr::new(other)), "{other}");
        }
    }

    #[test]
    fn replaces_whole_or_not_at_all_and_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        fs::write(&path, "old").unwrap();
        let orphan = folder.path().join(".a.gguf.4000000000-0.tmp");
        fs::write(&orphan, "left by a killed process").unwrap();
        let failed = replace(&path, |file| {
            file.write_all(b"half").unwrap();
            Err::<(), Error>(Error::NotAFile { file: "x".into() })
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(temporary::removed_left_overs().contains(&orphan));
        replace(&path, |file| {
            assert!(!orphan.exists());
            // a second writer must leave the first one's temporary file alone
            remove_left_over(folder.path(), OsStr::new("a.gguf"));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
            file.write_all(b"new").unwrap();
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(Path::new(".."), |_| Ok::<(), Error>(())).is_err());
        assert!(replace(&folder.path().join("none/a.gguf"), |_| Ok::<(), Error>(())).is_err());
    }

    #[test]
    fn a_file_that_came_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let written = replace(&path, |file| {
            file.write_all(b"ours").unwrap();
            fs::write(&path, "theirs").unwrap();
            Ok::<(), Error>(())
        });
        assert!(
            matches!(written, Err(Error::NameTaken { .. })),
            "{written:?}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str| {
            replace(&at(name), |file| {
                file.write_all(b"new").unwrap();
                Ok::<(), Error>(())
            })
        };
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/file"), "old").unwrap();
        fs::set_permissions(at("other/file"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("other/file", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        write("two").unwrap();
        assert_eq!(fs::read(at("other/file")).unwrap(), b"new");
        assert_eq!(
            fs::metadata(at("other/file")).unwrap().permissions().mode() & 0o777,
            0o600
        );
        symlink("other/fresh", at("dangling")).unwrap();
        write("dangling").unwrap();
        assert_eq!(fs::read(at("other/fresh")).unwrap(), b"new");
        symlink("circle", at("circle")).unwrap();
        assert!(write("circle").is_err());
        for link in ["one", "two", "dangling", "circle"] {
            assert!(
                fs::symlink_metadata(at(link)).unwrap().is_symlink(),
                "{link}"
            );
        }
        assert!(matches!(
            write("other"),
            Err(Error::Target {
                got: "a folder",
                ..
            })
        ));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(matches!(
            write("socket"),
            Err(Error::Target {
                got: "a socket",
                ..
            })
        ));
        assert!(matches!(
            check_replaceable(&at("socket")),
            Err(Error::Target { .. })
        ));
        check_replaceable(&at("new")).unwrap();
        assert!(!at("new").exists());
    }
}
