//! The program of a step: a flat list of operations over numbered buffers.

mod check;
mod host;
mod recurrent;
mod rows;
mod step;

use crate::op::{CacheLayer, Op, RowSet, Scores, ValueShape};
use crate::rope::Rope;
use crate::weight_bytes::WeightBytes;
use octavo_quant::TensorType;
use octavo_simd::kv_layout::KvShape;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use host::HostBlock;
pub use host::HostProgram;
pub(crate) use recurrent::{Recurrent, Scan, Wkv7};
pub(crate) use rows::TokenRow;
pub use step::{EmbeddingRows, Phase, StateUse, StateWrite, Step, StepSequence, UsedAdapter};

/// Number of a buffer.
pub type Slot = usize;

/// A table of rows that stays in the file's format: token embeddings.
#[derive(Clone)]
pub struct RowTable {
    /// Element type.
    pub ty: TensorType,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub cols: usize,
    /// `rows` rows of whole blocks.
    pub source: Arc<dyn WeightBytes>,
}

/// An operation on numbered buffers and matrices; the executor owns the matrices.
pub type ProgramOp = Op<Slot, usize, Arc<[f32]>, RowTable>;

/// An operation, and the slot of its result. The result of an operation that is not element by
/// element never overwrites one of its inputs.
#[derive(Clone)]
pub struct Instruction {
    /// Operation and its operands.
    pub op: ProgramOp,
    /// The slot written; none for [`Op::KvWrite`].
    pub out: Option<Slot>,
}

impl ProgramOp {
    /// Makes an instruction with the result in `out`.
    pub fn to(self, out: Slot) -> Instruction {
        Instruction {
            op: self,
            out: Some(out),
        }
    }

    /// Makes an instruction without a result: [`Op::KvWrite`].
    pub fn without_result(self) -> Instruction {
        Instruction {
            op: self,
            out: None,
        }
    }
}

/// An attention of a program: its operands but for the sinks, and the slot of its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attend {
    pub(crate) q: Slot,
    pub(crate) seen: Option<Slot>,
    pub(crate) cache: CacheLayer,
    pub(crate) scores: Scores,
    pub(crate) out: Slot,
}

impl Instruction {
    /// The slot written by any operation but [`Op::KvWrite`].
    pub(crate) fn result(&self) -> Slot {
        self.out.expect("`Program::check`: all others have one")
    }

    /// Whether a slot is one of its inputs.
    pub(crate) fn reads_slot(&self, slot: Slot) -> bool {
        self.op.inputs().any(|input| input == slot)
    }

    /// Resources read that other operations write.
    pub(crate) fn reads(&self) -> Vec<Resource> {
        let mut all: Vec<_> = self.op.inputs().map(Resource::Slot).collect();
        match self.op {
            Op::Rope { .. } => all.push(Resource::Angles),
            Op::Attention { cache, .. } | Op::SelectKeys { cache, .. } => {
                all.push(Resource::Kv(cache));
            }
            _ => {}
        }
        all.extend(self.op.state().map(Resource::State));
        all
    }

    /// Resources written.
    pub(crate) fn writes(&self) -> Vec<Resource> {
        match self.op {
            Op::KvWrite { cache, .. } => vec![Resource::Kv(cache)],
            _ => {
                let slot = self.out.map(Resource::Slot);
                slot.into_iter()
                    .chain(self.op.state().map(Resource::State))
                    .collect()
            }
        }
    }
}

/// Resources shared by threads, for the order of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A buffer.
    Slot(Slot),
    /// Keys and values of a layer.
    Kv(CacheLayer),
    /// A part of the sequences' states.
    State(usize),
    /// The input of products as integers, of which there is room for two.
    Codes(usize),
    /// The input of products in tiles of any form.
    Tiles,
    /// Partial results of attention.
    Pieces,
    /// Cosines and sines.
    Angles,
    /// Parts of rows that ranks have exchanged.
    Parts,
}

impl Resource {
    /// Whether it outlives the step.
    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Resource::Kv(_) | Resource::State(_))
    }
}

/// A compiled model, without the weights of its products: executors hold them in layouts of their
/// own.
pub struct Program {
    /// Operations in execution order.
    pub ops: Vec<Instruction>,
    /// Shapes of the buffers, indexed by [`Slot`].
    pub slots: Vec<ValueShape>,
    /// Tables of angles; [`Op::Rope`] names one.
    pub ropes: Vec<Rope>,
    /// Groups of the cache's layers; a [`CacheLayer`] names one.
    pub caches: Vec<KvShape>,
    /// Floats of each part of a sequence's state; operations name them by number.
    pub states: Vec<usize>,
    /// The slot that holds the outputs: the logits, or the inputs of another program.
    pub output: Slot,
    /// A slot whose rows can be read after a step too, if there is one: `Executor::kept`.
    pub kept: Option<Slot>,
    /// Values of a row that replaces a token's embedding, see [`EmbeddingRows`]; 0 if none can.
    pub embedding_input_width: usize,
    /// Operations that a device leaves to the host, in order, as ranges that do not overlap. An
    /// executor on the host runs them like all others.
    pub on_host: Vec<Range<usize>>,
}

impl Program {
    /// Number of experts stacked in each of `matrices` matrices: 1 for those of ordinary products.
    pub fn experts(&self, matrices: usize) -> Vec<usize> {
        let mut experts = vec![1; matrices];
        for instruction in &self.ops {
            if let Op::ExpertMatMul { w, experts: n, .. } = instruction.op {
                experts[w] = n;
            }
        }
        experts
    }

    /// Whether the rows of a slot are read after a step.
    pub(crate) fn is_result(&self, slot: Slot) -> bool {
        slot == self.output || Some(slot) == self.kept
    }

    /// The shape of a layer of the cache.
    pub(crate) fn cache(&self, cache: CacheLayer) -> KvShape {
        self.caches[cache.group]
    }

    /// The head size of rows of this width, if they are made of heads; a division by heads uses
    /// this size.
    pub(crate) fn head_dim_of(&self, width: usize) -> Option<usize> {
        let mut head_dims = self.caches.iter().map(|kv| kv.head_dim);
        head_dims.find(|head_dim| width.is_multiple_of(*head_dim))
    }

    /// The most query heads that share a key head, of all layers.
    pub(crate) fn most_heads_per_kv(&self) -> usize {
        let of = |i: &Instruction| match i.op {
            Op::Attention { q, cache, .. } => {
                let kv = self.cache(cache);
                self.slots[q].width / (kv.n_head_kv * kv.head_dim)
            }
            _ => 0,
        };
        self.ops.iter().map(of).max().unwrap_or(0)
    }

    /// Whether no token sees a later one, so that a sequence may be processed in parts.
    pub(crate) fn is_causal(&self) -> bool {
        !self.ops.iter().any(|i| i.op.sees_later())
    }

    /// Whether it has places for low-rank adapters.
    pub(crate) fn takes_adapters(&self) -> bool {
        self.ops.iter().any(|i| matches!(i.op, Op::LoraUp { .. }))
    }

    /// Number of cosines, and of sines, of a row: those of all tables, one after the other.
    pub(crate) fn angles(&self) -> usize {
        self.ropes.iter().map(|rope| rope.frequencies.len()).sum()
    }

    /// Offset of a table's angles among those of a row.
    pub(crate) fn angles_before(&self, rope: usize) -> usize {
        let before = self.ropes[..rope].iter();
        before.map(|rope| rope.frequencies.len()).sum()
    }

    /// Rows of a slot in a step of `rows` tokens, of which `n_outputs` have outputs.
    pub(crate) fn rows_of(&self, slot: Slot, rows: usize, n_outputs: usize) -> usize {
        self.slots[slot].rows.count(rows, n_outputs)
    }

    /// The largest number of rows up to `most` whose merged rows are whole; programs merge rows in
    /// one way only.
    pub(crate) fn whole_groups(&self, most: usize) -> usize {
        let merged = self.slots.iter().map(|slot| match slot.rows {
            RowSet::Merged(rows) => rows,
            RowSet::All | RowSet::Outputs => 1,
        });
        let group = merged.max().unwrap_or(1);
        (most / group).max(1) * group
    }

    /// The slot of a step's own rows, if this program begins with them. Other inputs are as wide.
    pub(crate) fn input(&self) -> Option<Slot> {
        let is_input = |i: &&Instruction| matches!(i.op, Op::Input);
        self.ops.iter().find(is_input)?.out
    }
}
