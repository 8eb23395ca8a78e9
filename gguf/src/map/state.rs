//! What can be seen of a file from outside, by which a change of it is noticed.

use std::fs;
use std::time::SystemTime;

/// What a file looks like from outside.
#[derive(PartialEq, Eq)]
pub(super) struct State {
    pub(super) len: u64,
    modified: Option<SystemTime>,
    /// Which file it is: device and number. Another one of the same name is not the one that is
    /// mapped.
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
