//! Runs a [`Program`] on the thread pool: its operations in sections (`plan.rs`), each divided
//! among the available threads.
//!
//! Threads write to the same buffers at the same time. These rules say which thread may access
//! which values; every unsafe function here names the one that divides its work, and
//! `tools/miri.sh` checks every access of a small layer.
//!
//! - *Finished inputs*: the values that a task reads were written in an earlier section, or by this
//!   member in the same one, where both tasks divide their values alike (`plan.rs` puts them into
//!   one section only then).
//! - *Shares*: rows, heads of rows, groups or tiles are divided by [`Member::share`], so that each
//!   is one member's.
//! - *Items*: strips of products, and blocks or pieces of attention, are handed out by
//!   [`SectionPart::take_items`], so that each is one member's; and its part of the output is that
//!   of no other item (`items.rs`).
//! - *Scratch*: the scratch at a thread's number is its own.
//! - *Ranks*: one member exchanges values with the other ranks, in a section that is never
//!   repeated, and only that member touches the received values until the section ends.
//! - *Taps*: a result is shown to the tap, and may be replaced, in a section of its own, in which
//!   thread 0 alone touches buffers.
//! - *Places*: a member that was left behind stays in a place that no other member uses; the member
//!   taking over copies finished items from there, which are never written again.
//!
//! Every borrow of a buffer covers exactly the values that are read or written.

mod arena;
mod attention;
mod epilogue;
mod expert_sizes;
mod experts;
mod extent;
mod frame;
mod gemv;
mod grouping;
mod items;
mod left_behind;
mod lora;
mod matmul;
mod model;
mod plan;
mod ranks;
mod recurrent;
mod rows;
mod scratch;
mod section_part;
mod select;
mod sizes;
mod tiles;
mod work;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::fuse;
use crate::kv::{KvPages, KvStore};
use crate::matrix::Matrix;
use crate::op::{MatrixShape, Op};
use crate::pool::{Pool, SharedPool};
use crate::program::{Phase, Program, Step, StepSequence, TokenRow};
use crate::ranks::Collective;
use arena::Arenas;
use expert_sizes::ExpertSizes;
use extent::{Extent, WholeExtent};
pub use frame::TapFn;
use frame::{Frame, Span};
use model::Model;
use octavo_isa::Isa;
use octavo_simd::act::Form;
use octavo_simd::generic::attention::MAX_HEAD_DIM;
use octavo_simd::kv_layout::KvShape;
use plan::{Plan, Stage};
use scratch::Scratches;
use sizes::{PIECE, STAGE_ROWS};

/// A step, all of its rows.
struct Whole<'a> {
    step: &'a Step<'a>,
    rows: Vec<TokenRow>,
    output_rows: Vec<usize>,
    /// Embedding inputs, in order.
    embedding_inputs: Vec<&'a [f32]>,
    kv: Arc<KvPages>,
}

impl<'a> Whole<'a> {
    /// Collects a step's rows, for a program with embedding inputs of this width.
    fn new(
        step: &'a Step<'a>,
        (rows, output_rows): (Vec<TokenRow>, Vec<usize>),
        embedding_input_width: usize,
        kv: KvPages,
    ) -> Whole<'a> {
        let each = |rows: &'a [f32]| rows.chunks_exact(embedding_input_width.max(1));
        Whole {
            embedding_inputs: step.embedding_inputs().flat_map(each).collect(),
            step,
            rows,
            output_rows,
            kv: Arc::new(kv),
        }
    }

    /// Ranges of all rows, at most `at_once` rows each.
    fn parts(&self, at_once: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let n = self.rows.len();
        let starts = (0..n).step_by(at_once.max(1));
        starts.map(move |start| start..n.min(start + at_once))
    }

    /// The extent of some rows.
    fn extent(&self, part: &Range<usize>) -> Extent {
        let before = |row: usize| self.output_rows.partition_point(|output| *output < row);
        let (outputs_before, outputs) = (before(part.start), before(part.end));
        let pieces = self.ends().into_iter().map(|end| end.div_ceil(PIECE));
        Extent {
            phase: self.step.phase,
            rows: part.len(),
            outputs: outputs - outputs_before,
            pieces: pieces.max().unwrap_or(0),
            step: WholeExtent {
                rows: self.rows.len(),
                outputs: self.output_rows.len(),
                before: part.start,
                outputs_before,
            },
        }
    }

    /// Positions of the sequences at the end of the step.
    fn ends(&self) -> Vec<usize> {
        let end = |s: &StepSequence<'_>| s.start + s.tokens.len();
        self.step.seqs.iter().map(end).collect()
    }

    /// Block tables of the sequences.
    fn tables(&self) -> Vec<Vec<Vec<u32>>> {
        let tables = |s: &StepSequence<'_>| s.tables.iter().map(|table| table.to_vec()).collect();
        self.step.seqs.iter().map(tables).collect()
    }
}

/// Runs one program. Buffers are kept and grow with the largest step so far, never inside one.
pub struct Executor {
    model: Arc<Model>,
    pool: SharedPool,
    /// The pool's place where the last step ended. Others' steps may have moved the pool since.
    place: usize,
    arenas: Arc<Arenas>,
    scratches: Arc<Scratches>,
    /// Rows of the last step, and those with outputs.
    last: [usize; 2],
    /// Steps in which a thread was left behind that may still be reading their buffers.
    unfinished: Vec<Weak<Frame>>,
}

impl Executor {
    /// Makes an executor of a program, the matrices that its products name by number, and threads
    /// that it may have to itself or share with others.
    ///
    /// # Panics
    /// If the program's numbers contradict each other: a bug in its compiler.
    pub fn new(
        isa: Isa,
        program: Program,
        matrices: Vec<Matrix>,
        pool: impl Into<SharedPool>,
    ) -> Executor {
        Executor::of_rank(isa, program, matrices, pool, None)
    }

    /// As [`Executor::new`], for a program that several ranks compute together, this one with parts
    /// of their matrices.
    ///
    /// # Panics
    /// As [`Executor::new`], and if the program gathers other parts than those of this rank.
    pub fn of_rank(
        isa: Isa,
        program: Program,
        matrices: Vec<Matrix>,
        pool: impl Into<SharedPool>,
        ranks: Option<Arc<dyn Collective>>,
    ) -> Executor {
        crate::ranks::check(&program, ranks.as_deref().map(|r| [r.rank(), r.ranks()]));
        let pool: SharedPool = pool.into();
        let (threads, place) = {
            let pool = pool.lock();
            (pool.threads(), pool.place())
        };
        let shape = |m: &Matrix| MatrixShape {
            rows: m.rows,
            cols: m.cols,
        };
        program.check(&matrices.iter().map(shape).collect::<Vec<_>>());
        for instruction in &program.ops {
            let (w, experts) = match instruction.op {
                Op::MatMul { w, .. } => (w, 1),
                Op::ExpertMatMul { w, experts, .. } => (w, experts),
                _ => continue,
            };
            let packed = matrices[w].experts();
            assert_eq!(packed, experts, "matrix {w}: experts");
        }
        let is_known = |kv: &KvShape| kv.types.takes(kv.head_dim) && kv.head_dim <= MAX_HEAD_DIM;
        assert!(
            program.caches.iter().all(is_known),
            "heads of a known width"
        );
        let table = isa.table();
        // where prompts are rounded for products, attention may round them too
        let rounds = matrices
            .iter()
            .any(|m| !matches!(m.reads(Phase::Prefill), Form::Tiles(form) if !form.rounds()));
        let prompt_attention = table
            .prompt_attention
            .as_ref()
            .filter(|a| rounds && program.caches.iter().all(|kv| (a.takes)(kv)));
        let groups = fuse::groups(&program);
        let experts = ExpertSizes::of(&program, &matrices);
        let plan = |phase, tapped| Plan::new(table, &program, &matrices, &groups, phase, tapped);
        let plans = [
            plan(Phase::Prefill, false),
            plan(Phase::Decode, false),
            plan(Phase::Prefill, true),
            plan(Phase::Decode, true),
        ];
        Executor {
            arenas: Arc::new(Arenas::new(program.ops.len())),
            scratches: Arc::new(Scratches::new(threads)),
            place,
            last: [0; 2],
            model: Arc::new(Model {
                isa,
                table,
                program,
                matrices,
                experts,
                plans,
                prompt_attention,
                ranks,
                lora: Vec::new(),
            }),
            pool,
            unfinished: Vec::new(),
        }
    }

    /// The instruction set whose kernels run.
    pub fn isa(&self) -> Isa {
        self.model.isa
    }

    /// The matrices, indexed as by the program.
    pub fn matrices(&self) -> &[Matrix] {
        &self.model.matrices
    }

    /// The thread pool that it runs on.
    pub fn pool(&self) -> &SharedPool {
        &self.pool
    }

    /// Runs a step and returns the outputs of the requested rows,
    /// `[n_outputs][width of the output]`; of all rows, if the program does not select any. `tap`
    /// sees the result of every operation before the next one runs, and may put other values in its
    /// place.
    ///
    /// # Panics
    /// If the step does not fit the program or the store: tokens beyond the table, tables that do
    /// not cover the positions, page numbers that do not exist. If `tap` gives more or fewer values
    /// than it saw.
    pub fn step(
        &mut self,
        step: &Step<'_>,
        kv: &mut KvStore,
        tap: Option<&mut TapFn<'_>>,
    ) -> &[f32] {
        self.run_step(step, kv, tap, None)
    }

    /// Runs a step up to the operation of this number and returns the rows of its result, which no
    /// later operation may overwrite; nothing after it is computed. Unlike a tap, this leaves the
    /// sections as they are, so that threads can go on without a late one.
    ///
    /// # Panics
    /// As [`Executor::step`], and if the operation has no result.
    pub fn step_up_to(&mut self, step: &Step<'_>, kv: &mut KvStore, last: usize) -> &[f32] {
        self.run_step(step, kv, None, Some(0..last + 1))
    }

    /// Runs these operations alone, the first of which is an [`Op::Input`], and returns the rows of
    /// the last one's result. `tap` as for [`Executor::step`].
    ///
    /// # Panics
    /// As [`Executor::step`], and if they begin with another operation or end with one that has no
    /// result.
    pub(crate) fn step_of(
        &mut self,
        ops: Range<usize>,
        step: &Step<'_>,
        kv: &mut KvStore,
        tap: Option<&mut TapFn<'_>>,
    ) -> &[f32] {
        let first = &self.model.program.ops[ops.start].op;
        assert!(
            matches!(first, Op::Input),
            "a part that begins with its input"
        );
        self.run_step(step, kv, tap, Some(ops))
    }

    fn run_step(
        &mut self,
        step: &Step<'_>,
        kv: &mut KvStore,
        mut tap: Option<&mut TapFn<'_>>,
        ops: Option<Range<usize>>,
    ) -> &[f32] {
        assert!(
            kv.is_of(&self.model.program.caches, &self.model.program.states),
            "the cache belongs to another program"
        );
        let program = &self.model.program;
        let rows = program.rows(step, kv.n_pages);
        let whole = Whole::new(step, rows, program.embedding_input_width, kv.pages());
        let plan = self.model.plan(step.phase, tap.is_some());
        let (all, output) = match &ops {
            None => (0..plan.sections.len(), program.output),
            Some(ops) => (plan.sections_of(ops), program.ops[ops.end - 1].result()),
        };
        let staged = plan
            .stages
            .as_ref()
            .filter(|stages| whole.rows.len() > STAGE_ROWS && stages.retained[output]);
        let (mut stages, at_once) = match staged {
            None => (Vec::from([all.clone()]), whole.rows.len()),
            Some(stages) => (stages.sections.clone(), program.whole_groups(STAGE_ROWS)),
        };
        for stage in &mut stages {
            *stage = stage.start.max(all.start)..stage.end.min(all.end);
        }
        stages.retain(|stage| !stage.is_empty());
        // no other caller's step runs between the parts of this one
        let shared = self.pool.clone();
        let mut pool = shared.lock();
        for sections in stages {
            for part in whole.parts(at_once) {
                let frame = self.frame(&whole, part, tap.is_some(), sections.clone());
                self.run(frame, &mut pool, &mut tap);
            }
        }
        self.place = pool.place();
        drop(pool);
        let first = whole.parts(at_once).next().map(|part| whole.extent(&part));
        if let Some(extent) = first.filter(Extent::is_part) {
            // the output begins where the first part's does
            // SAFETY: the step has ended in this place, and no thread is at work in this executor's
            // buffers there before its next one.
            unsafe { self.arenas.reserve(self.place, &self.model, &extent) };
        }
        self.last = [whole.rows.len(), whole.output_rows.len()];
        self.rows_of(output)
    }

    /// Returns the rows of [`Program::kept`] in the last step, `[rows][width]`; none if the program
    /// keeps none.
    pub fn kept(&self) -> &[f32] {
        self.model
            .program
            .kept
            .map_or(&[], |slot| self.rows_of(slot))
    }

    /// The rows of a result in the last step.
    fn rows_of(&self, slot: usize) -> &[f32] {
        let program = &self.model.program;
        let [rows, outputs] = self.last;
        let len = program.rows_of(slot, rows, outputs) * program.slots[slot].width;
        if len == 0 {
            return &[];
        }
        // SAFETY: the last step ended in this place, and threads left behind are in other places.
        unsafe { self.arenas.view(self.place).buffers[slot].read(0, len) }
    }

    /// Makes a frame of some rows of a step, for some of the plan's sections.
    fn frame(
        &self,
        whole: &Whole<'_>,
        part: Range<usize>,
        tapped: bool,
        sections: Range<usize>,
    ) -> Frame {
        let extent = whole.extent(&part);
        let mut rows = whole.rows[part.clone()].to_vec();
        let mut embedding_inputs = Vec::new();
        for row in &mut rows {
            if let Some(at) = row.embedding_input {
                row.embedding_input = Some(embedding_inputs.len());
                embedding_inputs.push(whole.embedding_inputs[at]);
            }
        }
        let output_rows = &whole.output_rows[extent.step.outputs_before..][..extent.outputs];
        let width = whole.step.input.len() / whole.rows.len().max(1);
        Frame {
            model: self.model.clone(),
            arenas: self.arenas.clone(),
            scratches: self.scratches.clone(),
            kv: whole.kv.clone(),
            extent,
            tapped,
            sections,
            rows,
            output_rows: output_rows.iter().map(|r| r - part.start).collect(),
            tables: whole.tables(),
            ends: whole.ends(),
            spans: Span::all(whole.step),
            input: whole.step.input[part.start * width..part.end * width].to_vec(),
            embedding_inputs: embedding_inputs.concat(),
            adapters: whole
                .step
                .seqs
                .iter()
                .map(|s| s.adapters.to_vec())
                .collect(),
        }
    }

    /// Runs the sections of a frame.
    fn run(&mut self, frame: Frame, pool: &mut Pool, tap: &mut Option<&mut TapFn<'_>>) {
        let frame = Arc::new(frame);
        self.keep_clear_of(&frame, pool);
        let place = pool.place();
        // SAFETY: between steps no thread is in the pool's place.
        unsafe { self.arenas.reserve(place, &self.model, &frame.extent) };
        let shown = frame.clone();
        let mut after = |section: usize| {
            let (Some(tap), [task]) = (tap.as_mut(), &shown.section(section).tasks[..]) else {
                return;
            };
            if task.stage == Stage::Tap {
                // SAFETY: the others have nothing to do in this section but to wait for this
                // thread, and no section of a step with taps is done in another place.
                unsafe { shown.show(task.op, place, *tap) }
            }
        };
        pool.run(frame.clone(), &mut after);
        self.unfinished.push(Arc::downgrade(&frame));
    }

    /// As [`Executor::step`], but returns the results of `of` for the outputs of each requested
    /// row: the threads divide the rows.
    ///
    /// # Panics
    /// As [`Executor::step`], and if `of` panics.
    pub fn step_by_rows<T: Send + Sync>(
        &mut self,
        step: &Step<'_>,
        kv: &mut KvStore,
        of: &(dyn Fn(&[f32]) -> T + Sync),
    ) -> Vec<T> {
        let width = self.model.program.slots[self.model.program.output].width;
        let outputs = self.step(step, kv, None);
        // SAFETY: they lie where the step ended, and no thread is at work there before the next
        // one.
        let outputs = unsafe { std::slice::from_raw_parts(outputs.as_ptr(), outputs.len()) };
        let rows = outputs.len() / width;
        let row = |i: usize| of(&outputs[i * width..(i + 1) * width]);
        if rows <= 1 {
            return (0..rows).map(row).collect();
        }
        let results: Vec<OnceLock<T>> = (0..rows).map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        self.pool.lock().run_tasks(&|_| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(result) = results.get(i) else { return };
                // no other thread has this index
                let _ = result.set(row(i));
            }
        });
        results
            .into_iter()
            .map(|result| result.into_inner().expect("every row was taken"))
            .collect()
    }

    /// Frees the buffers of steps; the next step makes new ones. A thread that was left behind
    /// keeps those that it uses until it is done.
    pub fn release_scratch(&mut self) {
        self.last = [0; 2];
        self.arenas = Arc::new(Arenas::new(self.model.program.ops.len()));
        self.scratches = Arc::new(Scratches::new(self.pool.lock().threads()));
    }
}
