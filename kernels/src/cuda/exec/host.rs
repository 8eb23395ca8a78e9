//! Operations that a device leaves to the host, the products of experts whose weights are not on
//! the device: their inputs are copied down, the CPU computes, and the result is copied up. The
//! device waits meanwhile, because all that follows reads the result.

use super::Executor;
use super::record::Shape;
use crate::cuda::{Device, Error, HostBuffer};
use crate::exec::{self, TapFn};
use crate::kv::{KvStore, KvTooLarge};
use crate::matrix::Matrix;
use crate::memory::with_memory;
use crate::pool::SharedPool;
use crate::program::{HostBlock, HostProgram, Phase, Program, Step, StepSequence};
use octavo_isa::Isa;

/// Executes on the CPU what a program leaves to the host.
pub struct HostExecutor {
    executor: exec::Executor,
    /// No pages: such operations have no cache.
    kv: KvStore,
    blocks: Vec<HostBlock>,
    /// Inputs of a block as the device has them, one after the other.
    inputs: HostBuffer,
    /// The same, side by side in rows.
    rows: Vec<f32>,
    /// Width of such a row.
    width: usize,
    /// Tokens of a step; their ids are not read.
    tokens: Vec<u32>,
    step: StepSize,
}

/// Phase and size of the step that is running.
#[derive(Clone, Copy)]
struct StepSize {
    phase: Phase,
    /// Rows without those that fill up a bucket.
    rows: usize,
    outputs: usize,
}

impl HostExecutor {
    /// Makes the executor of a program's blocks, with their matrices in the order of
    /// [`HostProgram::matrices`].
    ///
    /// # Panics
    /// If the matrices do not fit the program.
    pub fn new(
        isa: Isa,
        host: HostProgram,
        matrices: Vec<Matrix>,
        pool: impl Into<SharedPool>,
    ) -> Result<HostExecutor, KvTooLarge> {
        let HostProgram {
            program, blocks, ..
        } = host;
        Ok(HostExecutor {
            width: program.input().map_or(0, |slot| program.slots[slot].width),
            executor: exec::Executor::new(isa, program, matrices, pool),
            kv: KvStore::new(&[], 0)?,
            blocks,
            inputs: HostBuffer::plain(0),
            rows: Vec::new(),
            tokens: Vec::new(),
            step: StepSize {
                phase: Phase::Decode,
                rows: 0,
                outputs: 0,
            },
        })
    }

    /// Returns the CPU's executor.
    pub fn executor(&self) -> &exec::Executor {
        &self.executor
    }

    /// Frees the buffers of steps; the next step makes new ones.
    pub fn release_scratch(&mut self) {
        self.executor.release_scratch();
        self.inputs = HostBuffer::plain(0);
        self.rows = Vec::new();
    }

    /// Whether its blocks are those of a program.
    pub(super) fn is_of(&self, program: &Program) -> bool {
        let blocks = self.blocks.iter();
        blocks.map(|block| &block.ops).eq(&program.on_host)
    }

    /// Notes the size of a step that begins.
    pub(super) fn begin(&mut self, phase: Phase, rows: usize, outputs: usize) {
        self.step = StepSize {
            phase,
            rows,
            outputs,
        };
    }

    /// Copies a block's inputs from the device; returns the number of rows.
    fn fetch<D: Device>(
        &mut self,
        block: &HostBlock,
        of: &mut Executor<D>,
    ) -> Result<usize, Error> {
        let StepSize { rows, outputs, .. } = self.step;
        let n = of.program.rows_of(block.out, rows, outputs);
        let widths: Vec<usize> = block
            .inputs
            .iter()
            .map(|slot| of.program.slots[*slot].width)
            .collect();
        let floats = n * widths.iter().sum::<usize>();
        if floats > self.inputs.len() {
            self.inputs = of.device.host_buffer(floats)?;
        }
        let mut rest = self.inputs.bytes_mut(floats);
        let mut copies = Vec::new();
        for (slot, width) in block.inputs.iter().zip(&widths) {
            let (mine, others) = rest.split_at_mut(4 * n * width);
            copies.push((of.base.offset(of.plan.slots[*slot]), mine));
            rest = others;
        }
        of.device.download_all(&mut copies)?;
        self.rows.clear();
        self.rows.resize(n * self.width, 0.0);
        let (mut from, mut before) = (0, 0);
        for width in widths {
            let values = &self.inputs.floats()[before..before + n * width];
            let rows = self.rows.chunks_exact_mut(self.width);
            for (row, values) in rows.zip(values.chunks_exact(width)) {
                row[from..from + width].copy_from_slice(values);
            }
            (from, before) = (from + width, before + n * width);
        }
        Ok(n)
    }

    /// Computes a block for `n` rows; returns its result.
    fn compute(
        &mut self,
        block: &HostBlock,
        n: usize,
        tap: Option<&mut TapFn<'_>>,
    ) -> Result<&[f32], Error> {
        let HostExecutor {
            executor,
            kv,
            rows,
            tokens,
            step,
            ..
        } = self;
        tokens.resize(n, 0);
        let seqs = [StepSequence {
            tokens,
            outputs: 0..n,
            ..StepSequence::default()
        }];
        let step = Step {
            phase: step.phase,
            seqs: &seqs,
            input: rows,
        };
        let ops = block.host_ops.clone();
        Ok(with_memory(|| match tap {
            None => executor.step_of(ops, &step, kv, None),
            Some(tap) => {
                let mut show = |op: usize, rows: usize, width: usize, values: &[f32]| {
                    tap(block.device_op(op)?, rows, width, values)
                };
                executor.step_of(ops, &step, kv, Some(&mut show))
            }
        })?)
    }
}

impl<D: Device> Executor<D> {
    /// Runs a block on the host, for a step of this shape on the device.
    pub(super) fn run_on_host(
        &mut self,
        block: usize,
        shape: Shape,
        tap: Option<&mut TapFn<'_>>,
    ) -> Result<(), Error> {
        let mut host = self.host.take().expect("a program's host executor");
        let done = self.run_block(&mut host, block, shape, tap);
        self.host = Some(host);
        done
    }

    fn run_block(
        &mut self,
        host: &mut HostExecutor,
        block: usize,
        shape: Shape,
        tap: Option<&mut TapFn<'_>>,
    ) -> Result<(), Error> {
        let block = host.blocks[block].clone();
        let n = host.fetch(&block, self)?;
        if n == 0 {
            return Ok(());
        }
        let result = host.compute(&block, n, tap)?;
        let rows = self.program.rows_of(block.out, shape.rows, shape.outputs);
        self.put(block.out, result, rows)
    }
}
