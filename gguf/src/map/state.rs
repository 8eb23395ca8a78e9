//! A file's observable state, by which a change is detected.

use std::fs;
use std::time::SystemTime;

/// Observable state of a file.
#[derive(PartialEq, Eq)]
pub(super) struct State {
    pub(super) len: u64,
    modified: Option<SystemTime>,
    /// Device and inode number. Another file of the same name is not the mapped one.
    #[cfg(unix)]
    id: (u64, u64),
}

impl State {
    pub(super) fn of(meta: &fs::Metadata) -> State {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        State {
            len: meta.len(),
            modified: meta.modified().ok(),
            #[cfg(unix)]
            id: (meta.dev(), meta.ino()),
        }
    }

    pub(super) fn same_file(&self, other: &State) -> bool {
        #[cfg(unix)]
        return self.id == other.id;
        #[cfg(not(unix))]
        return self.len == other.len || self.modified == other.modified;
    }
}
