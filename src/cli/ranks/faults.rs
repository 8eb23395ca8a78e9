//! Faults that tests inject into a rank, behind a feature that no release has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Environment variable with the rank that panics and the number of gathers before that: `1:5000`.
const PANIC: &str = "OCTAVO_PANIC_RANK";

/// Environment variable with the version that a rank reports instead of its own.
const VERSION: &str = "OCTAVO_RANK_VERSION";

static GATHERS: AtomicUsize = AtomicUsize::new(0);

/// Panics if this is the injected rank and gather.
pub(super) fn at_gather(rank: usize) {
    static PLANTED: OnceLock<Option<(usize, usize)>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let said = std::env::var(PANIC).ok()?;
        let (rank, gathers) = said.split_once(':')?;
        Some((rank.parse().ok()?, gathers.parse().ok()?))
    });
    let gathers = GATHERS.fetch_add(1, Ordering::Relaxed);
    if planted.is_some_and(|planted| planted == (rank, gathers)) {
        panic!("a planted fault of rank {rank}");
    }
}

/// Returns the version that this rank reports.
pub(super) fn version(own: String) -> String {
    std::env::var(VERSION).unwrap_or(own)
}
