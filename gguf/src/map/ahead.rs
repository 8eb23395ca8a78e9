//! Hints to the system about coming reads. They affect nothing but the duration of reads.

use std::sync::atomic::Ordering;

use super::{Bytes, Mapped};

/// Read-ahead distance in bytes of sequential reads: enough to keep a fast disk busy, and small
/// beside the system's page cache.
const AHEAD: usize = 64 << 20;
/// Bytes to request at a time.
const ASKED: usize = 4 << 20;

impl Bytes {
    /// Tells the system that everything from `at` on will be read, in order, so that the disk works
    /// while earlier bytes are processed. Does nothing for bytes in memory.
    pub(crate) fn ahead(&self, at: usize) {
        match self {
            Bytes::Shared(whole, range) => whole.ahead(range.start.saturating_add(at)),
            Bytes::Mapped(mapped) => {
                let until = at.saturating_add(AHEAD).min(mapped.map.len());
                let asked = mapped.asked.load(Ordering::Relaxed);
                let start = asked.max(at);
                let len = until.saturating_sub(start);
                let enough = len >= ASKED || len > 0 && until == mapped.map.len();
                // a range another thread requests is not requested twice
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
    }

    /// Tells the system that `start..end` will be read individually. Does nothing for bytes in
    /// memory.
    pub(crate) fn want(&self, start: usize, end: usize) {
        match self {
            Bytes::Shared(whole, range) => {
                let at = |i: usize| range.start.saturating_add(i).min(range.end);
                whole.want(at(start), at(end));
            }
            Bytes::Mapped(Mapped { map, .. }) => {
                let end = end.min(map.len());
                if let Some(len) = end.checked_sub(start).filter(|&len| len > 0) {
                    // only a hint, so a failure is ignored
                    #[cfg(unix)]
                    let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
                    // Windows reads ahead by itself
                    #[cfg(not(unix))]
                    let _ = len;
                }
            }
            Bytes::Made { .. } | Bytes::Held(_) => {}
        }
    }
}
