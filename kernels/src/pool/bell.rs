//! Sleeping until other threads have published a change.
//!
//! A publisher rings after publishing; a waiting thread looks again after it has said that it
//! sleeps. Between the two steps of each there is a sequentially consistent fence, so that either
//! the ringing thread sees the sleeper, or the sleeper sees the published value: no wake-up is
//! lost. Ringing costs a fence and a load where no thread sleeps.

use super::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence};

/// A place where threads sleep until they are rung.
pub(crate) struct Bell {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell {
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            rung: Condvar::new(),
        }
    }

    /// Sleeps until `done` returns true, which is asked again after every [`ring`](Bell::ring).
    pub(crate) fn sleep_until(&self, done: impl Fn() -> bool) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut guard = held(&self.lock);
        while !done() {
            guard = self
                .rung
                .wait(guard)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes all sleepers, which check again whether they are done.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            // a sleeper that has checked, but does not wait yet, holds the lock: it must not miss
            // this
            drop(held(&self.lock));
            self.rung.notify_all();
        }
    }
}

fn held(lock: &Mutex<()>) -> MutexGuard<'_, ()> {
    // only a thread that is ending anyway panics under the lock, which protects no data
    lock.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
