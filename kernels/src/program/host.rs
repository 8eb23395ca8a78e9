//! Operations of a device's program that the host executes: a program of their own, in which each
//! range of them is a block.
//!
//! A block begins with an input, whose rows are those of all values that the block reads, side by
//! side; slices take these apart again. Its operations follow, with the same operands, so that the
//! numbers are those of an executor that has the whole program on the host. Blocks have their
//! buffers in common, because they run one after the other.

use std::ops::Range;
use std::sync::Arc;

use super::{Instruction, Program, ProgramOp, RowTable, Slot};
use crate::op::{CacheLayer, Op, RowSet, Translate, ValueShape};

/// The program of the operations that a device leaves to the host.
pub struct HostProgram {
    /// The blocks, one after the other.
    pub program: Program,
    /// By matrix of [`HostProgram::program`]: the same one in the device's program.
    pub matrices: Vec<usize>,
    pub(crate) blocks: Vec<HostBlock>,
}

/// A range of operations that the host executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostBlock {
    /// Its operations in the device's program.
    pub(crate) ops: Range<usize>,
    /// Its operations in the host's program; the last ones are those of `ops`.
    pub(crate) host_ops: Range<usize>,
    /// Slots of the device's program that it reads, in the order of an input row.
    pub(crate) inputs: Vec<Slot>,
    /// Slot of the device's program that has its result.
    pub(crate) out: Slot,
}

impl HostBlock {
    /// Returns the number of an operation of the host's program in the device's, if it has one.
    pub(crate) fn device_op(&self, op: usize) -> Option<usize> {
        let after = self.host_ops.end.checked_sub(op)?;
        let op = self.ops.end.checked_sub(after)?;
        self.ops.contains(&op).then_some(op)
    }
}

impl Program {
    /// Returns for each operation whether a device leaves it to the host.
    pub(crate) fn host_ops(&self) -> Vec<bool> {
        let on_host = |at| self.on_host.iter().any(|ops| ops.contains(&at));
        (0..self.ops.len()).map(on_host).collect()
    }

    /// Returns the range of operations for the host that begins with operation `at`, and its
    /// number.
    pub(crate) fn host_block_at(&self, at: usize) -> Option<(usize, &Range<usize>)> {
        let mut blocks = self.on_host.iter().enumerate();
        blocks.find(|(_, ops)| ops.start == at)
    }

    /// Returns the slots that a range of operations reads before it writes them, and the one slot
    /// that it writes and later operations read.
    ///
    /// # Panics
    /// If another than the last operation's result is read later, or rows differ in number: a bug
    /// in the program's compiler.
    pub(crate) fn boundary(&self, ops: &Range<usize>) -> (Vec<Slot>, Slot) {
        let (mut inputs, mut written) = (Vec::new(), Vec::new());
        for instruction in &self.ops[ops.clone()] {
            for slot in instruction.op.inputs() {
                if !written.contains(&slot) && !inputs.contains(&slot) {
                    inputs.push(slot);
                }
            }
            written.push(instruction.result());
        }
        let out = *written.last().expect("a range of operations");
        let is_read = |slot: Slot| {
            for instruction in &self.ops[ops.end..] {
                if instruction.reads_slot(slot) {
                    return true;
                }
                if instruction.out == Some(slot) {
                    return false;
                }
            }
            slot == self.output
        };
        assert!(
            written.iter().all(|slot| *slot == out || !is_read(*slot)),
            "operations {ops:?} for the host: another result than the last is read later"
        );
        let rows = self.slots[out].rows;
        let mut all = inputs.iter().chain(&written);
        assert!(
            all.all(|slot| self.slots[*slot].rows == rows),
            "operations {ops:?} for the host: other rows"
        );
        (inputs, out)
    }

    /// Returns the program of the operations for the host.
    ///
    /// # Panics
    /// If one of them reads more than rows of its own token, or has no matrix or vector of its own
    /// alone: a cache, a state, or positions.
    pub fn host_program(&self) -> HostProgram {
        let width = |slots: &[Slot]| slots.iter().map(|slot| self.slots[*slot].width).sum();
        let blocks = self.on_host.iter();
        let boundaries: Vec<_> = blocks.map(|ops| self.boundary(ops)).collect();
        let widths = boundaries.iter().map(|(inputs, _)| width(inputs));
        let mut builder = Builder::new(self, widths.max().unwrap_or(0));
        let mut blocks = Vec::new();
        for (ops, (inputs, out)) in self.on_host.iter().zip(boundaries) {
            let start = builder.ops.len();
            builder.block(ops, &inputs);
            blocks.push(HostBlock {
                ops: ops.clone(),
                host_ops: start..builder.ops.len(),
                inputs,
                out,
            });
        }
        let last = builder.ops.last().map_or(0, Instruction::result);
        let program = Program {
            ops: builder.ops,
            slots: builder.slots,
            ropes: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            output: last,
            kept: None,
            embedding_input_width: 0,
            on_host: Vec::new(),
        };
        HostProgram {
            program,
            matrices: builder.matrices,
            blocks,
        }
    }
}

/// Translates blocks from the device's program to the host's.
struct Builder<'a> {
    of: &'a Program,
    ops: Vec<Instruction>,
    /// The first is that of inputs.
    slots: Vec<ValueShape>,
    matrices: Vec<usize>,
    /// By slot of the device's program: the slot of the block that stands for it.
    slot_of: Vec<Option<Slot>>,
}

impl<'a> Builder<'a> {
    fn new(of: &'a Program, input: usize) -> Builder<'a> {
        Builder {
            of,
            ops: Vec::new(),
            slots: vec![rows_of(input)],
            matrices: Vec::new(),
            slot_of: Vec::new(),
        }
    }

    fn block(&mut self, ops: &Range<usize>, inputs: &[Slot]) {
        self.slot_of = vec![None; self.of.slots.len()];
        self.ops.push(ProgramOp::Input.to(0));
        let (each, mut from) = (self.slots[0].width, 0);
        for input in inputs {
            let (x, width) = (0, self.of.slots[*input].width);
            let slice = ProgramOp::Slice {
                x,
                each,
                from,
                width,
            };
            let out = self.slot(*input);
            self.ops.push(slice.to(out));
            from += width;
        }
        let of = self.of;
        for instruction in &of.ops[ops.clone()] {
            let is_by_row = matches!(
                instruction.op,
                Op::ExpertMatMul { .. }
                    | Op::ExpertBias { .. }
                    | Op::ExpertSum { .. }
                    | Op::Gate { .. }
                    | Op::Unary { .. }
                    | Op::Slice { .. }
                    | Op::Add { .. }
                    | Op::Mul { .. }
                    | Op::MulVector { .. }
            );
            assert!(is_by_row, "an operation that a device cannot leave out");
            let out = self.slot(instruction.result());
            let op = instruction.op.clone().map(self);
            self.ops.push(op.to(out));
        }
    }

    /// Returns the block's slot for a slot of the device's program: one of its width that the block
    /// does not use yet, or a new one.
    fn slot(&mut self, slot: Slot) -> Slot {
        if let Some(known) = self.slot_of[slot] {
            return known;
        }
        let shape = rows_of(self.of.slots[slot].width);
        let is_free = |at: &usize| self.slots[*at] == shape && !self.slot_of.contains(&Some(*at));
        let free = (1..self.slots.len()).find(is_free);
        let own = free.unwrap_or_else(|| {
            self.slots.push(shape);
            self.slots.len() - 1
        });
        self.slot_of[slot] = Some(own);
        own
    }
}

/// All rows that a block has, of this width.
fn rows_of(width: usize) -> ValueShape {
    ValueShape {
        width,
        rows: RowSet::All,
    }
}

impl Translate<Slot, usize, Arc<[f32]>, RowTable> for Builder<'_> {
    type Value = Slot;
    type Matrix = usize;
    type Vector = Arc<[f32]>;
    type Table = RowTable;

    fn value(&mut self, slot: Slot) -> Slot {
        self.slot(slot)
    }

    fn matrix(&mut self, w: usize) -> usize {
        self.matrices.push(w);
        self.matrices.len() - 1
    }

    fn vector(&mut self, values: Arc<[f32]>) -> Arc<[f32]> {
        values
    }

    fn table(&mut self, table: RowTable) -> RowTable {
        table
    }

    fn cache(&mut self, cache: CacheLayer) -> CacheLayer {
        cache
    }

    fn state(&mut self, state: usize) -> usize {
        state
    }
}
