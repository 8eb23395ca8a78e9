//! A pool shared by several executors, which use it by turns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Pool;

/// A pool that several executors use, one step at a time. Pools of their own would have more
/// threads than there are CPUs, and one's threads, waiting for its next step, would slow down the
/// other's.
#[derive(Clone)]
pub struct SharedPool(Arc<Mutex<Pool>>);

impl SharedPool {
    /// Locks the pool for exclusive use.
    pub fn lock(&self) -> MutexGuard<'_, Pool> {
        // a pool stays usable when its work panics
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Pool> for SharedPool {
    fn from(pool: Pool) -> SharedPool {
        SharedPool(Arc::new(Mutex::new(pool)))
    }
}

impl std::fmt::Debug for SharedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedPool").finish_non_exhaustive()
    }
}
