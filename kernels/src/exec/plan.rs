//! What the threads do between two barriers: operations of a program gathered into sections.
//!
//! A section ends where a thread may read what another one writes, or write what another one reads or writes. It does
//! not end between operations that divide their rows in the same way: there each thread goes on with its own.

use super::epilogue::{Epilogue, epilogue};
use super::{Matrix, Op, Program, Reads, Resource, Role, Slot};

/// All sections of a step.
pub(super) struct Plan {
    pub(super) sections: Vec<Section>,
}

/// What is done between two barriers.
#[derive(Default)]
pub(super) struct Section {
    pub(super) tasks: Vec<Task>,
    /// It can be done again from its inputs: it writes nothing that it reads, and nothing that outlives the step.
    pub(super) can_repeat: bool,
    /// What it, or sections after it, read of what earlier ones wrote.
    pub(super) carried: Vec<Resource>,
    /// Inputs of products that earlier sections have brought into another form.
    pub(super) ready: Vec<Ready>,
}

/// An input of products in another form than its slot's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) slot: Slot,
    pub(super) form: Reads,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Number of the operation.
    pub(super) op: usize,
    pub(super) phase: Phase,
    /// Rows that are not divided among threads, where whole rows are divided.
    pub(super) grain: usize,
}

/// Which part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before all operations: cosines and sines of all positions.
    Angles,
    /// A product's input is brought into a form.
    Prepare(Reads),
    /// The operation itself.
    Whole(Option<Epilogue>),
    /// Attention of generated tokens, in pieces of the positions.
    Pieces,
    /// Those joined.
    Merge,
    /// The result is shown.
    Tap,
}

/// How a task's values are divided among threads. Tasks that divide in the same way follow each other without a barrier,
/// because each thread reads nothing but what it wrote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// By row and head of a width.
    Heads { width: usize },
    /// By so many rows.
    Rows { grain: usize },
    /// In a way of its own.
    Own,
}

/// A task with what it reads and writes.
struct Step {
    task: Task,
    reads: Vec<Resource>,
    writes: Vec<Resource>,
    division: Division,
}

/// What an open section reads and writes, and by which division.
type Uses = Vec<(Resource, Division)>;

impl Plan {
    /// The sections of a program for tokens of a role. If `tapped`, every result is shown, nothing is fused, and
    /// nothing can be repeated.
    pub(super) fn new(program: &Program, matrices: &[Matrix], role: Role, tapped: bool) -> Plan {
        let mut sections: Vec<Section> = Vec::new();
        let (mut read, mut written): (Uses, Uses) = (Vec::new(), Vec::new());
        let mut ready: Vec<Ready> = Vec::new();
        let mut uses: Vec<(Vec<Resource>, Vec<Resource>)> = Vec::new();
        for step in steps(program, matrices, role, tapped) {
            let clashes = |with: &Uses, resource: &Resource| {
                let apart = |division| division != step.division || division == Division::Own;
                with.iter().any(|(used, division)| used == resource && apart(*division))
            };
            let waits = step.reads.iter().any(|r| clashes(&written, r))
                || step.writes.iter().any(|r| clashes(&written, r) || clashes(&read, r))
                || step.task.phase == Phase::Tap
                || sections.last().is_none_or(|s| s.tasks.iter().any(|task| task.phase == Phase::Tap));
            if waits {
                read.clear();
                written.clear();
                sections.push(Section { ready: ready.clone(), can_repeat: !tapped, ..Section::default() });
                uses.push((Vec::new(), Vec::new()));
            }
            note_ready(&mut ready, &step);
            let (section, (reads, writes)) = (sections.last_mut().expect("pushed"), uses.last_mut().expect("pushed"));
            // what an earlier task of the section has made is no input of the section
            reads.extend(step.reads.iter().filter(|r| !writes.contains(r)));
            writes.extend(&step.writes);
            let overwrites = writes.iter().any(|r| reads.contains(r) || matches!(r, Resource::Kv(_)));
            section.can_repeat &= !overwrites;
            section.tasks.push(step.task);
            read.extend(step.reads.iter().map(|r| (*r, step.division)));
            written.extend(step.writes.iter().map(|r| (*r, step.division)));
        }
        let mut live = vec![Resource::Slot(program.output)];
        for (section, (reads, writes)) in sections.iter_mut().zip(&uses).rev() {
            live.retain(|r| !writes.contains(r));
            let news: Vec<Resource> = reads.iter().copied().filter(|r| !live.contains(r)).collect();
            live.extend(news);
            live.dedup();
            section.carried = live.iter().copied().filter(|r| !matches!(r, Resource::Kv(_))).collect();
        }
        Plan { sections }
    }
}

/// Keeps the list of inputs that are ready in another form.
fn note_ready(ready: &mut Vec<Ready>, step: &Step) {
    ready.retain(|r| !step.writes.contains(&Resource::Slot(r.slot)));
    if let Phase::Prepare(form) = step.task.phase {
        let Some(&Resource::Slot(slot)) = step.reads.first() else { return };
        ready.retain(|r| place_of(r.form) != place_of(form));
        ready.push(Ready { slot, form });
    }
}

/// Where inputs of a form stand: there is room for one as integers, and for one in tiles of any form.
pub(super) fn place_of(form: Reads) -> Resource {
    if form == Reads::Codes { Resource::Codes } else { Resource::Tiles }
}

/// All tasks in order.
fn steps(program: &Program, matrices: &[Matrix], role: Role, tapped: bool) -> Vec<Step> {
    let mut steps = Steps { program, matrices, role, ready: Vec::new(), list: Vec::new() };
    steps.push(0, Phase::Angles, vec![], vec![Resource::Angles], Division::Own);
    let mut fused = 0;
    for (at, op) in program.ops.iter().enumerate() {
        if fused > 0 {
            fused -= 1;
            continue;
        }
        let mut then = None;
        if !tapped {
            (then, fused) = epilogue(program, matrices, role, at);
        }
        match *op {
            Op::MatMul { x, w, out } => steps.product(at, x, w, out, then),
            Op::Attention { .. } if role == Role::Generated => {
                steps.push(at, Phase::Pieces, op.inputs(), vec![Resource::Pieces], Division::Own);
                steps.push(at, Phase::Merge, vec![Resource::Pieces], op.writes(), Division::Own);
            }
            _ => steps.push(at, Phase::Whole(None), op.inputs(), op.writes(), steps.division(at)),
        }
        if tapped && op.out().is_some() {
            steps.push(at, Phase::Tap, vec![], vec![], Division::Own);
        }
    }
    steps.list
}

/// A list of steps that grows.
struct Steps<'a> {
    program: &'a Program,
    matrices: &'a [Matrix],
    role: Role,
    ready: Vec<Ready>,
    list: Vec<Step>,
}

impl Steps<'_> {
    fn push(&mut self, op: usize, phase: Phase, reads: Vec<Resource>, writes: Vec<Resource>, division: Division) {
        let grain = if let Division::Rows { grain } = division { grain } else { 1 };
        let step = Step { task: Task { op, phase, grain }, reads, writes, division };
        note_ready(&mut self.ready, &step);
        self.list.push(step);
    }

    fn product(&mut self, at: usize, x: Slot, w: usize, out: Slot, then: Option<Epilogue>) {
        let form = self.matrices[w].reads(self.role == Role::Generated);
        let mut reads = vec![Resource::Slot(x)];
        if form != Reads::Floats {
            if !self.ready.contains(&Ready { slot: x, form }) {
                let division = self.preparation(w);
                self.push(at, Phase::Prepare(form), reads.clone(), vec![place_of(form)], division);
            }
            reads = vec![place_of(form)];
        }
        if let Some(Epilogue::Add { to, .. }) = then {
            reads.push(Resource::Slot(to));
        }
        let out = then.map_or(out, Epilogue::out);
        self.push(at, Phase::Whole(then), reads, vec![Resource::Slot(out)], Division::Own);
    }

    /// How a product's input is divided while it is brought into its form.
    fn preparation(&self, w: usize) -> Division {
        let generated = self.role == Role::Generated;
        match self.matrices[w].reads(generated) {
            Reads::Codes | Reads::Floats => Division::Own,
            Reads::Tiles | Reads::Pairs | Reads::Bf16 => {
                Division::Rows { grain: self.matrices[w].prompt(generated).0.tile }
            }
        }
    }

    fn division(&self, at: usize) -> Division {
        let head_dim = self.program.kv.head_dim;
        let width = |slot: Slot| self.program.slots[slot].width;
        let heads = |width: usize| match width.is_multiple_of(head_dim) {
            true => Division::Heads { width },
            false => Division::Own,
        };
        match &self.program.ops[at] {
            Op::RmsNorm { x, weight, .. } if weight.len() == head_dim && weight.len() < width(*x) => heads(width(*x)),
            // as the next product's input is divided, so that whoever has normed rows goes on with them
            Op::RmsNorm { x, weight, out, .. } if weight.len() == width(*x) => {
                let next = self.program.ops[at + 1..].iter().find_map(|op| match *op {
                    Op::MatMul { x, w, .. } if x == *out => Some(w),
                    _ => None,
                });
                next.map_or(Division::Own, |w| self.preparation(w))
            }
            Op::AddBias { x, .. } => heads(width(*x)),
            Op::Rope { x, head_dim: rotated, .. } if *rotated == head_dim => heads(width(*x)),
            Op::KvWrite { k, .. } => heads(width(*k)),
            _ => Division::Own,
        }
    }
}
