//! Gathering of rows of which each rank has computed a part.

use std::ops::Range;

use super::section_part::SectionPart;
use crate::program::{Phase, Slot};
use crate::ranks::{Collective, Cut};

impl SectionPart<'_> {
    fn ranks(&self) -> &dyn Collective {
        let ranks = self.model.ranks.as_deref();
        ranks.expect("`check`: a program that gathers has others")
    }

    /// Exchanges this rank's part of some rows for those of the others.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Ranks*: the first member does it, in a section that is not
    /// repeated.
    pub(super) unsafe fn exchange(&self, x: Slot, cut: Cut, out: Slot) {
        let rows = self.n_rows(x);
        if self.w.rank > 0 || rows == 0 {
            return;
        }
        let (ranks, n) = (self.ranks(), rows * self.width(x));
        let lens = cut.lens(rows, ranks.ranks());
        // SAFETY: the input is finished, and no other thread touches the other values in this
        // section; both hold whole rows of the result.
        unsafe {
            let mine = self.view.buffers[x].read(0, n);
            if let Some(ranks) = self.model.ranks_that_show(self.extent.phase) {
                ranks.show(mine, |rank, part| self.join(rank, part, 0..rows, cut, out));
                return;
            }
            let len = rows * self.width(out);
            if cut.is_in_order(rows) {
                ranks.all_gather(mine, &lens, self.view.buffers[out].write(0, len));
                return;
            }
            ranks.all_gather(mine, &lens, self.view.parts.write(0, len));
            if self.extent.phase == Phase::Decode {
                (0..rows).for_each(|row| self.join_row(row, cut, out));
            }
        }
    }

    /// Joins the parts from all ranks into rows.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows, `grain` at a time.
    pub(super) unsafe fn join_parts(&self, cut: Cut, out: Slot, grain: usize) {
        let rows = self.n_rows(out);
        let are_shown = self.model.ranks_that_show(self.extent.phase).is_some();
        if are_shown || cut.is_in_order(rows) {
            return;
        }
        for row in self.w.share(rows, grain) {
            // SAFETY: this row is of this member's share, and the parts are finished.
            unsafe { self.join_row(row, cut, out) }
        }
    }

    /// # Safety
    /// This row is the caller's, and no thread writes parts meanwhile.
    unsafe fn join_row(&self, row: usize, cut: Cut, out: Slot) {
        let (rows, ranks) = (self.n_rows(out), self.ranks().ranks());
        let mut before = 0;
        for rank in 0..ranks {
            let len = cut.pieces * cut.of(rank, ranks).len();
            // SAFETY: the caller's promise; `exchange` has received that many values.
            unsafe {
                let part = self.view.parts.read(before + row * len, len);
                self.join(rank, part, row..row + 1, cut, out);
            }
            before += rows * len;
        }
    }

    /// Copies a rank's part of some rows into them.
    ///
    /// # Safety
    /// These rows are the caller's.
    unsafe fn join(&self, rank: usize, part: &[f32], rows: Range<usize>, cut: Cut, out: Slot) {
        let own = cut.of(rank, self.ranks().ranks());
        assert_eq!(
            part.len(),
            rows.len() * cut.pieces * own.len(),
            "rank {rank}"
        );
        if own.is_empty() {
            return;
        }
        let pieces = rows.flat_map(|row| (0..cut.pieces).map(move |piece| (row, piece)));
        for ((row, piece), from) in pieces.zip(part.chunks_exact(own.len())) {
            let at = piece * cut.width;
            // SAFETY: these rows are the caller's alone, and hold what all ranks have of a piece,
            // one behind the other.
            let to = unsafe { self.row_mut(out, row, at + own.start..at + own.end) };
            to.copy_from_slice(from);
        }
    }
}
