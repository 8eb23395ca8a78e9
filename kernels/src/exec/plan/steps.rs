//! The tasks of a program in order, each with what it reads and writes and how its values are
//! divided.

use super::super::epilogue::{Epilogue, epilogue};
use super::super::sizes::STRIP_PAIR;
use super::super::tiles::ByExpert;
use super::{CODES, Division, Ready, Stage, Task};
use crate::fuse::Group;
use crate::matrix::Matrix;
use crate::op::Op;
use crate::program::{Phase, Program, Resource, Slot};
use octavo_simd::act::{ACT_GROUP, Form};
use octavo_simd::table::Table;

/// A task with what it reads and writes.
pub(super) struct Step {
    pub(super) task: Task,
    pub(super) reads: Vec<Resource>,
    pub(super) writes: Vec<Resource>,
    /// Product inputs already prepared before it.
    pub(super) ready: Vec<Ready>,
}

/// All tasks in order.
pub(super) fn steps(
    table: &Table,
    program: &Program,
    matrices: &[Matrix],
    groups: &[Option<Group>],
    phase: Phase,
    tapped: bool,
) -> Vec<Step> {
    let mut steps = Steps {
        program,
        matrices,
        table,
        phase,
        ready: Vec::new(),
        list: Vec::new(),
    };
    steps.push(
        0,
        Stage::Angles,
        vec![],
        vec![Resource::Angles],
        Division::Own,
    );
    let mut at = 0;
    while let Some(instruction) = program.ops.get(at) {
        let fused = groups[at].as_ref().filter(|_| !tapped);
        let then = fused.and_then(|group| epilogue(group, matrices, phase));
        match instruction.op {
            Op::MatMul { x, w } => steps.product(at, x, w, instruction.result(), then),
            Op::ExpertMatMul { x, w, ids, .. } => {
                steps.expert_product(at, x, w, ids, instruction.result());
            }
            Op::Attention { .. } | Op::SelectKeys { .. } if phase == Phase::Decode => {
                steps.push(
                    at,
                    Stage::Pieces,
                    instruction.reads(),
                    vec![Resource::Slot(instruction.result()), Resource::Pieces],
                    Division::Own,
                );
            }
            Op::AllGather { x, .. } => steps.all_gather(at, x, instruction.result()),
            _ => steps.push(
                at,
                Stage::Whole(None),
                instruction.reads(),
                instruction.writes(),
                steps.division(at),
            ),
        }
        if tapped && instruction.out.is_some() {
            steps.push(at, Stage::Tap, vec![], vec![], Division::Own);
        }
        at = 1 + fused
            .filter(|_| then.is_some())
            .map_or(at, |group| group.last);
    }
    steps.list
}

/// A growing list of steps.
struct Steps<'a> {
    program: &'a Program,
    matrices: &'a [Matrix],
    table: &'a Table,
    phase: Phase,
    /// Product inputs prepared after the last step.
    ready: Vec<Ready>,
    list: Vec<Step>,
}

impl Steps<'_> {
    fn push(
        &mut self,
        op: usize,
        stage: Stage,
        reads: Vec<Resource>,
        writes: Vec<Resource>,
        division: Division,
    ) {
        let task = Task {
            op,
            stage,
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
        let form = self.matrices[w].reads(self.phase);
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
            Stage::Whole(then),
            reads,
            vec![Resource::Slot(out)],
            Division::Own,
        );
        if let Resource::Codes(i) = input {
            self.last().task.reads_codes = i;
        }
    }

    /// Adds a product with the experts that `ids` names.
    fn expert_product(&mut self, at: usize, x: Slot, w: usize, ids: Slot, out: Slot) {
        let input = match self.matrices[w].reads(self.phase) {
            Form::Floats => Resource::Slot(x),
            // in their rows' order: each expert finds its rows
            Form::Codes => self.prepared(at, x, w, None),
            // a tile's rows are those of one expert
            Form::Tiles(_) => {
                let by = ByExpert::new(ids, &self.matrices[w]);
                self.prepared(at, x, w, Some(by))
            }
        };
        self.push(
            at,
            Stage::Whole(None),
            vec![input, Resource::Slot(ids)],
            vec![Resource::Slot(out)],
            Division::Own,
        );
        if let Resource::Codes(i) = input {
            self.last().task.reads_codes = i;
        }
    }

    /// Exchanges parts of rows with the other ranks. For prompts, all threads then join them into
    /// rows; for generated tokens, the exchanging thread does.
    fn all_gather(&mut self, at: usize, x: Slot, out: Slot) {
        let (parts, out) = (Resource::Parts, Resource::Slot(out));
        let reads = vec![Resource::Slot(x)];
        self.push(at, Stage::Exchange, reads, vec![parts, out], Division::Own);
        if self.phase == Phase::Prefill {
            let division = self.division(at);
            let stage = Stage::Whole(None);
            self.push(at, stage, vec![parts], vec![out], division);
        }
    }

    /// The resource that holds the input of the product at `at` in the form that it reads, perhaps
    /// arranged by experts; adds a step that converts it if necessary.
    fn prepared(&mut self, at: usize, x: Slot, w: usize, by: Option<ByExpert>) -> Resource {
        let form = self.matrices[w].reads(self.phase);
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
                Stage::Prepare(form),
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

    /// A free place for an input in such a form. Integers alternate between the two places, so that
    /// a product can read one while it makes the other: a step that makes them must not overwrite
    /// its own input, whichever was made last.
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

    /// Whether each writer of values of `x` in the last step writes all the values that share a
    /// scale.
    fn last_step_makes_groups_of(&self, x: Slot) -> bool {
        let step = self
            .list
            .last()
            .expect("the first step is pushed before all others");
        let together = match (step.task.stage, &self.program.ops[step.task.op].op) {
            (Stage::Pieces, &Op::Attention { cache, .. }) => {
                self.program.slots[x].width / self.program.cache(cache).n_head_kv
            }
            // this kernel takes strips in pairs
            (Stage::Whole(Some(Epilogue::Gate { .. })), &Op::MatMul { w, .. })
                if self.matrices[w].reads(self.phase) == Form::Codes =>
            {
                STRIP_PAIR * self.table.strip
            }
            _ => return false,
        };
        step.writes.first() == Some(&Resource::Slot(x)) && together.is_multiple_of(ACT_GROUP)
    }

    /// How the conversion of a product's input is divided.
    fn division_of_preparation(&self, x: Slot, w: usize) -> Division {
        let own_rows = self.rows_of_preparation(w);
        let writer = self
            .list
            .iter()
            .rfind(|step| step.writes.contains(&Resource::Slot(x)));
        let by_rows = writer.is_some_and(|step| step.task.division == own_rows);
        // integers are made in groups of values, so that one row keeps several threads busy where
        // none has it already
        let in_groups = self.matrices[w].reads(self.phase) == Form::Codes;
        if by_rows || !in_groups {
            own_rows
        } else {
            Division::Own
        }
    }

    /// How the preparation of a product's input divides rows, so that the threads that made the
    /// rows can continue with them.
    fn rows_of_preparation(&self, w: usize) -> Division {
        match self.matrices[w].reads(self.phase) {
            Form::Floats => Division::Own,
            Form::Codes => Division::Rows { grain: 1 },
            Form::Tiles(_) => Division::Rows {
                grain: self.matrices[w].prompt().0.tile,
            },
        }
    }

    /// The division of the next product's input that reads the result.
    fn division_for_product(&self, at: usize) -> Division {
        let out = self.program.ops[at].out;
        let mut behind = self.program.ops[at + 1..].iter();
        let next = behind.find_map(|next| match next.op {
            Op::MatMul { x, w } if Some(x) == out => Some(w),
            _ => None,
        });
        next.map_or(Division::Own, |w| self.rows_of_preparation(w))
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
            // as the next product's input is divided, so that the thread that normalized a row
            // continues with it
            Op::RmsNorm { x, weight, .. } | Op::LayerNorm { x, weight, .. }
                if weight.len() == width(*x) =>
            {
                self.division_for_product(at)
            }
            Op::AllGather { .. } => self.division_for_product(at),
            Op::AddBias { x, .. } => match self.program.head_dim_of(width(*x)) {
                Some(head_dim) => heads(head_dim, width(*x)),
                None => Division::Own,
            },
            Op::Rope { x, head_dim, .. } => heads(*head_dim, width(*x)),
            // few values a row: saving a barrier counts for more than dividing rows
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
