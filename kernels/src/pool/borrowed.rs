//! Work that lasts no longer than a call of the pool.

use super::{Member, Work};

/// Work on what the caller of the pool has borrowed.
pub(super) struct Borrowed {
    pub(super) work: &'static (dyn Fn(usize) + Sync),
    /// Every thread is in the team, and they begin together.
    pub(super) everybody: bool,
}

/// Makes a borrow look as if it lasted; see `Pool::run_borrowed`.
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
