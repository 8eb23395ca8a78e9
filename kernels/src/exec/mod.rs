//! Runs a [`Program`] on the thread pool: its operations in sections (`plan.rs`), each divided
//! among the threads that are there.
//!
//! Threads write to the same buffers at the same time. These rules say who may touch what; every
//! unsafe function here names the one that divides its work, and `tools/miri.sh` looks at every
//! access of a small layer.
//!
//! - *Finished inputs*: what a task reads was written in an earlier section, or by this member in
//!   the same one, where both tasks divide their values alike (`plan.rs` puts them into one section
//!   only then).
//! - *Shares*: rows, heads of rows, groups or tiles are divided by [`Member::share`], so that each
//!   is one member's.
//! - *Items*: strips of products, and blocks or pieces of attention, are handed out by
//!   [`Part::take_items`], so that each is one member's; and its part of the output is that of no
//!   other item (`items.rs`).
//! - *Scratch*: that of a thread's number is its own.
//! - *Places*: a member that was left behind stays in a place where nobody else is; who takes over
//!   copies items from there that are finished, which nobody writes again.
//!
//! Whoever borrows from a buffer borrows exactly the values that it reads or writes.

mod arena;
mod attention;
mod epilogue;
mod items;
mod matmul;
mod plan;
mod rows;

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::act::ACT_GROUP;
use crate::generic::attention::{MAX_HEAD_DIM, PAGE, padded};
use crate::generic::elementwise::Operands;
use crate::generic::gemm;
use crate::isa::Isa;
use crate::kv::{KvPages, KvStore};
use crate::matrix::{Matrix, Reads};
use crate::pool::{Member, Pool, Work};
use crate::program::{Op, Program, Resource, Role, Row, Slot, Step};
use crate::table::{Gemv, MAX_R, Table, Tokens, Unit, table};
use arena::{Arenas, Extent, MAX_TILE, Scratch, Scratches, View, mark_of};
use epilogue::Epilogue;
use items::Items;
use matmul::Product;
use plan::{Division, Phase, Plan, Section, Task};

/// Positions of a generated token's attention that one thread takes: fixed, so that results do not
/// depend on threads.
const PIECE: usize = 512;
/// Strips of a prompt product multiplied at a time.
const STRIP_PAIR: usize = 2;
/// Pairs of strips that go through a slice of activations together, at most.
const UNITS: usize = 8;
/// Floats of a strip's panel, in any form.
const PANEL_FLOATS: usize = gemm::KC * MAX_R;
/// Tokens of a prompt whose attention one thread takes at a time.
const QUERY_BLOCK: usize = 16;
/// Query rows handled at once, at most.
const MAX_QUERIES: usize = 8;

/// What a tap sees: number of the operation, rows, width, values `[rows][width]`.
pub type TapFn<'a> = dyn FnMut(usize, usize, usize, &[f32]) + Send + 'a;

/// Runs one program. Buffers are kept and grow with the largest step so far, never inside one.
pub struct Executor {
    model: Arc<Model>,
    pool: Pool,
    arenas: Arc<Arenas>,
    scratches: Arc<Scratches>,
    /// Steps in which a thread was left behind that may still be reading.
    unfinished: Vec<Weak<Frame>>,
}

/// What stays the same in all steps.
struct Model {
    table: &'static Table,
    program: Program,
    /// Indexed by `Op::MatMul::w`.
    matrices: Vec<Matrix>,
    /// See [`Model::plan`].
    plans: [Plan; 4],
    /// What attends for prompts instead of the vector kernels. Models of float weights keep their
    /// accuracy: they get it where products are in bf16 as well.
    unit: Option<&'static Unit>,
}

impl Model {
    fn plan(&self, role: Role, tapped: bool) -> &Plan {
        &self.plans[usize::from(role == Role::Generated) + 2 * usize::from(tapped)]
    }

    /// Columns of the widest matrix.
    fn widest(&self) -> usize {
        self.matrices.iter().map(|m| m.cols).max().unwrap_or(0)
    }

    /// Items of the tasks of any section, at most.
    fn most_items(&self, extent: &Extent) -> usize {
        let of_section = |section: &Section| -> usize {
            section
                .tasks
                .iter()
                .filter_map(|task| Items::of(self, extent, task))
                .map(|items| items.count)
                .sum()
        };
        self.plan(extent.role, false)
            .sections
            .iter()
            .map(of_section)
            .max()
            .unwrap_or(0)
    }

    /// How many values stand in what is carried of a section.
    fn carried_values(&self, extent: &Extent, section: &Section, resource: Resource) -> usize {
        let rows = |slot| self.program.rows_of(slot, extent.rows, extent.wanted);
        let width = |slot: Slot| self.program.slots[slot].width;
        // the slot that an earlier section has brought there in another form
        let ready = section
            .ready
            .iter()
            .find(|ready| ready.at == resource)
            .map(|ready| ready.slot);
        match (resource, ready) {
            (Resource::Slot(slot), _) | (Resource::Codes(_), Some(slot)) => {
                rows(slot) * width(slot)
            }
            (Resource::Tiles, Some(slot)) => (rows(slot) + MAX_TILE) * width(slot),
            (Resource::Angles, _) => extent.rows * 2 * self.program.rope.frequencies.len(),
            // pieces are joined in the section that makes them; the cache is the same in all places
            (Resource::Pieces | Resource::Kv(_), _)
            | (Resource::Codes(_) | Resource::Tiles, None) => 0,
        }
    }

    /// Heads of the widest slot.
    fn heads(&self) -> usize {
        self.program
            .slots
            .iter()
            .map(|s| s.width)
            .max()
            .unwrap_or(0)
            / self.program.kv.head_dim
    }
}

/// A step, as long as any thread is at it.
struct Frame {
    model: Arc<Model>,
    arenas: Arc<Arenas>,
    scratches: Arc<Scratches>,
    kv: KvPages,
    extent: Extent,
    tapped: bool,
    rows: Vec<Row>,
    /// Rows with outputs.
    wanted: Vec<usize>,
    /// Block tables of the sequences.
    tables: Vec<Vec<u32>>,
    /// Positions of the sequences at the end of the step.
    ends: Vec<usize>,
    /// What [`Op::Input`] gives.
    input: Vec<f32>,
}

impl Frame {
    fn section(&self, section: usize) -> &Section {
        &self.model.plan(self.extent.role, self.tapped).sections[section]
    }

    /// Whether this step writes keys and values where another one may read them.
    fn writes_what_is_read_by(&self, other: &Frame) -> bool {
        self.rows.iter().any(|row| {
            let (index, slot) = (row.pos / PAGE, row.pos % PAGE);
            let page = self.tables[row.seq][index];
            other.tables.iter().zip(&other.ends).any(|(table, end)| {
                let seen = table.iter().take(end.div_ceil(PAGE));
                seen.enumerate()
                    .any(|(i, p)| *p == page && i * PAGE + slot < *end)
            })
        })
    }
}

impl Work for Frame {
    fn sections(&self) -> usize {
        self.model
            .plan(self.extent.role, self.tapped)
            .sections
            .len()
    }

    fn run(&self, member: &Member<'_>) {
        // SAFETY: this thread is in that place, where nobody makes room before it has left; and the
        // scratch of its number is its own.
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
        self.section(section).can_repeat
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
        // 4 GB/s: they are copied, then read again from other lines than those that are near. To
        // wait longer costs more than it saves where two programs take turns: each spins in the
        // time that the other's late thread needs.
        Duration::from_nanos(bytes as u64 / 4)
    }

    fn carry(&self, section: usize, from: usize, to: usize) -> bool {
        // SAFETY: the pool has found that nobody is in `to`, and that the section is being worked
        // on in `from`, which writes nothing that it reads, or else it could not be repeated.
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

/// One member's part of a section.
struct Part<'a> {
    frame: &'a Frame,
    view: &'a View,
    counters: &'a [AtomicUsize],
    /// See [`arena::Progress::pieces`].
    finished_pieces: &'a [AtomicU32],
    /// Which items of the task are done: those that have this section's `mark`. Of a step with taps
    /// nothing is noted.
    done: &'a [AtomicU32],
    /// Whether any can be done before this member begins; see [`arena::Progress::resumed`].
    resumed: bool,
    mark: u32,
    w: &'a Member<'a>,
}

impl Part<'_> {
    /// Takes items of an operation's task, `count` in all, until there are no more or this member
    /// has to stop. Of the first ones, so many as `fixed`, every member has its share; the others
    /// go to whoever is first.
    fn take_items(&self, op: usize, fixed: usize, count: usize, mut item: impl FnMut(usize)) {
        // shares would be unequal where a part is done
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
    fn is_done(&self, item: usize) -> bool {
        // what others note is not looked at without need: that would cost them the line
        self.resumed
            && self
                .done
                .get(item)
                .is_some_and(|done| done.load(Ordering::Relaxed) == self.mark)
    }

    /// Notes that an item of the task is done: who takes this section over goes on from there.
    fn note_done(&self, item: usize) {
        if let Some(done) = self.done.get(item) {
            done.store(self.mark, Ordering::Release);
        }
    }
}

impl Deref for Part<'_> {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        self.frame
    }
}

impl Executor {
    /// Takes a program and the matrices that its products name by number.
    ///
    /// # Panics
    /// If the program's numbers contradict each other: a bug in whoever compiled it.
    pub fn new(isa: Isa, program: Program, matrices: Vec<Matrix>, pool: Pool) -> Executor {
        program.check(
            &matrices
                .iter()
                .map(|m| (m.rows, m.cols))
                .collect::<Vec<_>>(),
        );
        assert!(program.kv.ty.takes(program.kv.head_dim) && program.kv.head_dim <= MAX_HEAD_DIM);
        let table = table(isa);
        let in_bf16 = matrices.iter().any(|m| m.reads(false) == Reads::Bf16);
        let unit = table
            .unit
            .as_ref()
            .filter(|u| in_bf16 && (u.takes)(program.kv.head_dim));
        let plan = |role, tapped| Plan::new(table, &program, &matrices, role, tapped);
        let plans = [
            plan(Role::Prompt, false),
            plan(Role::Generated, false),
            plan(Role::Prompt, true),
            plan(Role::Generated, true),
        ];
        Executor {
            arenas: Arc::new(Arenas::new(program.ops.len())),
            scratches: Arc::new(Scratches::new(pool.threads())),
            model: Arc::new(Model {
                table,
                program,
                matrices,
                plans,
                unit,
            }),
            pool,
            unfinished: Vec::new(),
        }
    }

    /// The instruction set whose kernels run.
    pub fn isa(&self) -> Isa {
        self.model.table.isa
    }

    /// The matrices, indexed as by the program.
    pub fn matrices(&self) -> &[Matrix] {
        &self.model.matrices
    }

    /// The threads that it runs on.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs a step and returns the outputs of the wanted rows, `[wanted][width of the output]`; of
    /// all rows, if the program does not select any. `tap` sees the result of every operation.
    ///
    /// # Panics
    /// If the step does not fit the program or the store: tokens beyond the table, tables that do
    /// not cover the positions, page numbers that do not exist.
    pub fn step(
        &mut self,
        step: &Step<'_>,
        kv: &mut KvStore,
        mut tap: Option<&mut TapFn<'_>>,
    ) -> &[f32] {
        assert_eq!(
            kv.shape, self.model.program.kv,
            "the cache belongs to another program"
        );
        let (rows, wanted) = self.model.program.rows(step, kv.n_pages);
        let pieces = step
            .seqs
            .iter()
            .map(|s| (s.start + s.tokens.len()).div_ceil(PIECE))
            .max()
            .unwrap_or(0);
        let extent = Extent {
            role: step.role,
            rows: rows.len(),
            wanted: wanted.len(),
            pieces,
        };
        let frame = Arc::new(Frame {
            model: self.model.clone(),
            arenas: self.arenas.clone(),
            scratches: self.scratches.clone(),
            kv: kv.pages(),
            extent,
            tapped: tap.is_some(),
            rows,
            wanted,
            tables: step.seqs.iter().map(|s| s.table.to_vec()).collect(),
            ends: step.seqs.iter().map(|s| s.start + s.tokens.len()).collect(),
            input: step.input.to_vec(),
        });
        self.keep_clear_of(&frame);
        // SAFETY: between steps nobody is in the pool's place.
        unsafe { self.arenas.reserve(self.pool.place(), &self.model, &extent) };
        let (shown, place) = (frame.clone(), self.pool.place());
        let mut after = |section: usize| {
            let (Some(tap), [task]) = (tap.as_mut(), &shown.section(section).tasks[..]) else {
                return;
            };
            if task.phase == Phase::Tap {
                // SAFETY: the others have nothing to do in this section but to wait for this
                // thread, and no section of a step with taps is done in another place.
                unsafe { shown.show(task.op, place, *tap) }
            }
        };
        self.pool.run(frame.clone(), &mut after);
        self.unfinished.push(Arc::downgrade(&frame));
        let output = self.model.program.output;
        let len = frame.n_rows(output) * frame.width(output);
        // SAFETY: the step has ended in this place, where nobody is at work before the next one.
        unsafe { self.arenas.view(self.pool.place()).buffers[output].read(0, len) }
    }

    /// Lets no thread that was left behind in an earlier step read what this one writes.
    fn keep_clear_of(&mut self, frame: &Frame) {
        if self.pool.is_together() {
            self.unfinished.clear();
        } else if self
            .unfinished
            .iter()
            .filter_map(Weak::upgrade)
            .any(|old| frame.writes_what_is_read_by(&old))
        {
            self.pool.settle();
            self.unfinished.clear();
        }
    }
}

/// Floats of the sums of a pair of strips for `m` tokens.
const fn sums_len(m: usize) -> usize {
    (m + MAX_TILE) * STRIP_PAIR * MAX_R
}

/// Floats of one partial result: weighted sums, maximum, sum.
const fn piece_len(head_dim: usize) -> usize {
    padded(head_dim) + 2
}

impl Frame {
    fn n_rows(&self, slot: Slot) -> usize {
        self.model
            .program
            .rows_of(slot, self.extent.rows, self.extent.wanted)
    }

    fn width(&self, slot: Slot) -> usize {
        self.model.program.slots[slot].width
    }

    /// Shows the result of an operation.
    ///
    /// # Safety
    /// The operation is complete in that place, and nobody writes there meanwhile.
    unsafe fn show(&self, at: usize, place: usize, tap: &mut TapFn<'_>) {
        let Some(out) = self.model.program.ops[at].out() else {
            return;
        };
        let (rows, width) = (self.n_rows(out), self.width(out));
        // SAFETY: the operation is complete, and the buffer holds that many values.
        tap(at, rows, width, unsafe {
            self.arenas.view(place).buffers[out].read(0, rows * width)
        });
    }
}

impl Part<'_> {
    /// Values `part` of row `r` of a buffer: no more than are needed, since other threads may be
    /// writing the others.
    ///
    /// # Safety
    /// These values are finished: nobody writes them while the result is used.
    unsafe fn row(&self, slot: Slot, r: usize, part: Range<usize>) -> &[f32] {
        let width = self.width(slot);
        assert!(r < self.n_rows(slot) && part.start <= part.end && part.end <= width);
        // SAFETY: the buffer holds n_rows * width values; the caller keeps writers away from these.
        unsafe { self.view.buffers[slot].read(r * width + part.start, part.len()) }
    }

    /// Values `part` of row `r` of a buffer.
    ///
    /// # Safety
    /// These values are the calling thread's: nobody else reads or writes them while the result is
    /// used.
    #[allow(
        clippy::mut_from_ref,
        reason = "the values belong to the caller, not to this"
    )]
    unsafe fn row_mut(&self, slot: Slot, r: usize, part: Range<usize>) -> &mut [f32] {
        let width = self.width(slot);
        assert!(r < self.n_rows(slot) && part.start <= part.end && part.end <= width);
        // SAFETY: the buffer holds n_rows * width values; the caller keeps others away from these.
        unsafe { self.view.buffers[slot].write(r * width + part.start, part.len()) }
    }

    /// Runs this member's share of a task.
    ///
    /// # Safety
    /// Every member of the team runs the same tasks, section by section, in a place that has room
    /// for the step. What a task reads was finished in earlier sections, or by this member where
    /// tasks divide their values alike.
    unsafe fn run(&self, task: &Task) {
        let at = task.op;
        // SAFETY: all of these need finished inputs and a place with room, which the caller
        // promises.
        unsafe {
            match (task.phase, &self.model.program.ops[at]) {
                (Phase::Angles, _) => self.angles(),
                // thread 0 shows it, see `Executor::step`
                (Phase::Tap, _) => {}
                (Phase::Prepare(form), Op::MatMul { x, w, .. }) => {
                    self.prepare(form, *x, &self.model.matrices[*w], task);
                }
                (Phase::Whole(then), Op::MatMul { x, w, out }) => {
                    let (x, out) = (*x, *out);
                    self.matmul(&Product {
                        task,
                        x,
                        matrix: &self.model.matrices[*w],
                        out,
                        then,
                    });
                }
                (
                    Phase::Pieces,
                    Op::Attention {
                        q,
                        layer,
                        scale,
                        out,
                    },
                ) => {
                    self.attend_pieces(task, (*q, *out), *layer, *scale);
                }
                (
                    Phase::Whole(_),
                    Op::Attention {
                        q,
                        layer,
                        scale,
                        out,
                    },
                ) => {
                    self.attend_prompt(at, (*q, *out), *layer, *scale);
                }
                (_, op) => self.rowwise(op, task.division.grain()),
            }
        }
    }
}
