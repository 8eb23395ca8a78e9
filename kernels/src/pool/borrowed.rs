//! Work that borrows from the pool's caller, and ends with the call.

use super::{Member, Work};

/// Work on data that the pool's caller has borrowed.
pub(super) struct Borrowed {
    pub(super) work: &'static (dyn Fn(usize) + Sync),
    /// Every thread is in the team, and all begin together.
    pub(super) everybody: bool,
}

/// Extends the lifetime of a borrow; see `Pool::run_borrowed`.
pub(super) fn as_if_lasting<'a>(
    work: &'a (dyn Fn(usize) + Sync + 'a),
) -> &'static (dyn Fn(usize) + Sync) {
    // SAFETY: only the lifetime changes. `Pool::run_borrowed`, which gets it, does not return
    // before the last call.
    unsafe {
        std::mem::transmute::<&'a (dyn Fn(usize) + Sync + 'a), &'static (dyn Fn(usize) + Sync)>(
            work,
        )
    }
}

impl Work for Borrowed {
    fn sections(&self) -> usize {
        if self.everybody { 2 } else { 1 }
    }

    fn run(&self, member: &Member<'_>) {
        if member.section + 1 == self.sections() {
            (self.work)(member.thread);
        }
    }

    fn can_repeat(&self, _section: usize) -> bool {
        false
    }

    fn carry(&self, _section: usize, _from: usize, _to: usize) -> bool {
        false
    }

    fn resume(&self, _section: usize, _place: usize) {}
}
