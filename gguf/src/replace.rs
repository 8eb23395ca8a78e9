//! Replaces a file as a whole: a temporary file in the same folder, flushed to the disk, then renamed.
//!
//! A killed process leaves its temporary file behind. Each is locked while its writer lives, so the next writer of the
//! same file can tell the left-over ones by their free lock and removes them.

use crate::{Error, error::label};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Removes the temporary file unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // the error that brought us here matters more than this one, and the next writer tries again
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Calls `write` with a new file which then takes the place of `path`: whoever looks sees the file of before, or a whole
/// new one. If `write` fails nothing is left behind. [`Writer`](crate::Writer) writes models this way; this is for other
/// formats.
///
/// # Errors
/// Those of `write`, or what kept the file from being created or renamed.
pub fn replace<T, E: From<Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<T, E>) -> Result<T, E> {
    let failed = |action| move |source| Error::Io { file: label(path), action, source };
    let name = path.file_name().ok_or_else(|| Error::NotAFile { file: label(path) })?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    remove_left_over(folder, name);
    let mut temporary = create(folder, name).map_err(failed("create a temporary file beside it"))?;
    let result = write(&mut temporary.file)?;
    temporary.file.sync_all().map_err(failed("write it to the disk"))?;
    fs::rename(&temporary.path, path).map_err(failed("give it its name"))?;
    temporary.renamed = true;
    // only Unix can flush a folder
    #[cfg(unix)]
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed("write its folder to the disk"))?;
    Ok(result)
}

/// `.model.gguf.<process>-<number>.tmp` for `model.gguf`.
fn temporary_name(name: &OsStr, number: u64) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{number}.tmp", std::process::id()));
    temporary
}

fn is_temporary_of(name: &OsStr, other: &OsStr) -> bool {
    let middle = other.as_encoded_bytes().strip_prefix(b".").and_then(|o| o.strip_prefix(name.as_encoded_bytes()));
    let middle = middle.and_then(|o| o.strip_prefix(b".")).and_then(|o| o.strip_suffix(b".tmp"));
    middle.is_some_and(|m| m.contains(&b'-') && m.iter().all(|&b| b.is_ascii_digit() || b == b'-'))
}

fn create(folder: &Path, name: &OsStr) -> io::Result<Temporary> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let path = folder.join(temporary_name(name, NUMBER.fetch_add(1, Ordering::Relaxed)));
        let file = match File::create_new(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        let taken = match file.try_lock() {
            // another writer took it for a left-over one before it was locked
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => !path.try_exists()?,
            // a file system without locks: nobody can take it for a left-over one
            Err(TryLockError::Error(_)) => false,
        };
        if !taken {
            return Ok(Temporary { path, file, renamed: false });
        }
    }
}

/// Best effort: what cannot be listed, locked or removed stays.
fn remove_left_over(folder: &Path, name: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary_of(name, &entry.file_name())
            && entry.file_type().is_ok_and(|t| t.is_file())
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
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
        for other in ["a.gguf", ".a.gguf", ".a.gguf.tmp", ".a.gguf.x-1.tmp", ".b.gguf.1-1.tmp", "a.gguf.1-1.tmp"] {
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
            io::Write::write_all(file, b"half").unwrap();
            Err::<(), Error>(Error::NotAFile { file: "x".into() })
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace(&path, |file| {
            assert!(!orphan.exists());
            // a second writer must leave the first one's temporary file alone
            remove_left_over(folder.path(), OsStr::new("a.gguf"));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
            io::Write::write_all(file, b"new").unwrap();
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(Path::new(".."), |_| Ok::<(), Error>(())).is_err());
        assert!(replace(&folder.path().join("none/a.gguf"), |_| Ok::<(), Error>(())).is_err());
    }
}
