//! For tests: threads that go missing as on a busy machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Threads that go missing now and then, as on a busy machine.
pub(super) struct Absences {
    /// State of a sequence of pseudo-random numbers.
    state: AtomicU64,
    /// On average one in this many sections is late.
    one_of: u64,
}

impl Absences {
    /// Makes one in `one_of` sections late, all if that is 0 or 1.
    pub(super) fn new(seed: u64, one_of: u64) -> Absences {
        Absences {
            state: AtomicU64::new(seed),
            one_of: one_of.max(1),
        }
    }

    /// May delay a thread in the middle of its work, `rarer` times less often than one in `one_of`.
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
