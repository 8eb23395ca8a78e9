//! Files and folders that are only there while they are made, and go with the process also where a
//! signal ends it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All that there are. Whoever makes, renames or removes one holds this, so that a signal never
/// comes in between.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    // a set is sound wherever a thread panicked
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every temporary file and folder of this process. From then on none can be made or get
/// its name: who tries waits forever. For a thread that was told of a signal and ends the program
/// next.
pub fn remove_temporaries() {
    let live = live();
    live.iter().for_each(|path| remove(path));
    std::mem::forget(live);
}

/// Best effort: what brought us here matters more than what keeps a file from being removed.
fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => drop(fs::remove_dir_all(path)),
        _ => drop(fs::remove_file(path)),
    }
}

/// A temporary file or folder with all that is in it: removed when this is dropped and by
/// [`remove_temporaries`].
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Takes over what was made at `path`.
    pub fn new(path: PathBuf) -> Temporary {
        live().insert(path.clone());
        Temporary {
            path,
            renamed: false,
        }
    }

    /// Makes a new file.
    pub(crate) fn create(path: PathBuf) -> io::Result<(Temporary, File)> {
        let mut live = live();
        let file = File::create_new(&path)?;
        live.insert(path.clone());
        Ok((
            Temporary {
                path,
                renamed: false,
            },
            file,
        ))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the name under which it stays.
    ///
    /// # Errors
    /// Whatever keeps it from being renamed; it is removed then.
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
        fs::create_dir(&a).unwrap();
        fs::write(a.join("in it"), "x").unwrap();
        Temporary::new(a.clone()).rename(&b).unwrap();
        assert!(b.join("in it").exists() && !live().contains(&a));
        drop(Temporary::new(b.clone()));
        assert!(!b.exists());
        // what cannot be renamed is removed, and nobody waits for the lock
        let (temporary, _) = Temporary::create(a.clone()).unwrap();
        assert!(temporary.rename(&dir.path().join("none/a")).is_err());
        assert!(!a.exists());
    }
}
