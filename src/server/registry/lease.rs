//! Holds of requests: on a loaded model, or on a place among those that wait for one.

use std::sync::Arc;
use std::time::Instant;

use super::Registry;
use crate::error::ApiError;

/// How a request holds its model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// Whether it loads the model.
    pub(crate) loads: bool,
    /// Whether it counts as use of the model, or only looks at it.
    pub(crate) uses: bool,
}

/// A request's hold on a loaded model, which is not unloaded before this is dropped.
pub(crate) struct Lease {
    pub(super) registry: Arc<Registry>,
    pub(super) i: usize,
    pub(super) hold: Hold,
}

impl Lease {
    /// Begins to unload the model, which waits for this to be dropped.
    ///
    /// # Errors
    /// If it stays loaded.
    pub(crate) fn unload(&self) -> Result<(), ApiError> {
        self.registry.unload(self.i)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let slot = &mut state.slots[self.i];
        slot.users -= 1;
        if self.hold.uses {
            slot.last_used = Instant::now();
        }
        state.has_changed = self.registry.limits.idle.is_some();
        self.registry.advance(&mut state);
    }
}

/// A request that waits for a model.
pub(super) struct Waiting {
    pub(super) registry: Arc<Registry>,
    pub(super) i: usize,
    /// Number of attempts to load the model that had ended before.
    pub(super) attempts: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        state.slots[self.i].waiting -= 1;
        self.registry.advance(&mut state);
    }
}
