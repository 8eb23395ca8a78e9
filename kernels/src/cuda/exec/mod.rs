//! Runs a [`Program`] on a [`Device`].
//!
//! All that a model needs is in one allocation (the arena) made at load time: weights, KV cache,
//! and buffers for the largest step. A step writes the step record (`record`), runs launches that
//! depend on its shape alone (`launches`), and reads the outputs. Nothing is allocated in between
//! and no address changes, so decode launches are captured once per number of sequences and
//! replayed.

mod candidates;
mod experts;
mod fused;
mod host;
mod launches;
mod limits;
mod load;
mod needs;
mod plan;
mod products;
mod ranks;
mod record;
mod recurrent;
mod run;
mod single;
mod transfer;
mod widest;

use std::collections::HashMap;
use std::sync::Arc;

pub use candidates::Candidates;
pub use host::HostExecutor;
pub use plan::{Limits, Needs, Source};
pub use record::MAX_RETAINED;

use self::candidates::Want;
use self::plan::Plan;
use self::record::{Record, Shape, tile_rows};
use self::run::{Part, Piece};
use super::{Device, DeviceCollective, Error, HostBuffer, Module, Ptr, Task, launch};
use crate::exec::TapFn;
use crate::fuse::{self, Group};
use crate::op::{MatrixShape, RowSet};
use crate::program::{HostProgram, Program, StateUse, Step, TokenRow};

/// Progress of capturing the launches of a decode shape.
enum CaptureState {
    /// It ran once without a graph, so that all that a device loads lazily is loaded.
    Once,
    /// Its launches are captured and replayed, with the host's blocks between them.
    Recorded(Vec<Piece>),
}

/// Options for preparing and running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Sizes of the largest step and of the cache.
    pub limits: Limits,
    /// Capture the launches of decode steps and replay them.
    pub capture: bool,
    /// Check every page number in the kernels, and fail a step whose block tables lack a page.
    pub check_pages: bool,
    /// Number of threads that pack weights.
    pub threads: usize,
}

/// Runs one program on one device.
pub struct Executor<D: Device> {
    device: D,
    /// Communication with the other tensor parallel ranks, if any. Dropped after the device, which
    /// may have captured its work.
    ranks: Option<Arc<dyn DeviceCollective>>,
    program: Program,
    /// Groups to fuse, by their first operation.
    groups: Vec<Option<Group>>,
    limits: Limits,
    plan: Plan,
    /// Address of the arena.
    base: Ptr,
    record: Record,
    tile_rows: usize,
    /// Runs the operations that the program leaves to the host, if it leaves any.
    host: Option<HostExecutor>,
    /// Whether decode steps are captured.
    capture: bool,
    /// Reason that they are not, although requested.
    refused: Option<Error>,
    check_pages: bool,
    captures: HashMap<LaunchKey, CaptureState>,
    /// Outputs of the last step, or values for a tap. Sized for decode at first, and grown on
    /// demand.
    values: HostBuffer,
    /// Rows of the last step, and those with outputs.
    last: [usize; 2],
    /// Results that kernels write to the step record: words, read as floats.
    status: HostBuffer,
}

/// Key of a step's launches: its shape, and what it computes behind its outputs.
type LaunchKey = (Shape, Want);

/// Groups of a program's operations to fuse, none of them with operations of the host.
fn groups(program: &Program) -> Vec<Option<Group>> {
    let mut groups = fuse::groups(program);
    for (at, found) in groups.iter_mut().enumerate() {
        let apart = |last: usize| {
            let mut blocks = program.on_host.iter();
            blocks.all(|ops| last < ops.start || ops.end <= at)
        };
        *found = found.take().filter(|group| apart(group.last));
    }
    groups
}

impl<D: Device> Executor<D> {
    /// Computes the memory that a model takes on a device.
    ///
    /// # Errors
    /// As [`Executor::new`], for unsupported weights, cache types, heads or keys.
    pub fn needs(program: &Program, sources: &[Source], limits: &Limits) -> Result<Needs, Error> {
        Ok(Plan::new(program, sources, limits)?.needs)
    }

    /// Packs and uploads the weights and builds every kernel. `progress` is called with the weight
    /// just done (an index in `sources`), the bytes of the file done, and the total bytes.
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::KvType`], [`Error::KvTypes`], [`Error::HeadDim`] or
    /// [`Error::KeyDim`] for what the kernels do not support, [`Error::TooLarge`] if memory is
    /// insufficient, and the device's own errors.
    ///
    /// # Panics
    /// If the program's sizes are inconsistent: a bug in its compilation.
    pub fn new(
        device: D,
        program: Program,
        sources: &[Source],
        setup: Setup,
        progress: &mut dyn FnMut(Option<usize>, u64, u64),
    ) -> Result<Executor<D>, Error> {
        Executor::of_rank(device, None, program, sources, setup, progress)
    }

    /// As [`Executor::new`], for one rank of a tensor parallel program, with its shards of the
    /// matrices.
    ///
    /// # Errors
    /// As [`Executor::new`].
    ///
    /// # Panics
    /// As [`Executor::new`], and if the program gathers parts other than this rank's, or ranks
    /// leave operations to the host.
    pub fn of_rank(
        mut device: D,
        ranks: Option<Arc<dyn DeviceCollective>>,
        program: Program,
        sources: &[Source],
        setup: Setup,
        progress: &mut dyn FnMut(Option<usize>, u64, u64),
    ) -> Result<Executor<D>, Error> {
        crate::ranks::check(&program, ranks.as_deref().map(|r| [r.rank(), r.ranks()]));
        let Setup {
            limits,
            capture,
            check_pages,
            threads,
        } = setup;
        let shape = |s: &Source| MatrixShape {
            rows: s.rows,
            cols: s.cols,
        };
        program.check(&sources.iter().map(shape).collect::<Vec<_>>());
        assert!(
            ranks.is_none() || program.on_host.is_empty(),
            "operations of one of several ranks on the host"
        );
        let plan = Plan::new(&program, sources, &limits)?;
        let bytes = Executor::room(&device, plan.needs)?;
        let base = match device.alloc(bytes) {
            Ok(base) => base,
            // other programs may have taken memory meanwhile
            Err(error) => return Err(Executor::room(&device, plan.needs).err().unwrap_or(error)),
        };
        let of_generated =
            program.slots[program.output].width * limits.outputs.min(limits.sequences);
        let values = device.host_buffer(of_generated)?;
        let status = device.host_buffer(1 + limits.outputs)?;
        let mut executor = Executor {
            device,
            ranks,
            record: Record::new(&limits, &program, check_pages),
            tile_rows: tile_rows(program.most_heads_per_kv()),
            groups: groups(&program),
            host: None,
            program,
            limits,
            plan,
            base,
            capture,
            refused: None,
            check_pages,
            captures: HashMap::new(),
            values,
            last: [0; 2],
            status,
        };
        let modules = executor.modules();
        let Executor {
            device,
            program,
            plan,
            ..
        } = &mut executor;
        // before the first step, which would wait for compilation, and beside the weights
        device.start_building(&modules);
        load::weights(device, plan, base, sources, threads, progress)?;
        load::constants(device, program, plan, base, limits.table_positions())?;
        for module in modules {
            device.build(module)?;
        }
        Ok(executor)
    }

    /// Checks that a device has room for a model; returns the bytes that it takes.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if it has not.
    pub fn room(device: &D, needs: Needs) -> Result<usize, Error> {
        let free = device.free_bytes()?;
        let bytes = usize::try_from(needs.total()).ok();
        bytes
            .filter(|_| needs.total() <= free)
            .ok_or_else(|| Error::TooLarge {
                device: device.describe(),
                part: None,
                needs,
                free,
                fitting: Box::default(),
            })
    }

    /// Gives it the executor of the operations that its program leaves to the host, which every
    /// program that does needs before the first step.
    ///
    /// # Panics
    /// If that executor is for other operations.
    #[must_use]
    pub fn with_host(self, host: HostExecutor) -> Executor<D> {
        assert!(host.is_of(&self.program), "operations of another program");
        Executor {
            host: Some(host),
            ..self
        }
    }

    /// Returns the program of the operations that its program leaves to the host.
    pub fn host_program(&self) -> HostProgram {
        self.program.host_program()
    }

    /// Returns the executor of the operations that the program leaves to the host, if it has one.
    pub fn host(&self) -> Option<&HostExecutor> {
        self.host.as_ref()
    }

    /// As [`Executor::host`], to be changed.
    pub fn host_mut(&mut self) -> Option<&mut HostExecutor> {
        self.host.as_mut()
    }

    /// Returns the modules of every kernel that a step may need, some more than once.
    fn modules(&self) -> Vec<Module> {
        let one = Shape::bucket(1, 0);
        let prompt = Shape {
            generated: false,
            tiles: 1,
            ..one
        };
        let mut modules = Vec::new();
        let batch = self.limits.outputs.min(launch::IMMA_COLUMNS);
        for shape in [prompt, one, Shape::bucket(batch, 0)] {
            let apart = self
                .context(shape)
                .all(false)
                .into_iter()
                .flat_map(|part| part.launches);
            let together = self.list((shape, Want::Argmax)).into_iter();
            let tasks = together.flat_map(|part| match part {
                Part::Device(tasks) => tasks,
                Part::Host(_) => Vec::new(),
            });
            let launches = tasks.filter_map(|task| match task {
                Task::Launch(launch) => Some(launch),
                Task::Gather(_) => None,
            });
            for launch in apart.chain(launches) {
                modules.extend(launch.module.tiles());
            }
        }
        modules
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Whether decode steps are captured, or the reason that they are not although requested, once
    /// known.
    ///
    /// # Errors
    /// The device's error when it tried to capture launches.
    pub fn captures(&self) -> Result<bool, &Error> {
        self.refused.as_ref().map_or(Ok(self.capture), Err)
    }

    /// Returns its device memory.
    pub fn memory(&self) -> Needs {
        self.plan.needs
    }

    /// Returns the number of groups of cache layers.
    pub fn cache_groups(&self) -> usize {
        self.program.caches.len()
    }

    /// Returns the number of state slots; 0 for programs without states.
    pub fn n_states(&self) -> usize {
        match self.program.states.is_empty() {
            true => 0,
            false => self.limits.states,
        }
    }

    /// Returns the limits of a step and the cache.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Runs a step and returns the outputs of the requested rows,
    /// `[n_outputs][width of the output]`, or of all rows if the program selects none. `tap` sees
    /// the result of every operation before the next one runs, and may replace its values.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the step does not fit the program, the cache or the limits, if it keeps more than
    /// [`MAX_RETAINED`] states of a sequence, or if `tap` returns another number of values.
    pub fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapFn<'_>>) -> Result<&[f32], Error> {
        let (rows, n_outputs) = self.start(step, tap, Want::Outputs)?;
        let output = self.program.output;
        let n = self.program.rows_of(output, rows.len(), n_outputs);
        self.read(output, n, usize::from(self.check_pages))?;
        self.check_pages(&rows)?;
        Ok(&self.values.floats()[..n * self.program.slots[output].width])
    }

    /// Runs a step and returns the argmax of each requested row's outputs, the first of equal ones;
    /// `None` for a row with a non-finite output. The outputs stay on the device.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// As [`Executor::step`], and for a program that selects no rows.
    pub fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        assert!(
            self.program.slots[self.program.output].rows == RowSet::Outputs,
            "outputs of no row in particular"
        );
        let (rows, n_outputs) = self.start(step, None, Want::Argmax)?;
        self.read(self.program.output, 0, 1 + n_outputs)?;
        self.check_pages(&rows)?;
        Ok(self.best(n_outputs))
    }

    /// Returns the argmax of each requested row, already downloaded.
    fn best(&self, n_outputs: usize) -> Vec<Option<u32>> {
        let words = self.status.floats()[1..=n_outputs].iter();
        let best = words.map(|word| word.to_bits());
        best.map(|at| (at != launch::NOT_FINITE).then_some(at))
            .collect()
    }

    /// Writes a step's record and starts running it; returns its rows and the number of
    /// outputs.
    fn start(
        &mut self,
        step: &Step<'_>,
        tap: Option<&mut TapFn<'_>>,
        want: Want,
    ) -> Result<(Vec<TokenRow>, usize), Error> {
        let (rows, output_rows) = self.program.rows(step, self.limits.n_pages);
        let Limits {
            rows: most,
            outputs,
            sequences,
            positions,
            ..
        } = self.limits;
        assert!(
            rows.len() <= most && output_rows.len() <= outputs && step.seqs.len() <= sequences,
            "a step too large"
        );
        assert!(
            rows.iter()
                .all(|row| row.pos.max(row.furthest_turn()) < positions),
            "a position beyond the longest sequence"
        );
        if !self.program.states.is_empty() {
            self.check_states(step);
        }
        self.last = [rows.len(), output_rows.len()];
        if rows.is_empty() {
            return Ok((rows, 0));
        }
        let ends = rows
            .iter()
            .map(|row| row.end.max(row.block[1]).max(row.image_end));
        let end = ends.max().unwrap_or(0);
        let exact = Shape::of(step, self.tile_rows, end);
        let captured = self.captured_shape(&exact, end);
        let captured = captured.filter(|_| self.capture && tap.is_none());
        let (replayed, shape) = (captured.is_some(), captured.unwrap_or(exact));
        let bytes = self
            .record
            .fill(&shape, step, &rows, &output_rows, self.tile_rows);
        self.device
            .upload(self.base.offset(self.plan.record), bytes)?;
        if let Some(slot) = self.program.input() {
            self.put(slot, step.input, shape.rows)?;
        }
        let mut at = self.base.offset(self.plan.embedding_inputs);
        for rows in step.embedding_inputs() {
            self.device.upload_floats(at, rows)?;
            at = at.offset(4 * rows.len() as u64);
        }
        if let Some(host) = &mut self.host {
            host.begin(step.phase, rows.len(), output_rows.len());
        }
        match tap {
            Some(tap) => self.run_tapped(shape, tap)?,
            None if replayed => self.replay((shape, want))?,
            None => self.run((shape, want))?,
        }
        Ok((rows, output_rows.len()))
    }

    /// Checks that the states of a step fit.
    ///
    /// # Panics
    /// If they do not: a bug in the caller.
    fn check_states(&self, step: &Step<'_>) {
        for StateUse { from, to } in step.seqs.iter().map(|s| s.states) {
            assert!(
                to.len() <= MAX_RETAINED,
                "{} states of a sequence: expected at most {MAX_RETAINED}",
                to.len()
            );
            let mut slots = to.iter().map(|write| write.slot).chain(from);
            assert!(
                slots.all(|slot| (slot as usize) < self.limits.states),
                "a state that does not exist"
            );
        }
    }

    /// Checks that the block tables had every page that the step's rows needed, from the results
    /// already downloaded.
    fn check_pages(&self, rows: &[TokenRow]) -> Result<(), Error> {
        // 1 + the index of a row whose page was missing; 0 if none
        let missing = self.status.floats()[0].to_bits() as usize;
        match missing
            .checked_sub(1)
            .filter(|_| self.check_pages)
            .and_then(|row| rows.get(row))
        {
            None => Ok(()),
            Some(row) => Err(Error::MissingPage {
                sequence: row.seq,
                position: row.pos,
            }),
        }
    }
}
