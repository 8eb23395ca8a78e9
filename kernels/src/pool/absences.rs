//! For tests: threads go missing as on a busy machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Threads that go missing now and then, as on a busy machine.
pub(super) struct Absences {
    /// Of a sequence of pseudo-random numbers.
    state: AtomicU64,
    /// On average one in this many sections is late.
    one_of: u64,
}

impl Absences {
    /// One of `one_of` sections is late, at least one of all.
    pub(super) fn new(seed: u64, one_of: u64) -> Absences {
        Absences {
            state: AtomicU64::new(seed),
            one_of: one_of.max(1),
        }
    }

    /// A thread is in the middle of something, and may be late for it; so much less often than one
    /// of `one_of`.
    pub(super) fn pass(&self, rarer: u64) {
        let n = self
            .state
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32;
        if n.is_multiple_of(self.one_of * rarer) {
            // long enough to be left behind
            let longer = if cfg!(miri) { 200 } else { 1 };
            std::thread::sleep(longer * Duration::from_micros(100 + n % 2000));
        }
    }
}
