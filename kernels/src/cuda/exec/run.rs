//! Runs a step's launches and gathers: one by one, by replaying a recording, or with a tap on every
//! result.

use super::launches::{LaunchContext, OpLaunches};
use super::record::Shape;
use super::{CaptureState, Executor, LaunchKey};
use crate::cuda::{Device, Error, Task};
use crate::exec::TapFn;

impl<D: Device> Executor<D> {
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

    /// Returns all tasks of a step.
    pub(super) fn list(&self, (shape, best): LaunchKey) -> Vec<Task> {
        let context = self.context(shape);
        let mut list: Vec<Task> = context
            .all(true)
            .into_iter()
            .flat_map(OpLaunches::tasks)
            .collect();
        if best {
            list.extend(context.argmax().into_iter().map(Task::Launch));
        }
        list
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
        let tasks = self.list(work);
        self.start_all(tasks)
    }

    pub(super) fn replay(&mut self, work: LaunchKey) -> Result<(), Error> {
        let recording = match self.captures.get(&work) {
            None => {
                self.run(work)?;
                self.captures.insert(work, CaptureState::Once);
                return Ok(());
            }
            Some(CaptureState::Recorded(recording)) => *recording,
            Some(CaptureState::Once) => {
                let tasks = self.list(work);
                // SAFETY: as in `start_all`, for every replay: the arena keeps its address as long
                // as the device lives.
                match unsafe { self.device.record(tasks) } {
                    Ok(recording) => {
                        self.captures
                            .insert(work, CaptureState::Recorded(recording));
                        recording
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
                }
            }
        };
        // SAFETY: as above; the step record was written.
        unsafe { self.device.replay(recording) }
    }

    pub(super) fn run_tapped(&mut self, shape: Shape, tap: &mut TapFn<'_>) -> Result<(), Error> {
        for part in self.context(shape).all(false) {
            let op = part.op;
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
