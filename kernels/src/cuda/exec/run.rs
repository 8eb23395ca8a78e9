//! Runs a step's launches and gathers: one by one, by replaying recordings, or with a tap on every
//! result. Blocks of the host divide them into parts, each of which is a recording of its own.

use super::candidates::Want;
use super::launches::LaunchContext;
use super::record::Shape;
use super::{CaptureState, Executor, LaunchKey, Limits};
use crate::cuda::{Device, Error, Recording, Task, launch};
use crate::exec::TapFn;

/// A part of a step.
pub(super) enum Part {
    /// Tasks of the device.
    Device(Vec<Task>),
    /// The block of this number, on the host.
    Host(usize),
}

/// A part of a captured step.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// Captured tasks of the device.
    Replay(Recording),
    /// The block of this number, on the host.
    Host(usize),
}

/// Most rows of a step of one sequence that is captured for exactly these rows.
const MAX_CAPTURED_DRAFTS: usize = launch::IMMA_COLUMNS;

impl<D: Device> Executor<D> {
    /// Returns the shape in which a step's launches are captured, if they are: that of decode steps
    /// with outputs for all rows, of one token of each sequence or of some drafted ones.
    pub(super) fn captured_shape(&self, exact: &Shape, end: usize) -> Option<Shape> {
        let &Shape {
            generated,
            rows,
            outputs,
            sequences,
            ..
        } = exact;
        let Limits {
            rows: most_rows,
            outputs: most_outputs,
            sequences: most_sequences,
            ..
        } = self.limits;
        if !generated || outputs != rows {
            return None;
        }
        let bucket = Shape::bucket(rows, end);
        let fits = bucket.rows <= most_rows.min(most_outputs).min(most_sequences);
        // a sequence without rows has no place among states, so padding cannot be one
        let can_pad = sequences == rows || self.program.states.is_empty();
        let has_few_drafts = sequences == 1 && rows <= MAX_CAPTURED_DRAFTS;
        match fits && can_pad {
            true => Some(bucket),
            false => has_few_drafts.then_some(*exact),
        }
    }

    pub(super) fn context(&self, shape: Shape) -> LaunchContext<'_> {
        LaunchContext {
            program: &self.program,
            groups: &self.groups,
            plan: &self.plan,
            ranks: self.ranks.as_ref(),
            base: self.base,
            n_pages: self.limits.n_pages,
            multiprocessors: self.device.multiprocessors(),
            wide: self.device.is_wide(),
            imma: self.device.has_fast_imma(),
            shape,
            record: self
                .record
                .addresses(&shape, self.base.offset(self.plan.record)),
        }
    }

    /// Returns all parts of a step in order; none is empty.
    pub(super) fn list(&self, (shape, want): LaunchKey) -> Vec<Part> {
        let context = self.context(shape);
        let (mut parts, mut tasks) = (Vec::new(), Vec::new());
        for op in context.all(true) {
            match op.host {
                None => tasks.extend(op.tasks()),
                Some(block) => {
                    parts.push(Part::Device(std::mem::take(&mut tasks)));
                    parts.push(Part::Host(block));
                }
            }
        }
        if want != Want::Outputs {
            tasks.extend(context.argmax().into_iter().map(Task::Launch));
        }
        if want == Want::Candidates {
            tasks.extend(context.candidates().into_iter().map(Task::Launch));
        }
        parts.push(Part::Device(tasks));
        parts.retain(|part| !matches!(part, Part::Device(tasks) if tasks.is_empty()));
        parts
    }

    /// Starts tasks on the device, one by one.
    fn start_all(&mut self, tasks: impl IntoIterator<Item = Task>) -> Result<(), Error> {
        for task in tasks {
            // SAFETY: every address is in the arena, whose pieces were sized for the limits that
            // `start` checked; buffers are written by operations before those that read them, and
            // the record before all of them.
            unsafe { task.start(&mut self.device)? }
        }
        Ok(())
    }

    pub(super) fn run(&mut self, work: LaunchKey) -> Result<(), Error> {
        for part in self.list(work) {
            match part {
                Part::Device(tasks) => self.start_all(tasks)?,
                Part::Host(block) => self.run_on_host(block, work.0, None)?,
            }
        }
        Ok(())
    }

    pub(super) fn replay(&mut self, work: LaunchKey) -> Result<(), Error> {
        let pieces = match self.captures.get(&work) {
            None => {
                self.run(work)?;
                self.captures.insert(work, CaptureState::Once);
                return Ok(());
            }
            Some(CaptureState::Recorded(pieces)) => pieces.clone(),
            Some(CaptureState::Once) => match self.record(work) {
                Ok(pieces) => {
                    self.captures
                        .insert(work, CaptureState::Recorded(pieces.clone()));
                    pieces
                }
                // the other ranks have captured the tasks that this one would run uncaptured
                Err(error) if self.ranks.as_ref().is_some_and(|r| r.is_enqueued()) => {
                    return Err(error);
                }
                // capturing is only an optimization: from now on launches run without it
                Err(error) => {
                    (self.capture, self.refused) = (false, Some(error));
                    return self.run(work);
                }
            },
        };
        for piece in pieces {
            match piece {
                // SAFETY: as in `record`; the step record was written.
                Piece::Replay(recording) => unsafe { self.device.replay(recording)? },
                Piece::Host(block) => self.run_on_host(block, work.0, None)?,
            }
        }
        Ok(())
    }

    /// Captures the tasks of a step.
    fn record(&mut self, work: LaunchKey) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::new();
        for part in self.list(work) {
            pieces.push(match part {
                // SAFETY: as in `start_all`, for every replay: the arena keeps its address as long
                // as the device lives.
                Part::Device(tasks) => Piece::Replay(unsafe { self.device.record(tasks)? }),
                Part::Host(block) => Piece::Host(block),
            });
        }
        Ok(pieces)
    }

    pub(super) fn run_tapped(&mut self, shape: Shape, tap: &mut TapFn<'_>) -> Result<(), Error> {
        for part in self.context(shape).all(false) {
            let op = part.op;
            if let Some(block) = part.host {
                // it shows its results itself
                self.run_on_host(block, shape, Some(&mut *tap))?;
                continue;
            }
            self.start_all(part.tasks())?;
            let Some(out) = self.program.ops[op].out else {
                continue;
            };
            let rows = self.program.rows_of(out, shape.rows, shape.outputs);
            let width = self.program.slots[out].width;
            self.read(out, rows, 0)?;
            let shown = &self.values.floats()[..rows * width];
            if let Some(instead) = tap(op, rows, width, shown) {
                assert_eq!(instead.len(), rows * width, "values in place of others");
                self.put(out, &instead, rows)?;
            }
        }
        Ok(())
    }
}
