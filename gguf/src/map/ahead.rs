//! What the system is told of reads to come. All of it are wishes: nothing depends on them but how
//! long a read takes.

use std::sync::atomic::Ordering;

use super::{Bytes, Mapped};

/// How far ahead of whoever reads a file in order the system is asked to read: enough to keep a
/// fast disk busy, and little beside what the system may keep of files.
const AHEAD: usize = 64 << 20;
/// So much is asked for at a time.
const ASKED: usize = 4 << 20;

impl Bytes {
    /// Tells the system that all from `at` on is going to be read, in order, so that the disk works
    /// while what comes before is worked on. Does nothing for bytes in memory.
    pub(crate) fn ahead(&self, at: usize) {
        #[cfg(unix)]
        match self {
            Bytes::Shared(whole, range) => whole.ahead(range.start.saturating_add(at)),
            Bytes::Mapped(mapped) => {
                let until = at.saturating_add(AHEAD).min(mapped.map.len());
                let asked = mapped.asked.load(Ordering::Relaxed);
                let start = asked.max(at);
                let len = until.saturating_sub(start);
                let enough = len >= ASKED || len > 0 && until == mapped.map.len();
                // what another thread asks for need not be asked for twice
                let (set, same) = (Ordering::Relaxed, Ordering::Relaxed);
                if enough
                    && mapped
                        .asked
                        .compare_exchange(asked, until, set, same)
                        .is_ok()
                {
                    self.want(start, until);
                }
            }
            Bytes::Made { .. } | Bytes::Held(_) => {}
        }
        #[cfg(not(unix))]
        let _ = at;
    }

    /// Tells the system that `start..end` is going to be read, by itself. Does nothing for bytes in
    /// memory.
    pub(crate) fn want(&self, start: usize, end: usize) {
        #[cfg(unix)]
        match self {
            Bytes::Shared(whole, range) => {
                let at = |i: usize| range.start.saturating_add(i).min(range.end);
                whole.want(at(start), at(end));
            }
            Bytes::Mapped(Mapped { map, .. }) => {
                let end = end.min(map.len());
                if let Some(len) = end.checked_sub(start).filter(|&len| len > 0) {
                    // only a wish
                    let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
                }
            }
            Bytes::Made { .. } | Bytes::Held(_) => {}
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }
}
