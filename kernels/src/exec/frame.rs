//! One step as the pool's threads see it: its inputs, and what they ask of it.

use std::ops::Range;
use std::sync::Arc;

use super::arena::Arenas;
use super::extent::Extent;
use super::model::Model;
use super::plan::Section;
use super::scratch::Scratches;
use crate::kv::KvPages;
use crate::program::{Slot, StateWrite, Step, StepSequence, TokenRow, UsedAdapter};
use octavo_simd::generic::attention::PAGE;

/// A tap: receives the operation's number, rows, width and values `[rows][width]`. If it returns
/// values, as many of them, they replace the operation's result.
pub type TapFn<'a> = dyn FnMut(usize, usize, usize, &[f32]) -> Option<Vec<f32>> + Send + 'a;

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
    pub(super) rows: Vec<TokenRow>,
    /// Rows with outputs.
    pub(super) output_rows: Vec<usize>,
    /// Block tables of the sequences, for each group of the cache's layers.
    pub(super) tables: Vec<Vec<Vec<u32>>>,
    /// Positions of the sequences at the end of the step.
    pub(super) ends: Vec<usize>,
    /// The sequences' rows and the places of their states, for programs that keep states.
    pub(super) spans: Vec<Span>,
    /// Input values of [`Op::Input`].
    pub(super) input: Vec<f32>,
    /// Embedding inputs, indexed by [`TokenRow::embedding_input`].
    pub(super) embedding_inputs: Vec<f32>,
    /// Adapters of each sequence.
    pub(super) adapters: Vec<Vec<UsedAdapter>>,
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
        let span = |s: &StepSequence<'_>| {
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
            .rows_of(slot, self.extent.rows, self.extent.outputs)
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
