//! What the threads do between two barriers: operations of a program gathered into sections.
//!
//! A section ends where a thread may read what another one writes, or write what another one reads
//! or writes. It does not end between operations that divide their rows in the same way: there each
//! thread goes on with its own.

use std::ops::Range;

use super::epilogue::{Epilogue, epilogue};
use super::experts::ByExpert;
use super::{ACT_GROUP, Form, Matrix, Op, Program, Resource, Role, STRIP_PAIR, Slot, Table};
use crate::fuse::Group;

/// Places for inputs of products as integers.
pub(super) const CODES: usize = 2;

/// All sections of a step.
pub(super) struct Plan {
    pub(super) sections: Vec<Section>,
    /// Where rows see later ones: parts of the sections, each of which can be run for some rows
    /// after the others. All rows have written their keys and values in the stages before.
    pub(super) stages: Option<Stages>,
}

/// A plan's sections in stages.
pub(super) struct Stages {
    pub(super) sections: Vec<Range<usize>>,
    /// By slot: whether it is handed from stage to stage, or is the output, so that all rows have
    /// room in it.
    pub(super) kept: Vec<bool>,
}

/// What is done between two barriers.
#[derive(Default)]
pub(super) struct Section {
    pub(super) tasks: Vec<Task>,
    /// It can be done again from its inputs: it writes nothing that it reads, and nothing that
    /// outlives the step.
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
    pub(super) form: Form,
    /// By which experts its rows are arranged, if they are.
    pub(super) by: Option<ByExpert>,
    /// Where it stands.
    pub(super) at: Resource,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Number of the operation.
    pub(super) op: usize,
    pub(super) phase: Phase,
    /// How its values are divided.
    pub(super) division: Division,
    /// Where a product finds its input, if it reads integers.
    pub(super) reads_codes: usize,
    /// Where the results are left as integers as well, for the product that follows.
    pub(super) codes: Option<usize>,
}

/// Which part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before all operations: cosines and sines of all positions.
    Angles,
    /// A product's input is brought into a form.
    Prepare(Form),
    /// The operation itself.
    Whole(Option<Epilogue>),
    /// Attention of generated tokens, in pieces of the positions; whoever finishes the last of a
    /// head joins them.
    Pieces,
    /// The result is shown.
    Tap,
}

/// How a task's values are divided among threads. Tasks that divide in the same way follow each
/// other without a barrier, because each thread reads nothing but what it wrote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Division {
    /// By row and head of a width.
    Heads { head_dim: usize, width: usize },
    /// By so many rows.
    Rows { grain: usize },
    /// In a way of its own.
    Own,
}

impl Division {
    /// Rows that stay together, where whole rows are divided.
    pub(super) fn grain(self) -> usize {
        if let Division::Rows { grain } = self {
            grain
        } else {
            1
        }
    }
}

/// A task with what it reads and writes.
struct Step {
    task: Task,
    reads: Vec<Resource>,
    writes: Vec<Resource>,
    /// What stands ready before it.
    ready: Vec<Ready>,
}

/// What an open section reads and writes, and by which division.
type Uses = Vec<(Resource, Division)>;

impl Plan {
    /// The sections of a program for tokens of a role. If `tapped`, every result is shown, nothing
    /// is fused, and nothing can be repeated.
    pub(super) fn new(
        table: &Table,
        program: &Program,
        matrices: &[Matrix],
        groups: &[Option<Group>],
        role: Role,
        tapped: bool,
    ) -> Plan {
        let mut sections: Vec<Section> = Vec::new();
        let (mut read, mut written): (Uses, Uses) = (Vec::new(), Vec::new());
        let mut uses: Vec<(Vec<Resource>, Vec<Resource>)> = Vec::new();
        for step in steps(table, program, matrices, groups, role, tapped) {
            let clashes = |with: &Uses, resource: &Resource| {
                let apart = |division| division != step.task.division || division == Division::Own;
                with.iter()
                    .any(|(used, division)| used == resource && apart(*division))
            };
            let waits = step.reads.iter().any(|r| clashes(&written, r))
                || step
                    .writes
                    .iter()
                    .any(|r| clashes(&written, r) || clashes(&read, r))
                || step.task.phase == Phase::Tap
                || sections
                    .last()
                    .is_none_or(|s| s.tasks.iter().any(|task| task.phase == Phase::Tap));
            if waits {
                read.clear();
                written.clear();
                sections.push(Section {
                    ready: step.ready,
                    can_repeat: !tapped,
                    ..Section::default()
                });
                uses.push((Vec::new(), Vec::new()));
            }
            let (section, (reads, writes)) = (
                sections.last_mut().expect("pushed"),
                uses.last_mut().expect("pushed"),
            );
            // what an earlier task of the section has made is no input of the section
            reads.extend(step.reads.iter().filter(|r| !writes.contains(r)));
            writes.extend(&step.writes);
            let overwrites = writes.iter().any(|r| reads.contains(r) || r.is_kept());
            section.can_repeat &= !overwrites;
            section.tasks.push(step.task);
            read.extend(step.reads.iter().map(|r| (*r, step.task.division)));
            written.extend(step.writes.iter().map(|r| (*r, step.task.division)));
        }
        let mut live = vec![Resource::Slot(program.output)];
        for (section, (reads, writes)) in sections.iter_mut().zip(&uses).rev() {
            live.retain(|r| !writes.contains(r));
            let news: Vec<Resource> = reads
                .iter()
                .copied()
                .filter(|r| !live.contains(r))
                .collect();
            live.extend(news);
            section.carried = live.iter().copied().filter(|r| !r.is_kept()).collect();
        }
        let stages = stages(program, &sections).filter(|_| role == Role::Prompt && !tapped);
        Plan { sections, stages }
    }
}

/// The stages of a program in which rows see later ones: each begins with such an attention. `None`
/// if there is no such attention, or more is handed on than rows of slots.
fn stages(program: &Program, sections: &[Section]) -> Option<Stages> {
    let sees_later = |task: &Task| program.ops[task.op].op.sees_later();
    let begins = |section: &Section| section.tasks.first().is_some_and(sees_later);
    let elsewhere = |section: &Section| section.tasks.iter().skip(1).any(sees_later);
    if !program.states.is_empty() || sections.iter().any(elsewhere) {
        return None;
    }
    let starts = (0..sections.len()).filter(|i| begins(&sections[*i]));
    let starts: Vec<usize> = std::iter::once(0).chain(starts).collect();
    let ends = starts[1..].iter().copied().chain([sections.len()]);
    let stages: Vec<Range<usize>> = starts.iter().zip(ends).map(|(a, b)| *a..b).collect();
    if stages.len() == 1
        || stages
            .iter()
            .any(|s| overwrites_keys(program, &sections[s.clone()]))
    {
        return None;
    }
    let mut kept = vec![false; program.slots.len()];
    kept[program.output] = true;
    for start in &starts[1..] {
        for resource in &sections[*start].carried {
            match resource {
                Resource::Slot(slot) => kept[*slot] = true,
                // those of all rows have room
                Resource::Angles => {}
                Resource::Codes(_)
                | Resource::Tiles
                | Resource::Pieces
                | Resource::Kv(_)
                | Resource::State(_) => return None,
            }
        }
    }
    Some(Stages {
        sections: stages,
        kept,
    })
}

/// Whether some rows could write keys where other rows still read those of a layer before.
fn overwrites_keys(program: &Program, sections: &[Section]) -> bool {
    let tasks = sections.iter().flat_map(|section| &section.tasks);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for task in tasks {
        match program.ops[task.op].op {
            Op::Attention { cache, .. } => read.push(cache),
            Op::KvWrite { cache, .. } => written.push(cache),
            _ => {}
        }
    }
    read.iter().any(|cache| written.contains(cache))
}

/// All tasks in order.
fn steps(
    table: &Table,
    program: &Program,
    matrices: &[Matrix],
    groups: &[Option<Group>],
    role: Role,
    tapped: bool,
) -> Vec<Step> {
    let mut steps = Steps {
        program,
        matrices,
        table,
        role,
        ready: Vec::new(),
        list: Vec::new(),
    };
    steps.push(
        0,
        Phase::Angles,
        vec![],
        vec![Resource::Angles],
        Division::Own,
    );
    let mut at = 0;
    while let Some(instruction) = program.ops.get(at) {
        let fused = groups[at].as_ref().filter(|_| !tapped);
        let then = fused.and_then(|group| epilogue(group, matrices, role));
        match instruction.op {
            Op::MatMul { x, w } => steps.product(at, x, w, instruction.result(), then),
            Op::ExpertMatMul { x, w, ids, .. } => {
                steps.expert_product(at, x, w, ids, instruction.result());
            }
            Op::Attention { .. } if role == Role::Generated => {
                steps.push(
                    at,
                    Phase::Pieces,
                    instruction.reads(),
                    vec![Resource::Slot(instruction.result()), Resource::Pieces],
                    Division::Own,
                );
            }
            _ => steps.push(
                at,
                Phase::Whole(None),
                instruction.reads(),
                instruction.writes(),
                steps.division(at),
            ),
        }
        if tapped && instruction.out.is_some() {
            steps.push(at, Phase::Tap, vec![], vec![], Division::Own);
        }
        at = 1 + fused
            .filter(|_| then.is_some())
            .map_or(at, |group| group.last);
    }
    steps.list
}

/// A list of steps that grows.
struct Steps<'a> {
    program: &'a Program,
    matrices: &'a [Matrix],
    table: &'a Table,
    role: Role,
    /// What stands ready after the last step.
    ready: Vec<Ready>,
    list: Vec<Step>,
}

impl Steps<'_> {
    fn push(
        &mut self,
        op: usize,
        phase: Phase,
        reads: Vec<Resource>,
        writes: Vec<Resource>,
        division: Division,
    ) {
        let task = Task {
            op,
            phase,
            division,
            reads_codes: 0,
            codes: None,
        };
        let ready = self.ready.clone();
        let overwritten = |slot: Slot| writes.contains(&Resource::Slot(slot));
        self.ready
            .retain(|r| !overwritten(r.slot) && !r.by.is_some_and(|by| overwritten(by.ids)));
        self.list.push(Step {
            task,
            reads,
            writes,
            ready,
        });
    }

    fn last(&mut self) -> &mut Step {
        self.list
            .last_mut()
            .expect("the first step is pushed before all others")
    }

    fn product(&mut self, at: usize, x: Slot, w: usize, out: Slot, then: Option<Epilogue>) {
        let form = self.matrices[w].reads(self.role);
        let mut input = Resource::Slot(x);
        if form != Form::Floats {
            input = self.prepared(at, x, w, None);
        }
        let mut reads = vec![input];
        if let Some(Epilogue::Add { to, .. }) = then {
            reads.push(Resource::Slot(to));
        }
        let out = then.map_or(out, Epilogue::out);
        self.push(
            at,
            Phase::Whole(then),
            reads,
            vec![Resource::Slot(out)],
            Division::Own,
        );
        if let Resource::Codes(i) = input {
            self.last().task.reads_codes = i;
        }
    }

    /// A product with the experts that `ids` names.
    fn expert_product(&mut self, at: usize, x: Slot, w: usize, ids: Slot, out: Slot) {
        let input = match self.matrices[w].reads(self.role) {
            Form::Floats => Resource::Slot(x),
            // as they are: each expert finds its rows
            Form::Codes => self.prepared(at, x, w, None),
            // a tile's rows are those of one expert
            Form::Tiles | Form::Pairs | Form::Bytes | Form::Bf16 => {
                let by = ByExpert::new(ids, &self.matrices[w]);
                self.prepared(at, x, w, Some(by))
            }
        };
        self.push(
            at,
            Phase::Whole(None),
            vec![input, Resource::Slot(ids)],
            vec![Resource::Slot(out)],
            Division::Own,
        );
        if let Resource::Codes(i) = input {
            self.last().task.reads_codes = i;
        }
    }

    /// Where the input of the product at `at` stands in the form that it reads, perhaps arranged by
    /// experts, after a step for that if necessary.
    fn prepared(&mut self, at: usize, x: Slot, w: usize, by: Option<ByExpert>) -> Resource {
        let form = self.matrices[w].reads(self.role);
        if let Some(ready) = self
            .ready
            .iter()
            .find(|ready| (ready.slot, ready.form, ready.by) == (x, form, by))
        {
            return ready.at;
        }
        let by_last_step = form == Form::Codes && self.last_step_makes_groups_of(x);
        let place = self.free_place(form, by_last_step);
        if !by_last_step {
            let division = match by {
                Some(_) => Division::Own,
                None => self.division_of_preparation(x, w),
            };
            let ids = by.map(|by| Resource::Slot(by.ids));
            self.push(
                at,
                Phase::Prepare(form),
                [Resource::Slot(x)].into_iter().chain(ids).collect(),
                Vec::new(),
                division,
            );
        }
        self.last().writes.push(place);
        if let Resource::Codes(i) = place {
            self.last().task.codes = Some(i);
        }
        self.ready.retain(|ready| ready.at != place);
        self.ready.push(Ready {
            slot: x,
            form,
            by,
            at: place,
        });
        place
    }

    /// Where there is room for an input in such a form. Integers go from one place to the other, so
    /// that a product can read the ones while it makes the others: a step that makes them must not
    /// put them where its own input is, whichever was made last.
    fn free_place(&self, form: Form, by_last_step: bool) -> Resource {
        if form != Form::Codes {
            return Resource::Tiles;
        }
        let read = self.list.last().filter(|_| by_last_step);
        let read = read.and_then(|step| {
            let is_place = |r: &&Resource| matches!(r, Resource::Codes(_));
            step.reads.iter().find(is_place).copied()
        });
        if let Some(Resource::Codes(i)) = read {
            return Resource::Codes((i + 1) % CODES);
        }
        let last = self.ready.iter().rev().find_map(|ready| {
            if let Resource::Codes(i) = ready.at {
                Some(i)
            } else {
                None
            }
        });
        Resource::Codes(last.map_or(0, |i| (i + 1) % CODES))
    }

    /// Whether whoever writes values of `x` in the last step writes all the values that share a
    /// scale.
    fn last_step_makes_groups_of(&self, x: Slot) -> bool {
        let step = self
            .list
            .last()
            .expect("the first step is pushed before all others");
        let together = match (step.task.phase, &self.program.ops[step.task.op].op) {
            (Phase::Pieces, &Op::Attention { cache, .. }) => {
                self.program.slots[x].width / self.program.cache(cache).n_head_kv
            }
            // strips go in pairs there
            (Phase::Whole(Some(Epilogue::Gate { .. })), &Op::MatMul { w, .. })
                if self.matrices[w].reads(self.role) == Form::Codes =>
            {
                STRIP_PAIR * self.table.strip
            }
            _ => return false,
        };
        step.writes.first() == Some(&Resource::Slot(x)) && together.is_multiple_of(ACT_GROUP)
    }

    /// How a product's input is divided while it is brought into its form.
    fn division_of_preparation(&self, x: Slot, w: usize) -> Division {
        let own_rows = self.rows_of_preparation(w);
        let writer = self
            .list
            .iter()
            .rfind(|step| step.writes.contains(&Resource::Slot(x)));
        let by_rows = writer.is_some_and(|step| step.task.division == own_rows);
        // integers are made of groups of values, so that one row keeps several threads busy where
        // none has it already
        let in_groups = self.matrices[w].reads(self.role) == Form::Codes;
        if by_rows || !in_groups {
            own_rows
        } else {
            Division::Own
        }
    }

    /// How rows are divided by whoever makes a product's input, so that they can go on with them.
    fn rows_of_preparation(&self, w: usize) -> Division {
        match self.matrices[w].reads(self.role) {
            Form::Floats => Division::Own,
            Form::Codes => Division::Rows { grain: 1 },
            Form::Tiles | Form::Pairs | Form::Bytes | Form::Bf16 => Division::Rows {
                grain: self.matrices[w].prompt(self.role).0.tile,
            },
        }
    }

    fn division(&self, at: usize) -> Division {
        let width = |slot: Slot| self.program.slots[slot].width;
        let heads = |head_dim: usize, width: usize| Division::Heads { head_dim, width };
        let instruction = &self.program.ops[at];
        match &instruction.op {
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. }
                if weight.len() < width(*x) =>
            {
                heads(weight.len(), width(*x))
            }
            // as the next product's input is divided, so that whoever has normed rows goes on with
            // them
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. }
                if weight.len() == width(*x) =>
            {
                let out = instruction.out;
                let mut behind = self.program.ops[at + 1..].iter();
                let next = behind.find_map(|next| match next.op {
                    Op::MatMul { x, w } if Some(x) == out => Some(w),
                    _ => None,
                });
                next.map_or(Division::Own, |w| self.rows_of_preparation(w))
            }
            Op::AddBias { x, .. } => match self.program.head_dim_of(width(*x)) {
                Some(head_dim) => heads(head_dim, width(*x)),
                None => Division::Own,
            },
            Op::Rope { x, head_dim, .. } => heads(*head_dim, width(*x)),
            // few values a row, so that it is better not to wait for each other
            Op::Softmax { .. }
            | Op::TopK { .. }
            | Op::Gather { .. }
            | Op::Normalize { .. }
            | Op::MulVector { .. }
            | Op::Constant { .. }
            | Op::Concat { .. }
            | Op::Slice { .. } => Division::Rows { grain: 1 },
            Op::KvWrite { k, cache, .. } => heads(self.program.cache(*cache).head_dim, width(*k)),
            _ => Division::Own,
        }
    }
}
