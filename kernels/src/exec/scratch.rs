//! What each thread needs to itself during a step.

use std::cell::UnsafeCell;

use super::arena::Extent;
use super::{GENERATED_ROWS, MAX_QUERIES, Model, PANEL_FLOATS, STRIP_PAIR, UNITS, sums_len};
use crate::generic::attention::{MAX_HEAD_DIM, padded};
use crate::memory::Floats;
use crate::table::MAX_R;

/// What one thread needs to itself.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) panel: Floats,
    pub(super) sums: Floats,
    pub(super) q: Floats,
    pub(super) out: Floats,
    pub(super) strip: Floats,
    /// Of the matrix unit's attention.
    pub(super) unit: Floats,
}

/// The scratch of each thread of the pool.
pub(super) struct Scratches(Box<[UnsafeCell<Scratch>]>);

// SAFETY: each is used by the thread of its number only, see `of`.
unsafe impl Sync for Scratches {}

impl Scratches {
    pub(super) fn new(threads: usize) -> Scratches {
        Scratches((0..threads).map(|_| UnsafeCell::default()).collect())
    }

    /// The scratch of a thread.
    ///
    /// # Safety
    /// The calling thread is that of the number, and has no other reference to its scratch.
    #[allow(clippy::mut_from_ref, reason = "each thread has its own")]
    pub(super) unsafe fn of(&self, thread: usize) -> &mut Scratch {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0[thread].get() }
    }
}

impl Scratch {
    /// Makes room for a step.
    pub(super) fn reserve(&mut self, model: &Model, extent: &Extent) {
        self.panel.grow(STRIP_PAIR * PANEL_FLOATS);
        self.sums.grow(UNITS * sums_len(extent.most_rows()));
        self.q.grow(MAX_QUERIES * MAX_HEAD_DIM);
        self.out.grow(MAX_QUERIES * padded(MAX_HEAD_DIM));
        let rows = extent.most_rows().min(GENERATED_ROWS);
        self.strip.grow(2 * STRIP_PAIR * MAX_R * rows);
        if let Some(unit) = model.unit {
            let caches = model.program.caches.iter();
            let bytes = caches.map(|kv| (unit.scratch)(kv.head_dim)).max();
            self.unit.grow(bytes.unwrap_or(0) / 4);
        }
    }
}
