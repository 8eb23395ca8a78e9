//! Runs a [`Program`] on the thread pool: all threads walk the whole list, a barrier after each operation.

use crate::act::{ACT_GROUP, Act4, ActRow};
use crate::generic::attention::{self, MAX_HEAD_DIM, PAGE};
use crate::generic::elementwise::Operands;
use crate::generic::gemm;
use crate::isa::Isa;
use crate::kv::KvStore;
use crate::matrix::{Matrix, Reads};
use crate::memory::Floats;
use crate::pool::{Pool, Worker};
use crate::program::{Op, Program, Resource, Role, Row, Slot, Step};
use crate::table::{Gemv, MAX_R, Table, Tokens, Unit, table};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Positions of a generated token's attention that one thread takes: fixed, so that results do not depend on threads.
const PIECE: usize = 512;
/// Strips of a prompt product multiplied at a time: a unit.
const STRIPS: usize = 2;
/// Units that go through a slice of activations together, at most.
const UNITS: usize = 8;
/// Floats of a strip's panel, in any form.
const PANEL_FLOATS: usize = gemm::KC * MAX_R;
/// Tokens of a prompt whose attention one thread takes at a time.
const QUERY_BLOCK: usize = 16;

/// What a tap sees: number of the operation, rows, width, values `[rows][width]`.
pub type TapFn<'a> = dyn FnMut(usize, usize, usize, &[f32]) + Send + 'a;

/// Runs one program. Buffers are kept and grow with the largest step so far, never inside one.
pub struct Executor {
    table: &'static Table,
    program: Program,
    /// Indexed by `Op::MatMul::w`.
    matrices: Vec<Matrix>,
    pool: Pool,
    buffers: Vec<Floats>,
    act: Activations,
    threads: Vec<Scratch>,
    pieces: Vec<f32>,
    /// Cosines, then sines, of each row.
    angles: Vec<f32>,
    counters: Vec<AtomicUsize>,
    /// Per operation: of prompts, of generated tokens, and of both where every result is looked at.
    plans: [Vec<Plan>; 4],
    /// What attends for prompts instead of the vector kernels. Models of float weights keep their accuracy: they get
    /// it where products are in bf16 as well.
    unit: Option<&'static Unit>,
}

/// What an operation needs beside its own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The form its input must be brought into first.
    prepare: Option<Reads>,
    /// Whether all threads must have finished what they did since the last barrier.
    barrier: bool,
    /// What a product does with its results while they are near.
    then: Option<Then>,
    /// Done by an operation before.
    absorbed: bool,
}

/// An operation whose inputs nobody else reads, done by the product that makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// SwiGLU of this product, the gate, and the product of the same input with another matrix.
    SwiGlu {
        /// Which of the matrices.
        up: usize,
        out: Slot,
    },
    /// Adds what is in `to`.
    Add { to: Slot, out: Slot },
}

impl Then {
    fn out(self) -> Slot {
        match self {
            Then::SwiGlu { out, .. } | Then::Add { out, .. } => out,
        }
    }
}

/// Inputs of the next products, in the forms kernels read.
#[derive(Default)]
struct Activations {
    q: Vec<Act4>,
    scale: Vec<f32>,
    isum: Vec<i32>,
    fsum: Vec<f32>,
    tiles: Floats,
}

/// What one thread needs to itself.
struct Scratch {
    panel: Floats,
    sums: Floats,
    q: Floats,
    out: Floats,
    strip: Floats,
    /// Of the matrix unit's attention.
    unit: Floats,
}

/// Tokens of the widest tile, at least. No form takes more than a float for each value of a tile.
const MAX_TILE: usize = 16;

/// Query rows handled at once, at most.
const MAX_QUERIES: usize = 8;

/// A pointer that threads share; every use says which part is whose.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

// SAFETY: only a pointer; each dereference has its own reason.
unsafe impl<T> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// The range is inside the allocation, and no other thread writes to it (or touches it, if this one writes).
    unsafe fn part<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// Everything the threads of one step read.
struct Frame<'a> {
    table: &'static Table,
    program: &'a Program,
    matrices: &'a [Matrix],
    plan: &'a [Plan],
    unit: Option<&'static Unit>,
    step: &'a Step<'a>,
    rows: &'a [Row],
    wanted: &'a [usize],
    kv: &'a KvStore,
    kv_writer: crate::kv::KvWriter,
    buffers: Vec<Shared<f32>>,
    act: ActRow,
    tiles: Shared<f32>,
    threads: Shared<Scratch>,
    pieces: Shared<f32>,
    max_pieces: usize,
    angles: Shared<f32>,
    counters: &'a [AtomicUsize],
}

// SAFETY: `ActRow` and the buffers are pointers into vectors that outlive the step; each operation divides what it
// writes among the threads, and a barrier separates writers from readers.
unsafe impl Sync for Frame<'_> {}

impl Executor {
    /// Takes a program and the matrices that its products name by number.
    ///
    /// # Panics
    /// If the program's numbers contradict each other: a bug in whoever compiled it.
    pub fn new(isa: Isa, program: Program, matrices: Vec<Matrix>, pool: Pool) -> Executor {
        program.check(&matrices.iter().map(|m| (m.rows, m.cols)).collect::<Vec<_>>());
        assert!(program.kv.ty.takes(program.kv.head_dim) && program.kv.head_dim <= MAX_HEAD_DIM);
        let t = table(isa);
        let scratch = || Scratch {
            panel: Floats::new(STRIPS * PANEL_FLOATS),
            sums: Floats::default(),
            q: Floats::new(MAX_QUERIES * MAX_HEAD_DIM),
            out: Floats::new(MAX_QUERIES * attention::padded(MAX_HEAD_DIM)),
            strip: Floats::new(2 * STRIPS * MAX_R),
            unit: Floats::default(),
        };
        let in_bf16 = matrices.iter().any(|m| m.reads(false) == Reads::Bf16);
        let unit = t.unit.as_ref().filter(|u| in_bf16 && (u.takes)(program.kv.head_dim));
        let roles = [Role::Prompt, Role::Generated];
        let [prompt, generated] = roles.map(|role| plan(&program, &matrices, role, true));
        let [seen_prompt, seen_generated] = roles.map(|role| plan(&program, &matrices, role, false));
        let plans = [prompt, generated, seen_prompt, seen_generated];
        Executor {
            table: t,
            buffers: program.slots.iter().map(|_| Floats::default()).collect(),
            act: Activations::default(),
            threads: (0..pool.threads()).map(|_| scratch()).collect(),
            pieces: Vec::new(),
            angles: Vec::new(),
            counters: program.ops.iter().map(|_| AtomicUsize::new(0)).collect(),
            plans,
            unit,
            program,
            matrices,
            pool,
        }
    }

    /// The instruction set whose kernels run.
    pub fn isa(&self) -> Isa {
        self.table.isa
    }

    /// The matrices, indexed as by the program.
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }

    /// Threads of the pool.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs a step and returns the outputs of the wanted rows, `[wanted][width of the output]`; of all rows, if the
    /// program does not select any. `tap` sees the result of every operation.
    ///
    /// # Panics
    /// If the step does not fit the program or the store: tokens beyond the table, tables that do not cover the
    /// positions, page numbers that do not exist.
    pub fn step(&mut self, step: &Step<'_>, kv: &mut KvStore, tap: Option<&mut TapFn<'_>>) -> &[f32] {
        assert_eq!(kv.shape, self.program.kv, "the cache belongs to another program");
        let (rows, wanted) = self.program.rows(step, kv.n_pages);
        let max_pieces = step.seqs.iter().map(|s| (s.start + s.tokens.len()).div_ceil(PIECE)).max().unwrap_or(0);
        self.reserve(step, &rows, wanted.len(), max_pieces);
        let tapped = tap.is_some();
        let tap = Mutex::new(tap);
        let frame = Frame {
            table: self.table,
            program: &self.program,
            matrices: &self.matrices,
            plan: &self.plans[usize::from(step.role == Role::Generated) + 2 * usize::from(tapped)],
            unit: self.unit,
            step,
            rows: &rows,
            wanted: &wanted,
            kv_writer: kv.writer(),
            kv,
            buffers: self.buffers.iter_mut().map(|b| Shared(b.as_mut_ptr())).collect(),
            act: ActRow {
                q: self.act.q.as_mut_ptr(),
                scale: self.act.scale.as_mut_ptr(),
                isum: self.act.isum.as_mut_ptr(),
                fsum: self.act.fsum.as_mut_ptr(),
            },
            tiles: Shared(self.act.tiles.as_mut_ptr()),
            threads: Shared(self.threads.as_mut_ptr()),
            pieces: Shared(self.pieces.as_mut_ptr()),
            max_pieces,
            angles: Shared(self.angles.as_mut_ptr()),
            counters: &self.counters,
        };
        let frame = &frame;
        self.pool.run(&|w| {
            // SAFETY: buffers were reserved for this step, and every thread of the pool runs the same list.
            unsafe {
                (frame.table.enter)();
                frame.angles(w);
                for (at, plan) in frame.plan.iter().enumerate().filter(|(_, plan)| !plan.absorbed) {
                    if plan.barrier {
                        w.barrier();
                    }
                    frame.op(at, w);
                    if tapped {
                        w.barrier();
                        if w.id == 0 {
                            frame.tap(at, &tap);
                        }
                        // the next operation may write to the same slot
                        w.barrier();
                    }
                }
                (frame.table.leave)();
            }
        });
        let output = self.program.output;
        let n = self.program.rows_of(output, rows.len(), wanted.len());
        &self.buffers[output][..n * self.program.slots[output].width]
    }

    fn reserve(&mut self, step: &Step<'_>, rows: &[Row], wanted: usize, max_pieces: usize) {
        fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
            if v.len() < len {
                v.resize(len, T::default());
            }
        }
        let n = rows.len();
        for (buffer, slot) in self.buffers.iter_mut().zip(&self.program.slots) {
            buffer.grow(slot.width * if slot.selected { wanted } else { n });
        }
        let most = n.max(wanted);
        let widest = self.matrices.iter().map(|m| m.cols).max().unwrap_or(0);
        if step.role == Role::Generated {
            grow(&mut self.act.q, most * widest.div_ceil(4));
            grow(&mut self.act.scale, most * widest.div_ceil(ACT_GROUP));
            grow(&mut self.act.isum, most * widest.div_ceil(16));
            grow(&mut self.act.fsum, most * widest.div_ceil(16));
            let heads = self.program.slots.iter().map(|s| s.width).max().unwrap_or(0) / self.program.kv.head_dim;
            grow(&mut self.pieces, n * heads * max_pieces * piece_len(self.program.kv.head_dim));
        }
        self.act.tiles.grow((most + MAX_TILE) * widest);
        for thread in &mut self.threads {
            thread.sums.grow(UNITS * sums_len(most));
            if let Some(unit) = self.unit {
                thread.unit.grow((unit.scratch)(self.program.kv.head_dim) / 4);
            }
        }
        grow(&mut self.angles, n * 2 * self.program.rope.frequencies.len());
        self.counters.iter_mut().for_each(|c| *c.get_mut() = 0);
    }
}

/// Floats of one unit's sums for `m` tokens.
const fn sums_len(m: usize) -> usize {
    (m + MAX_TILE) * STRIPS * MAX_R
}

/// Floats of one partial result: weighted sums, maximum, sum.
const fn piece_len(head_dim: usize) -> usize {
    attention::padded(head_dim) + 2
}

/// Which products must bring their input into another form first: those whose input is not there in it yet. And where
/// threads must wait for each other: where one may read what another writes. With `absorb`, operations that can be are
/// done by the product before.
fn plan(program: &Program, matrices: &[Matrix], role: Role, absorb: bool) -> Vec<Plan> {
    let mut ready: Vec<(Slot, Reads)> = Vec::new();
    let mut list = Vec::with_capacity(program.ops.len());
    // since the last barrier; the angles are made at the start
    let (mut read, mut written) = (Vec::new(), vec![Resource::Angles]);
    let mut absorbed = 0;
    for (at, op) in program.ops.iter().enumerate() {
        let mut plan = Plan::default();
        if absorbed > 0 {
            absorbed -= 1;
            list.push(Plan { absorbed: true, ..plan });
            continue;
        }
        if absorb {
            (plan.then, absorbed) = then(program, matrices, role, at);
        }
        if let Op::MatMul { x, w, .. } = *op {
            let reads = matrices[w].reads(role == Role::Generated);
            if reads != Reads::Floats && !ready.contains(&(x, reads)) {
                // there is room for one input as codes, and for one in tiles of any form
                ready.retain(|(_, other)| (*other == Reads::Codes) != (reads == Reads::Codes));
                ready.push((x, reads));
                plan.prepare = Some(reads);
            }
        }
        if let Some(out) = plan.then.map(Then::out).or(op.out()) {
            ready.retain(|(slot, _)| *slot != out);
        }
        // an operation has one phase, or two with a barrier of its own between them
        let mut inputs = op.inputs();
        if let Some(Then::Add { to, .. }) = plan.then {
            inputs.push(Resource::Slot(to));
        }
        let out: Vec<Resource> = plan.then.map_or_else(|| op.writes(), |then| vec![Resource::Slot(then.out())]);
        let phases = match op {
            Op::MatMul { .. } if plan.prepare.is_some() => {
                vec![(inputs.clone(), vec![Resource::Inputs]), ([inputs, vec![Resource::Inputs]].concat(), out)]
            }
            Op::MatMul { .. } => vec![([inputs, vec![Resource::Inputs]].concat(), out)],
            Op::Attention { .. } if role == Role::Generated => vec![(inputs, vec![]), (vec![], out)],
            _ => vec![(inputs, out)],
        };
        for (i, (reads, writes)) in phases.into_iter().enumerate() {
            let waits = |r: &Resource| written.contains(r);
            plan.barrier |= i == 0 && (reads.iter().any(waits) || writes.iter().any(|r| waits(r) || read.contains(r)));
            if i > 0 || plan.barrier {
                read.clear();
                written.clear();
            }
            read.extend(reads);
            written.extend(writes);
        }
        list.push(plan);
    }
    list
}

/// What can be done by the product at `at`, and how many operations after it that is.
fn then(program: &Program, matrices: &[Matrix], role: Role, at: usize) -> (Option<Then>, usize) {
    // what follows may be written over the input, unless products of other rows still read it as it is
    let apart = |x: Slot, w: usize, out: Slot| x != out || matrices[w].reads(role == Role::Generated) != Reads::Floats;
    // both go through one kernel
    let like = |w: usize| {
        let matrix = &matrices[w];
        (matrix.ty, matrix.rows, matrix.is_packed())
    };
    match program.ops[at..] {
        [
            Op::MatMul { x, w, out: a },
            Op::MatMul { x: same, w: up, out: b },
            Op::SwiGlu { gate, up: other, out },
            ..,
        ] if x == same
            && (a, b) == (gate, other)
            && a != b
            && [a, b].iter().all(|slot| *slot == out || program.unread(*slot, at + 3))
            && like(w) == like(up)
            && apart(x, w, out) =>
        {
            (Some(Then::SwiGlu { up, out }), 2)
        }
        [Op::MatMul { x, w, out: y }, Op::Add { a, b, out }, ..]
            if (a == y) != (b == y) && (y == out || program.unread(y, at + 2)) && apart(x, w, out) =>
        {
            (Some(Then::Add { to: if a == y { b } else { a }, out }), 1)
        }
        _ => (None, 0),
    }
}

impl Frame<'_> {
    fn n_rows(&self, slot: Slot) -> usize {
        self.program.rows_of(slot, self.rows.len(), self.wanted.len())
    }

    fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot].width
    }

    /// Row `r` of a buffer.
    ///
    /// # Safety
    /// As [`Shared::part`].
    unsafe fn row<'a>(&self, slot: Slot, r: usize) -> &'a mut [f32] {
        let width = self.width(slot);
        assert!(r < self.n_rows(slot));
        // SAFETY: the buffer holds n_rows * width values; the caller keeps writers apart.
        unsafe { self.buffers[slot].part(r * width, width) }
    }

    fn tap(&self, at: usize, tap: &Mutex<Option<&mut TapFn<'_>>>) {
        let mut tap = tap.lock().expect("only this thread takes the lock");
        if let (Some(tap), Some(out)) = (tap.as_mut(), self.program.ops[at].out()) {
            let (rows, width) = (self.n_rows(out), self.width(out));
            // SAFETY: the operation is complete, and the others wait at the barrier that follows this call.
            let values = unsafe { self.buffers[out].part(0, rows * width) };
            tap(at, rows, width, values);
        }
    }

    /// Cosines and sines of all rows.
    unsafe fn angles(&self, w: &Worker<'_>) {
        let rope = &self.program.rope;
        let n = rope.frequencies.len();
        for r in w.share(self.rows.len(), 1) {
            // SAFETY: each row belongs to one thread.
            let (cosines, sines) = unsafe { self.angles.part(r * 2 * n, 2 * n) }.split_at_mut(n);
            for (i, angle) in rope.angles(self.rows[r].pos).enumerate() {
                (cosines[i], sines[i]) = angle;
            }
        }
    }

    /// Runs this thread's share of operation `at`.
    ///
    /// # Safety
    /// Every thread of the pool runs the same operations, with the plan's barriers, over reserved buffers.
    unsafe fn op(&self, at: usize, w: &Worker<'_>) {
        // SAFETY: in every arm, rows (or parts of rows) are divided among threads by `share` or by a counter, inputs
        // were finished before the last barrier, and lengths are those `check` compared.
        unsafe {
            match &self.program.ops[at] {
                Op::Embed { table, out } => {
                    let bytes = table.ty.row_bytes(table.cols as u64).expect("whole blocks, checked at load") as usize;
                    for r in w.share(self.rows.len(), 1) {
                        let from = self.rows[r].token as usize * bytes;
                        let raw = &table.source.bytes()[from..from + bytes];
                        octavo_quant::dequantize(table.ty, raw, self.row(*out, r)).expect("checked at load");
                    }
                }
                Op::Input { out } => {
                    let width = self.width(*out);
                    for r in w.share(self.rows.len(), 1) {
                        self.row(*out, r).copy_from_slice(&self.step.input[r * width..(r + 1) * width]);
                    }
                }
                Op::RmsNorm { x, weight, eps, out } => {
                    let groups = self.width(*x) / weight.len();
                    for i in w.share(self.n_rows(*x) * groups, 1) {
                        let part = i % groups * weight.len()..(i % groups + 1) * weight.len();
                        let from = &self.row(*x, i / groups)[part.clone()];
                        let to = self.buffers[*out].part(i / groups * self.width(*out) + part.start, weight.len());
                        (self.table.rms_norm)(from.as_ptr(), weight.as_ptr(), *eps, weight.len(), to.as_mut_ptr());
                    }
                }
                Op::MatMul { x, w: matrix, out } => self.matmul(at, *x, &self.matrices[*matrix], *out, w),
                Op::AddBias { x, bias, out } => {
                    for r in w.share(self.n_rows(*x), 1) {
                        let (x, y) = (self.row(*x, r), self.row(*out, r));
                        let (a, b) = ((x.as_ptr(), 0), (bias.as_ptr(), 0));
                        (self.table.add)(&Operands { a, b, y: (y.as_mut_ptr(), 0), rows: 1, n: bias.len() });
                    }
                }
                Op::Rope { x, head_dim, out } => {
                    let n = self.program.rope.frequencies.len();
                    for r in w.share(self.rows.len(), 1) {
                        let (cosines, sines) = self.angles.part(r * 2 * n, 2 * n).split_at(n);
                        let (x, y) = (self.row(*x, r), self.row(*out, r));
                        y.copy_from_slice(x);
                        for (x, y) in x.chunks_exact(*head_dim).zip(y.chunks_exact_mut(*head_dim)) {
                            if self.program.rope.neox {
                                let (cos, sin) = (cosines.as_ptr(), sines.as_ptr());
                                (self.table.rotate)(x.as_ptr(), cos, sin, n, y.as_mut_ptr());
                            } else {
                                rotate_pairs(x, cosines, sines, y);
                            }
                        }
                    }
                }
                Op::KvWrite { k, v, layer } => self.kv_write(*k, *v, *layer, w),
                Op::Attention { q, layer, scale, out } => match self.step.role {
                    Role::Prompt => self.attend_prompt(at, (*q, *out), *layer, *scale, w),
                    Role::Generated => self.attend_generated((*q, *out), *layer, *scale, w),
                },
                Op::SwiGlu { gate: a, up: b, out } | Op::Add { a, b, out } => {
                    let swiglu = matches!(&self.program.ops[at], Op::SwiGlu { .. });
                    let f = if swiglu { self.table.swiglu } else { self.table.add };
                    // rows of one length lie side by side: divide them as one, so that one row keeps all threads busy
                    let part = w.share(self.n_rows(*out) * self.width(*out), 64);
                    let at = |slot: Slot| (self.buffers[slot].0.add(part.start), 0);
                    let (a, b) = ((at(*a).0.cast_const(), 0), (at(*b).0.cast_const(), 0));
                    f(&Operands { a, b, y: at(*out), rows: 1, n: part.len() });
                }
                Op::SelectRows { x, out } => {
                    for r in w.share(self.wanted.len(), 1) {
                        self.row(*out, r).copy_from_slice(self.row(*x, self.wanted[r]));
                    }
                }
            }
        }
    }

    unsafe fn kv_write(&self, k: Slot, v: Slot, layer: usize, w: &Worker<'_>) {
        let shape = self.program.kv;
        for i in w.share(self.rows.len() * shape.n_head_kv, 1) {
            let (r, head) = (i / shape.n_head_kv, i % shape.n_head_kv);
            let Row { seq, pos, .. } = self.rows[r];
            let page = self.step.seqs[seq].table[pos / PAGE];
            let part = head * shape.head_dim..(head + 1) * shape.head_dim;
            // SAFETY: one thread has this row and head, sequences do not share pages they write to, and the store is
            // read only after the next barrier.
            unsafe {
                let kv = (&self.row(k, r)[part.clone()], &self.row(v, r)[part]);
                self.kv_writer.write((layer, head, page, pos % PAGE), kv, self.table.to_f16);
            }
        }
    }
}

/// Rotates neighbouring values.
fn rotate_pairs(x: &[f32], cosines: &[f32], sines: &[f32], y: &mut [f32]) {
    for (((x, y), cos), sin) in x.chunks_exact(2).zip(y.chunks_exact_mut(2)).zip(cosines).zip(sines) {
        y[0] = x[0] * cos - x[1] * sin;
        y[1] = x[0] * sin + x[1] * cos;
    }
}

#[path = "exec_attention.rs"]
mod attend;
#[path = "exec_matmul.rs"]
mod matmul;
