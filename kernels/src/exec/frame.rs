//! One step as the pool's threads see it: its inputs, and the functions that the pool calls.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::arena::{Arenas, Extent, mark_of};
use super::items::Items;
use super::model::Model;
use super::part::Part;
use super::plan::Section;
use super::scratch::Scratches;
use super::{KvPages, Member, PAGE, Resource, Row, Sequence, Slot, Step, TapFn, Work};
use crate::program::StateWrite;

/// A step, kept alive while any thread works on it.
pub(super) struct Frame {
    pub(super) model: Arc<Model>,
    pub(super) arenas: Arc<Arenas>,
    pub(super) scratches: Arc<Scratches>,
    pub(super) kv: Arc<KvPages>,
    pub(super) extent: Extent,
    pub(super) tapped: bool,
    /// Sections of the plan to run: all, or a stage.
    pub(super) sections: Range<usize>,
    pub(super) rows: Vec<Row>,
    /// Rows with outputs.
    pub(super) wanted: Vec<usize>,
    /// Block tables of the sequences, for each group of the cache's layers.
    pub(super) tables: Vec<Vec<Vec<u32>>>,
    /// Positions of the sequences at the end of the step.
    pub(super) ends: Vec<usize>,
    /// The sequences' rows and the places of their states, for programs that keep states.
    pub(super) spans: Vec<Span>,
    /// Input values of [`Op::Input`].
    pub(super) input: Vec<f32>,
    /// Rows given in place of embeddings, indexed by [`Row::given`].
    pub(super) given: Vec<f32>,
}

/// The rows of a sequence in a step, and where its state is.
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) rows: usize,
    /// See [`StateUse`](crate::StateUse).
    pub(super) from: Option<u32>,
    pub(super) to: Vec<StateWrite>,
}

impl Span {
    /// Spans of a step.
    pub(super) fn all(step: &Step<'_>) -> Vec<Span> {
        let mut first = 0;
        let span = |s: &Sequence<'_>| {
            let span = Span {
                first,
                rows: s.tokens.len(),
                from: s.states.from,
                to: s.states.to.to_vec(),
            };
            first += span.rows;
            span
        };
        step.seqs.iter().map(span).collect()
    }
}

impl Frame {
    pub(super) fn section(&self, section: usize) -> &Section {
        let plan = self.model.plan(self.extent.phase, self.tapped);
        &plan.sections[self.sections.start + section]
    }

    /// Whether this step writes keys and values that another one may read.
    pub(super) fn writes_what_is_read_by(&self, other: &Frame) -> bool {
        self.rows.iter().any(|row| {
            let (index, slot) = (row.pos / PAGE, row.pos % PAGE);
            let writes = &self.tables[row.seq];
            other.tables.iter().zip(&other.ends).any(|(reads, end)| {
                writes.iter().zip(reads).any(|(written, read)| {
                    let seen = read.iter().take(end.div_ceil(PAGE)).enumerate();
                    let page = written[index];
                    seen.into_iter()
                        .any(|(i, p)| *p == page && i * PAGE + slot < *end)
                })
            })
        })
    }

    pub(super) fn n_rows(&self, slot: Slot) -> usize {
        self.model
            .program
            .rows_of(slot, self.extent.rows, self.extent.wanted)
    }

    pub(super) fn width(&self, slot: Slot) -> usize {
        self.model.program.slots[slot].width
    }

    /// Shows the result of an operation to the tap, and replaces it by the tap's values, if any.
    ///
    /// # Safety
    /// *Taps*: the operation is complete in that place, where no other thread reads or writes
    /// meanwhile.
    ///
    /// # Panics
    /// If the tap returns more or fewer values than it saw.
    pub(super) unsafe fn show(&self, at: usize, place: usize, tap: &mut TapFn<'_>) {
        let Some(out) = self.model.program.ops[at].out else {
            return;
        };
        let (rows, width) = (self.n_rows(out), self.width(out));
        // SAFETY: the operation is complete, and the buffer holds that many values.
        let (buffer, shown) = unsafe {
            let buffer = self.arenas.view(place).buffers[out];
            (buffer, buffer.read(0, rows * width))
        };
        if let Some(instead) = tap(at, rows, width, shown) {
            assert_eq!(instead.len(), rows * width, "values in place of others");
            // SAFETY: as above; the tap no longer borrows these values, and no other thread reads
            // or writes them.
            unsafe { buffer.write(0, rows * width) }.copy_from_slice(&instead);
        }
    }
}

impl Work for Frame {
    fn sections(&self) -> usize {
        self.sections.len()
    }

    fn run(&self, member: &Member<'_>) {
        // SAFETY: this thread is in that place, where no thread reserves room before it has left;
        // and the scratch of its number is its own.
        let (view, progress) = unsafe {
            self.scratches
                .of(member.thread)
                .reserve(&self.model, &self.extent);
            (
                self.arenas.view(member.place),
                self.arenas.progress(member.place),
            )
        };
        let counters = self.arenas.counters(member.place);
        let mark = mark_of(member.section);
        let resumed = progress.resumed == mark;
        let mut rest = &progress.done[..];
        for task in &self.section(member.section).tasks {
            let n_items = Items::of(&self.model, &self.extent, task).map_or(0, |items| items.count);
            let done;
            (done, rest) = if self.tapped {
                (&rest[..0], rest)
            } else {
                rest.split_at(n_items)
            };
            let finished_pieces = &progress.pieces[..];
            let part = Part {
                frame: self,
                view,
                counters,
                finished_pieces,
                done,
                resumed,
                mark,
                w: member,
            };
            // SAFETY: the place has room for this step, and all members run the same sections with
            // the same shares, one after the other.
            unsafe { part.run(task) }
            if member.has_stopped() {
                return;
            }
        }
    }

    fn can_repeat(&self, section: usize) -> bool {
        // values of other rows that stages hand on exist in one place only
        !self.extent.is_part() && self.section(section).can_repeat
    }

    fn patience(&self, section: usize) -> Duration {
        let section = self.section(section);
        let values =
            |resource: &Resource| self.model.carried_values(&self.extent, section, *resource);
        let bytes: usize = section
            .carried
            .iter()
            .map(|resource| 4 * values(resource))
            .sum();
        // 4 GB/s: the values are copied, then read again from cache lines that are not close by.
        // Waiting longer costs more than it saves where two programs take turns: each spins in the
        // time that the other's late thread needs.
        Duration::from_nanos(bytes as u64 / 4)
    }

    fn carry(&self, section: usize, from: usize, to: usize) -> bool {
        // SAFETY: the pool has found that no thread is in `to`, and that the section is being
        // worked on in `from`; it writes nothing that it reads, or it could not be repeated.
        unsafe {
            self.arenas
                .carry(&self.model, &self.extent, section, from, to)
        }
    }

    fn resume(&self, section: usize, place: usize) {
        // SAFETY: the pool has found that this thread is alone there.
        unsafe { self.arenas.resume(place, section, self.section(section)) }
    }

    fn enter(&self) {
        // SAFETY: the table is one of this CPU; `leave` follows on this thread.
        unsafe { (self.model.table.enter)() }
    }

    fn leave(&self) {
        // SAFETY: the table is one of this CPU, and this thread has entered.
        unsafe { (self.model.table.leave)() }
    }
}
