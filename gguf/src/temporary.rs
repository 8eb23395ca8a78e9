//! Temporary files and folders: removed when they are dropped, and also when a signal ends the
//! process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All existing ones. Creating, renaming or removing one requires this lock, so that a signal never
/// comes in between.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    // a set stays valid wherever a thread panicked
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every temporary file and folder of this process. From then on none can be created or
/// renamed: threads that try wait forever. For the thread that handles a signal and ends the
/// program next.
pub fn remove_temporaries() {
    let live = live();
    live.iter().for_each(|path| remove(path));
    std::mem::forget(live);
}

/// Removed left-overs of earlier runs that were not reported yet.
static REMOVED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Returns the temporary files and folders removed since the last call: left-overs of runs that
/// ended uncleanly.
pub fn removed_left_overs() -> Vec<PathBuf> {
    std::mem::take(&mut *REMOVED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes a left-over of an earlier run, and records its name.
pub(crate) fn remove_left_over(path: PathBuf) {
    remove(&path);
    if !path.exists() {
        let mut removed = REMOVED.lock().unwrap_or_else(PoisonError::into_inner);
        removed.push(path);
    }
}

/// Removes a file or folder. Best effort: the failure that led here matters more than one to remove
/// a file.
fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => drop(fs::remove_dir_all(path)),
        _ => drop(fs::remove_file(path)),
    }
}

/// A temporary file or folder with all its contents: removed when this is dropped and by
/// [`remove_temporaries`].
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    renamed: bool,
    /// A folder's lock: while it is locked its run is alive.
    _lock: Option<File>,
}

impl Temporary {
    /// Creates a folder in `parent`, and removes those that earlier runs have left there.
    ///
    /// # Errors
    /// If `parent` accepts no new folder.
    pub fn folder(parent: &Path) -> io::Result<Temporary> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        remove_left_folders(parent);
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!(".octavo-{}-{number}.tmp", std::process::id()));
            let mut live = live();
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            live.insert(path.clone());
            break path;
        };
        tidy_up_at_the_end(remove_temporaries);
        // best effort: not every file system locks folders
        let lock = File::open(&path).ok();
        let lock = lock.filter(locks);
        Ok(Temporary {
            path,
            renamed: false,
            _lock: lock,
        })
    }

    /// Creates a file.
    pub(crate) fn create(path: PathBuf) -> io::Result<(Temporary, File)> {
        let mut live = live();
        let file = File::create_new(&path)?;
        live.insert(path.clone());
        drop(live);
        tidy_up_at_the_end(remove_temporaries);
        let temporary = Temporary {
            path,
            renamed: false,
            _lock: None,
        };
        Ok((temporary, file))
    }

    /// Returns the current path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames it to its permanent name.
    ///
    /// # Errors
    /// A failure to rename it; it is removed then.
    pub fn rename(mut self, to: &Path) -> io::Result<()> {
        let mut live = live();
        fs::rename(&self.path, to)?;
        live.remove(&self.path);
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let mut live = live();
            remove(&self.path);
            live.remove(&self.path);
        }
    }
}

#[cfg(unix)]
use crate::map::tidy_up_at_the_end;

/// Does nothing: on other systems there is no signal to wait for.
#[cfg(not(unix))]
fn tidy_up_at_the_end(_: fn()) {}

/// Locks a folder; returns whether that worked. Miri cannot lock folders.
fn locks(folder: &File) -> bool {
    !cfg!(miri) && folder.try_lock().is_ok()
}

/// Removes folders of runs that have ended. Best effort: those that cannot be listed or locked
/// stay.
fn remove_left_folders(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let middle = name
            .to_str()
            .and_then(|name| name.strip_prefix(".octavo-")?.strip_suffix(".tmp"));
        let is_ours = middle
            .and_then(|m| m.split_once('-'))
            .is_some_and(|(run, number)| [run, number].iter().all(|n| n.parse::<u64>().is_ok()));
        if is_ours
            && entry.file_type().is_ok_and(|found| found.is_dir())
            && let Ok(folder) = File::open(entry.path())
            && locks(&folder)
        {
            remove_left_over(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_when_it_is_dropped_and_stays_when_it_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let (temporary, _) = Temporary::create(a.clone()).unwrap();
        assert!(a.exists() && live().contains(&a));
        drop(temporary);
        assert!(!a.exists() && !live().contains(&a));
        let folder = Temporary::folder(dir.path()).unwrap();
        fs::write(folder.path().join("in it"), "x").unwrap();
        let was = folder.path().to_owned();
        folder.rename(&b).unwrap();
        assert!(b.join("in it").exists() && !live().contains(&was));
        drop(Temporary::folder(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // a file that cannot be renamed is removed, without waiting for the lock
        let (temporary, _) = Temporary::create(a.clone()).unwrap();
        assert!(temporary.rename(&dir.path().join("none/a")).is_err());
        assert!(!a.exists());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot lock folders")]
    fn folders_that_a_killed_run_left_are_removed_and_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(".octavo-4000000000-7.tmp");
        let others = [
            ".octavo-x-7.tmp",
            ".octavo-7.tmp",
            "octavo-4000000000-7.tmp",
        ];
        for name in others {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::create_dir(&left).unwrap();
        fs::write(left.join("model.gguf"), "half").unwrap();
        let first = Temporary::folder(dir.path()).unwrap();
        assert!(!left.exists());
        // the folder of a live run stays
        let second = Temporary::folder(dir.path()).unwrap();
        assert!(first.path().exists() && second.path() != first.path());
        assert!(removed_left_overs().contains(&left));
        drop((first, second));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), others.len());
    }
}
