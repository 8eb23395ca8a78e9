//! Rows of which each rank has computed a part.

use super::{Collective, Cut, Part, Slot};

impl Part<'_> {
    fn ranks(&self) -> &dyn Collective {
        let ranks = self.model.ranks.as_deref();
        ranks.expect("`check`: a program that gathers has others")
    }

    /// Hands the other ranks this one's part of some rows, and takes theirs.
    ///
    /// # Safety
    /// As [`Part::run`]. *Ranks*: the first member does it, in a section that is not repeated.
    pub(super) unsafe fn exchange(&self, x: Slot, cut: Cut, out: Slot) {
        let rows = self.n_rows(x);
        if self.w.rank > 0 || rows == 0 {
            return;
        }
        let (ranks, n) = (self.ranks(), rows * self.width(x));
        let lens = cut.lens(rows, ranks.ranks());
        // SAFETY: the input is finished, and nobody else is at the other values in this section;
        // both hold whole rows of the result.
        unsafe {
            let mine = self.view.buffers[x].read(0, n);
            let len = rows * self.width(out);
            if cut.is_in_order(rows) {
                ranks.all_gather(mine, &lens, self.view.buffers[out].write(0, len));
                return;
            }
            ranks.all_gather(mine, &lens, self.view.parts.write(0, len));
            if self.extent.role == super::Role::Generated {
                (0..rows).for_each(|row| self.join_row(row, cut, out));
            }
        }
    }

    /// Brings parts from all ranks into rows.
    ///
    /// # Safety
    /// As [`Part::run`]. *Shares* of rows, `grain` at a time.
    pub(super) unsafe fn join_parts(&self, cut: Cut, out: Slot, grain: usize) {
        let rows = self.n_rows(out);
        if cut.is_in_order(rows) {
            return;
        }
        for row in self.w.share(rows, grain) {
            // SAFETY: this row is of this member's share, and the parts are finished.
            unsafe { self.join_row(row, cut, out) }
        }
    }

    /// # Safety
    /// This row is the caller's, and nobody writes parts meanwhile.
    unsafe fn join_row(&self, row: usize, cut: Cut, out: Slot) {
        let (rows, ranks) = (self.n_rows(out), self.ranks().ranks());
        let mut before = 0;
        for rank in 0..ranks {
            let part = cut.of(rank, ranks);
            let first = before + row * cut.pieces * part.len();
            for piece in 0..cut.pieces {
                let at = piece * cut.width;
                // SAFETY: the caller's promise; `exchange` has brought so many values.
                unsafe {
                    let from = self.view.parts.read(first + piece * part.len(), part.len());
                    self.row_mut(out, row, at + part.start..at + part.end)
                        .copy_from_slice(from);
                }
            }
            before += rows * cut.pieces * part.len();
        }
    }
}
