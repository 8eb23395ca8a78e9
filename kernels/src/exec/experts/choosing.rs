//! Expert routing and the combination of the experts' results: the work done row by row, before and
//! after the expert products.

use super::super::section_part::SectionPart;
use crate::exec::scratch::Scratch;
use crate::program::Slot;
use octavo_simd::generic::elementwise::Operands;
use octavo_simd::generic::routing::{self, Parts, TopGroups, place};

/// Columns of sums that a thread takes at a time: a few lines of each part.
const SUM_COLUMNS: usize = 64;

impl SectionPart<'_> {
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    pub(in crate::exec) unsafe fn softmax(&self, x: Slot, out: Slot) {
        let width = self.width(x);
        for r in self.w.share(self.n_rows(x), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, r, 0..width);
                let to = self.row_mut(out, r, 0..width);
                (self.model.table.softmax)(from.as_ptr(), width, to.as_mut_ptr());
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    pub(in crate::exec) unsafe fn top_k(&self, x: Slot, groups: Option<TopGroups>, out: Slot) {
        // SAFETY: the scratch at this thread's number is its own, and it is not borrowed elsewhere.
        let Scratch { scores, .. } = unsafe { self.scratches.of(self.w.thread) };
        for r in self.w.share(self.n_rows(x), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, r, 0..self.width(x));
                let to = self.row_mut(out, r, 0..self.width(out));
                routing::top_k(from, groups, scores, to);
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    pub(in crate::exec) unsafe fn gather(&self, x: Slot, ids: Slot, out: Slot) {
        for r in self.w.share(self.n_rows(x), 1) {
            // SAFETY: this row is of this member's share, and its inputs are finished.
            unsafe {
                let from = self.row(x, r, 0..self.width(x));
                let ids = self.row(ids, r, 0..self.width(ids));
                let to = self.row_mut(out, r, 0..self.width(out));
                for (to, id) in to.iter_mut().zip(ids) {
                    *to = from[place(*id, from.len())];
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    pub(in crate::exec) unsafe fn normalize(&self, x: Slot, least: f32, out: Slot) {
        let width = self.width(x);
        for r in self.w.share(self.n_rows(x), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let to = self.row_mut(out, r, 0..width);
                routing::normalize(self.row(x, r, 0..width), least, to);
            }
        }
    }

    /// The parts of `x`, as many as there are weights, each times its own.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of [`SUM_COLUMNS`] columns of rows of the result.
    pub(in crate::exec) unsafe fn weighted_sum(&self, x: Slot, weights: Slot, out: Slot) {
        let count = self.width(weights);
        // SAFETY: the caller's promise; rows of `x` are `count` parts as wide as the result.
        unsafe {
            self.sum_parts(
                [x, weights, out],
                (self.n_rows(out), count, self.width(out)),
            )
        }
    }

    /// Multiplies neighbours of a row with their factor: sums of one part each.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of [`SUM_COLUMNS`] neighbours with a common factor.
    pub(in crate::exec) unsafe fn scale_rows(&self, x: Slot, by: Slot, out: Slot) {
        let factors = self.width(by);
        let (sums, n) = (self.n_rows(out) * factors, self.width(out) / factors);
        // SAFETY: the caller's promise; a row has as many times n values as factors.
        unsafe { self.sum_parts([x, by, out], (sums, 1, n)) }
    }

    /// Computes `sums` sums of `count` parts of n values, each part times its weight.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the slots hold that many values. *Shares* of [`SUM_COLUMNS`] of the
    /// columns of sums.
    unsafe fn sum_parts(
        &self,
        [x, weights, out]: [Slot; 3],
        (sums, count, n): (usize, usize, usize),
    ) {
        let blocks = n.div_ceil(SUM_COLUMNS);
        for i in self.w.share(sums * blocks, 1) {
            let (r, first) = (i / blocks, i % blocks * SUM_COLUMNS);
            // SAFETY: these columns are of this member's share, and the inputs are finished.
            unsafe {
                let at = |slot: Slot, at: usize| self.view.buffers[slot].0.add(at);
                (self.model.table.weighted_sum)(&Parts {
                    x: (at(x, r * count * n + first).cast_const(), n),
                    weights: at(weights, r * count).cast_const(),
                    count,
                    n: SUM_COLUMNS.min(n - first),
                    y: at(out, r * n + first),
                });
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of the parts of rows.
    pub(in crate::exec) unsafe fn expert_bias(&self, x: Slot, bias: &[f32], ids: Slot, out: Slot) {
        let used = self.width(ids);
        let n = self.width(x) / used;
        for choice in self.w.share(self.n_rows(x) * used, 1) {
            // SAFETY: this part is of this member's share, and its inputs are finished. The bias
            // has whole parts, of which `place` names one.
            unsafe {
                let id = self.row(ids, choice / used, choice % used..choice % used + 1);
                let bias = &bias[place(id[0], bias.len() / n) * n..][..n];
                let at = |slot: Slot| self.view.buffers[slot].0.add(choice * n);
                (self.model.table.add)(&Operands {
                    a: (at(x).cast_const(), 0),
                    b: (bias.as_ptr(), 0),
                    y: (at(out), 0),
                    rows: 1,
                    n,
                });
            }
        }
    }
}
