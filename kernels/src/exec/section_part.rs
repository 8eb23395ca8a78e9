//! One thread's part of a step: the items it takes, and the buffers it may borrow.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::arena::View;
use super::experts::ExpertProduct;
use super::frame::Frame;
use super::matmul::Product;
use super::plan::{Stage, Task};
use super::select::Select;
use crate::op::Op;
use crate::pool::Member;
use crate::program::{Attend, Slot};

/// One member's part of a section.
pub(super) struct SectionPart<'a> {
    pub(super) frame: &'a Frame,
    pub(super) view: &'a View,
    pub(super) counters: &'a [AtomicUsize],
    /// See [`super::arena::Progress::pieces`].
    pub(super) finished_pieces: &'a [AtomicU32],
    /// Marks of the task's items: an item is done if its mark is this section's `mark`. Steps with
    /// taps record none.
    pub(super) done: &'a [AtomicU32],
    /// Whether any can be done before this member begins; see [`super::arena::Progress::resumed`].
    pub(super) resumed: bool,
    pub(super) mark: u32,
    pub(super) w: &'a Member<'a>,
}

impl SectionPart<'_> {
    /// Takes items of an operation's task, `count` in all, until there are no more or this member
    /// has to stop. The first `fixed` items are divided evenly among the members; each of the
    /// others goes to the first member that is free.
    pub(super) fn take_items(
        &self,
        op: usize,
        fixed: usize,
        count: usize,
        mut item: impl FnMut(usize),
    ) {
        // shares would be unequal where some items are done
        let fixed = if self.resumed && self.w.size > 1 {
            0
        } else {
            fixed
        };
        for i in self.w.share(fixed, 1) {
            if self.w.must_stop() {
                return;
            }
            item(i);
        }
        loop {
            let i = fixed + self.counters[op].fetch_add(1, Ordering::Relaxed);
            if i >= count || self.w.must_stop() {
                return;
            }
            item(i);
        }
    }

    /// Whether an item of the task was done before this member began.
    pub(super) fn is_done(&self, item: usize) -> bool {
        // the marks of other members are not read without need: that would cost them the cache line
        self.resumed
            && self
                .done
                .get(item)
                .is_some_and(|done| done.load(Ordering::Relaxed) == self.mark)
    }

    /// Marks an item of the task as done: a thread that takes this section over continues from
    /// there.
    pub(super) fn note_done(&self, item: usize) {
        if let Some(done) = self.done.get(item) {
            done.store(self.mark, Ordering::Release);
        }
    }
}

impl Deref for SectionPart<'_> {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        self.frame
    }
}

impl SectionPart<'_> {
    /// Values `part` of row `r` of a buffer: no more than are needed, since other threads may be
    /// writing the others.
    ///
    /// # Safety
    /// These values are finished: no thread writes them while the result is used.
    pub(super) unsafe fn row(&self, slot: Slot, r: usize, part: Range<usize>) -> &[f32] {
        let width = self.width(slot);
        assert!(r < self.n_rows(slot) && part.start <= part.end && part.end <= width);
        // SAFETY: the buffer holds n_rows * width values; the caller keeps writers away from these.
        unsafe { self.view.buffers[slot].read(r * width + part.start, part.len()) }
    }

    /// Values `part` of row `r` of a buffer.
    ///
    /// # Safety
    /// These values are the calling thread's: no other thread reads or writes them while the result
    /// is used.
    #[allow(
        clippy::mut_from_ref,
        reason = "the values belong to the caller, not to this"
    )]
    pub(super) unsafe fn row_mut(&self, slot: Slot, r: usize, part: Range<usize>) -> &mut [f32] {
        let width = self.width(slot);
        assert!(r < self.n_rows(slot) && part.start <= part.end && part.end <= width);
        // SAFETY: the buffer holds n_rows * width values; the caller keeps others away from these.
        unsafe { self.view.buffers[slot].write(r * width + part.start, part.len()) }
    }

    /// Runs this member's share of a task.
    ///
    /// # Safety
    /// Every member of the team runs the same tasks, section by section, in a place that has room
    /// for the step. The inputs of a task were finished in earlier sections, or by this member
    /// where tasks divide their values alike.
    pub(super) unsafe fn run(&self, task: &Task) {
        let at = task.op;
        let instruction = &self.model.program.ops[at];
        // SAFETY: all of these need finished inputs and a place with room, which the caller
        // promises.
        unsafe {
            match (task.stage, &instruction.op) {
                (Stage::Angles, _) => self.angles(),
                // thread 0 shows it to the tap, see `Executor::step`
                (Stage::Tap, _) => {}
                (Stage::Exchange, &Op::AllGather { x, cut }) => {
                    self.exchange(x, cut, instruction.result());
                }
                (Stage::Prepare(form), Op::MatMul { x, w }) => {
                    self.prepare(form, *x, &self.model.matrices[*w], task);
                }
                (Stage::Whole(then), Op::MatMul { x, w }) => self.matmul(&Product {
                    task,
                    x: *x,
                    matrix: &self.model.matrices[*w],
                    out: instruction.result(),
                    then,
                }),
                (
                    stage @ (Stage::Prepare(_) | Stage::Whole(_)),
                    &Op::ExpertMatMul { x, w, ids, .. },
                ) => {
                    let product = ExpertProduct {
                        task,
                        x,
                        ids,
                        matrix: &self.model.matrices[w],
                        out: instruction.result(),
                    };
                    match stage {
                        Stage::Prepare(form) => self.prepare_experts(form, &product),
                        _ => self.expert_matmul(&product),
                    }
                }
                (
                    stage @ (Stage::Pieces | Stage::Whole(_)),
                    &Op::Attention {
                        q,
                        seen,
                        cache,
                        scores,
                        ref sinks,
                    },
                ) => {
                    let attend = Attend {
                        q,
                        seen,
                        cache,
                        scores,
                        out: instruction.result(),
                    };
                    if stage == Stage::Pieces {
                        self.attend_pieces(task, &attend, sinks.as_deref());
                    } else {
                        self.attend_prompt(at, &attend, sinks.as_deref());
                    }
                }
                (_, Op::SelectKeys { .. }) => self.select(task, &Select::of(instruction)),
                _ => self.rowwise(instruction, task.division.grain()),
            }
        }
    }
}
