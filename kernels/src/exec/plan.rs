//! Sections, the work between two barriers: a program's operations gathered into sections.
//!
//! A section ends where a thread may read what another one writes, or write what another one reads
//! or writes. It does not end between operations that divide their rows in the same way: there each
//! thread continues with its own rows.

mod steps;

use std::ops::Range;

use super::epilogue::Epilogue;
use super::tiles::ByExpert;
use crate::fuse::Group;
use crate::matrix::Matrix;
use crate::op::Op;
use crate::program::{Phase, Program, Resource, Slot};
use octavo_simd::act::Form;
use octavo_simd::table::Table;
use steps::steps;

/// Number of places for inputs of products as integers.
pub(super) const CODES: usize = 2;

/// All sections of a step.
pub(super) struct Plan {
    pub(super) sections: Vec<Section>,
    /// For programs in which rows see later ones: parts of the sections, each of which is run for
    /// blocks of rows, one after the other. All rows have written their keys and values in the
    /// stages before.
    pub(super) stages: Option<Stages>,
}

/// A plan's sections in stages.
pub(super) struct Stages {
    pub(super) sections: Vec<Range<usize>>,
    /// By slot: whether its rows are handed from stage to stage, or are the output, so that it has
    /// room for all rows.
    pub(super) retained: Vec<bool>,
}

/// Work done between two barriers.
#[derive(Default)]
pub(super) struct Section {
    pub(super) tasks: Vec<Task>,
    /// It can be run again from its inputs: it writes nothing that it reads, and nothing that
    /// outlives the step.
    pub(super) can_repeat: bool,
    /// Resources written by earlier sections that this or later sections read.
    pub(super) carried: Vec<Resource>,
    /// Inputs of products that earlier sections have converted to another form.
    pub(super) ready: Vec<Ready>,
}

/// A product's input in another form than its slot's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) slot: Slot,
    pub(super) form: Form,
    /// The expert routing by which its rows are arranged, if any.
    pub(super) by: Option<ByExpert>,
    /// The resource that holds it.
    pub(super) at: Resource,
}

/// One stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Number of the operation.
    pub(super) op: usize,
    pub(super) stage: Stage,
    /// How its values are divided.
    pub(super) division: Division,
    /// Place of a product's input, if it reads integers.
    pub(super) reads_codes: usize,
    /// Place where the results are also stored as integers, for the product that follows.
    pub(super) codes: Option<usize>,
}

/// Part of an operation that a task executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Computes cosines and sines of all positions, before all operations.
    Angles,
    /// Converts a product's input to a form.
    Prepare(Form),
    /// The operation itself.
    Whole(Option<Epilogue>),
    /// Attention of generated tokens, in pieces of the positions; the thread that finishes the last
    /// piece of a head joins them.
    Pieces,
    /// Ranks exchange their parts of rows, on one thread.
    Exchange,
    /// The result is shown to the tap.
    Tap,
}

/// How a task's values are divided among threads. Tasks with the same division follow each other
/// without a barrier, because each thread reads nothing but what it wrote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Division {
    /// By row and head, of the given size in a row of `width`.
    Heads { head_dim: usize, width: usize },
    /// By blocks of `grain` rows.
    Rows { grain: usize },
    /// In a way that no other task shares.
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

/// Resources that an open section reads or writes, each with its division.
type Uses = Vec<(Resource, Division)>;

impl Plan {
    /// Makes the sections of a program for tokens of a phase. If `tapped`, every result is shown,
    /// nothing is fused, and nothing can be repeated.
    pub(super) fn new(
        table: &Table,
        program: &Program,
        matrices: &[Matrix],
        groups: &[Option<Group>],
        phase: Phase,
        tapped: bool,
    ) -> Plan {
        let mut sections: Vec<Section> = Vec::new();
        let (mut read, mut written): (Uses, Uses) = (Vec::new(), Vec::new());
        let mut uses: Vec<(Vec<Resource>, Vec<Resource>)> = Vec::new();
        for step in steps(table, program, matrices, groups, phase, tapped) {
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
                || step.task.stage == Stage::Tap
                || begins_anew(program, &step.task)
                || sections
                    .last()
                    .is_none_or(|s| s.tasks.iter().any(|task| task.stage == Stage::Tap));
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
            // values made by an earlier task of the section are no input of the section
            reads.extend(step.reads.iter().filter(|r| !writes.contains(r)));
            writes.extend(&step.writes);
            let overwrites = writes.iter().any(|r| reads.contains(r) || r.is_kept());
            // the other ranks take part once only
            let gathers = matches!(program.ops[step.task.op].op, Op::AllGather { .. });
            section.can_repeat &= !overwrites && !gathers;
            section.tasks.push(step.task);
            read.extend(step.reads.iter().map(|r| (*r, step.task.division)));
            written.extend(step.writes.iter().map(|r| (*r, step.task.division)));
        }
        let results = [program.output].into_iter().chain(program.kept);
        let mut live: Vec<Resource> = results.map(Resource::Slot).collect();
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
        let stages = stages(program, &sections).filter(|_| phase == Phase::Prefill && !tapped);
        Plan { sections, stages }
    }

    /// Sections of some operations: from the beginning, or from an [`Op::Input`] on.
    pub(super) fn sections_of(&self, ops: &Range<usize>) -> Range<usize> {
        let start = ops.start.checked_sub(1);
        let start = start.map_or(0, |before| self.sections_up_to(before));
        start
            ..ops
                .end
                .checked_sub(1)
                .map_or(start, |last| self.sections_up_to(last))
    }

    /// Number of sections up to and including the one that completes an operation.
    fn sections_up_to(&self, op: usize) -> usize {
        let begins = |section: &Section| section.tasks.iter().any(|task| task.op <= op);
        let last = self.sections.iter().rposition(begins);
        last.map_or(0, |last| last + 1)
    }
}

/// Whether a task begins a part of the program that may be run alone: later inputs begin a section.
fn begins_anew(program: &Program, task: &Task) -> bool {
    task.op > 0 && matches!(program.ops[task.op].op, Op::Input)
}

/// The stages of a program in which rows see later ones: each begins with such an attention. `None`
/// if there is no such attention, or if more than rows of slots is handed on.
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
    let mut retained = vec![false; program.slots.len()];
    retained[program.output] = true;
    program
        .kept
        .into_iter()
        .for_each(|slot| retained[slot] = true);
    for start in &starts[1..] {
        for resource in &sections[*start].carried {
            match resource {
                Resource::Slot(slot) => retained[*slot] = true,
                // they have room for all rows
                Resource::Angles => {}
                Resource::Codes(_)
                | Resource::Tiles
                | Resource::Pieces
                | Resource::Parts
                | Resource::Kv(_)
                | Resource::State(_) => return None,
            }
        }
    }
    Some(Stages {
        sections: stages,
        retained,
    })
}

/// Whether some rows could write keys where other rows still read those of a layer before.
fn overwrites_keys(program: &Program, sections: &[Section]) -> bool {
    let tasks = sections.iter().flat_map(|section| &section.tasks);
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for task in tasks {
        match program.ops[task.op].op {
            Op::Attention { cache, .. } | Op::SelectKeys { cache, .. } => read.push(cache),
            Op::KvWrite { cache, .. } => written.push(cache),
            _ => {}
        }
    }
    read.iter().any(|cache| written.contains(cache))
}
