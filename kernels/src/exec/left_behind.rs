//! Threads that a step has left behind, which may still read pages that later steps write.

use std::sync::Weak;

use super::Executor;
use super::frame::Frame;
use crate::pool::Pool;

impl Executor {
    /// Waits for threads that were left behind, before another executor writes to the same pages.
    pub fn settle(&mut self) {
        let shared = self.pool.clone();
        let mut pool = shared.lock();
        if !pool.is_together() {
            pool.settle();
        }
        self.unfinished.clear();
    }

    /// Makes sure that no thread left behind in an earlier step reads pages that this one writes.
    pub(super) fn keep_clear_of(&mut self, frame: &Frame, pool: &mut Pool) {
        if pool.is_together() {
            self.unfinished.clear();
        } else if self
            .unfinished
            .iter()
            .filter_map(Weak::upgrade)
            .any(|old| frame.writes_what_is_read_by(&old))
        {
            pool.settle();
            self.unfinished.clear();
        }
    }
}
