//! Faults that tests plant in a rank. No program that is released has them: they are a feature.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which rank panics, and how many times it gathers before: `1:5000`.
const PANIC: &str = "OCTAVO_PANIC_RANK";

/// What a rank calls its version, in place of what it is.
const VERSION: &str = "OCTAVO_RANK_VERSION";

static GATHERS: AtomicUsize = AtomicUsize::new(0);

/// Panics if this is the rank and the time.
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

/// The version of this rank.
pub(super) fn version(own: String) -> String {
    std::env::var(VERSION).unwrap_or(own)
}
