//! What a step executes: a flat list of operations over numbered buffers.

use crate::kv::KvShape;
use crate::matrix::{Bytes, Matrix};
use octavo_quant::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// Number of a buffer.
pub type Slot = usize;

/// A table of rows that stays as it is in the file: token embeddings.
#[derive(Clone)]
pub struct RowTable {
    /// Element type.
    pub ty: TensorType,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub cols: usize,
    /// `rows` rows of whole blocks.
    pub source: Arc<dyn Bytes>,
}

/// Rotary position embedding, the same for queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Angle of pair `i` at position `p` is `p * frequencies[i]`.
    pub frequencies: Vec<f64>,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
    /// Pairs are `(i, i + n)` of `n` pairs; otherwise `(2 i, 2 i + 1)`.
    pub neox: bool,
}

/// One operation. Widths are those of the slots; an output slot is never an input of the same operation.
#[derive(Clone)]
pub enum Op {
    /// Rows of the table by token id.
    Embed {
        /// The embeddings.
        table: RowTable,
        /// `[rows][cols]`
        out: Slot,
    },
    /// `x / rms(x) * weight`, over `weight.len()` values at a time.
    RmsNorm {
        /// Input.
        x: Slot,
        /// One group's weights.
        weight: Arc<[f32]>,
        /// Added to the mean square.
        eps: f32,
        /// Output.
        out: Slot,
    },
    /// `W x`.
    MatMul {
        /// Input.
        x: Slot,
        /// Index into [`Program::matrices`].
        w: usize,
        /// Output.
        out: Slot,
    },
    /// `x + bias` for every row.
    AddBias {
        /// Input.
        x: Slot,
        /// One row.
        bias: Arc<[f32]>,
        /// Output.
        out: Slot,
    },
    /// Rotates every head of `head_dim` values.
    Rope {
        /// Input.
        x: Slot,
        /// Values of a head.
        head_dim: usize,
        /// Output.
        out: Slot,
    },
    /// Stores keys and values at the rows' positions.
    KvWrite {
        /// `[rows][n_head_kv * head_dim]`
        k: Slot,
        /// Likewise.
        v: Slot,
        /// Layer of the cache.
        layer: usize,
    },
    /// Softmax attention of every row over its sequence up to its own position.
    Attention {
        /// `[rows][n_head * head_dim]`
        q: Slot,
        /// Layer of the cache.
        layer: usize,
        /// Multiplies the scores.
        scale: f32,
        /// As `q`.
        out: Slot,
    },
    /// `gate / (1 + e^-gate) * up`.
    SwiGlu {
        /// Gate.
        gate: Slot,
        /// Up.
        up: Slot,
        /// Output.
        out: Slot,
    },
    /// `a + b`.
    Add {
        /// One.
        a: Slot,
        /// Other.
        b: Slot,
        /// Output.
        out: Slot,
    },
    /// Keeps the rows whose outputs are wanted.
    SelectRows {
        /// All rows.
        x: Slot,
        /// Wanted rows.
        out: Slot,
    },
}

impl Op {
    /// The slot written, if any.
    pub fn out(&self) -> Option<Slot> {
        match *self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::AddBias { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::SwiGlu { out, .. }
            | Op::Add { out, .. }
            | Op::SelectRows { out, .. } => Some(out),
            Op::KvWrite { .. } => None,
        }
    }

    /// What is read of what other operations write.
    pub(crate) fn inputs(&self) -> Vec<Resource> {
        match *self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::MatMul { x, .. } | Op::AddBias { x, .. } | Op::SelectRows { x, .. } => {
                vec![Resource::Slot(x)]
            }
            Op::Rope { x, .. } => vec![Resource::Slot(x), Resource::Angles],
            Op::KvWrite { k, v, .. } => vec![Resource::Slot(k), Resource::Slot(v)],
            Op::Attention { q, layer, .. } => vec![Resource::Slot(q), Resource::Kv(layer)],
            Op::SwiGlu { gate: a, up: b, .. } | Op::Add { a, b, .. } => vec![Resource::Slot(a), Resource::Slot(b)],
        }
    }

    /// What is written.
    pub(crate) fn writes(&self) -> Vec<Resource> {
        match *self {
            Op::KvWrite { layer, .. } => vec![Resource::Kv(layer)],
            _ => self.out().map(Resource::Slot).into_iter().collect(),
        }
    }
}

/// What threads share, for the order of reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A buffer.
    Slot(Slot),
    /// Keys and values of a layer.
    Kv(usize),
    /// Inputs of products in their own form.
    Inputs,
    /// Cosines and sines.
    Angles,
}

/// A buffer's width, and whether it exists for wanted rows only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Values of a row.
    pub width: usize,
    /// Behind [`Op::SelectRows`].
    pub selected: bool,
}

/// A compiled model.
pub struct Program {
    /// In order.
    pub ops: Vec<Op>,
    /// Indexed by [`Slot`].
    pub slots: Vec<SlotInfo>,
    /// Indexed by `Op::MatMul::w`.
    pub matrices: Vec<Matrix>,
    /// Positions.
    pub rope: Rope,
    /// The cache.
    pub kv: KvShape,
    /// The slot that holds the logits.
    pub output: Slot,
}

/// How a token came to be: decides the kernels, so that results do not depend on batch sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read from the user: prompt kernels, also for a single token.
    Prompt,
    /// Sampled: generation kernels.
    Generated,
}

/// New tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sequence<'a> {
    /// In order.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// Pages of the sequence from position 0, covering all new tokens.
    pub table: &'a [u32],
    /// Which of `tokens` need outputs.
    pub wanted: Range<usize>,
}

/// One step: new tokens of some sequences, all of one role.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// See [`Role`].
    pub role: Role,
    /// Every sequence at most once.
    pub seqs: &'a [Sequence<'a>],
}

impl Step<'_> {
    /// All new tokens.
    pub fn rows(&self) -> usize {
        self.seqs.iter().map(|s| s.tokens.len()).sum()
    }

    /// Rows with outputs.
    pub fn wanted_rows(&self) -> usize {
        self.seqs.iter().map(|s| s.wanted.len()).sum()
    }
}
