//! What a step executes: a flat list of operations over numbered buffers.

use crate::generic::attention::PAGE;
use crate::kv::KvShape;
use crate::matrix::Bytes;
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

impl Rope {
    /// Cosine and sine of every pair at a position, in f64 until the end.
    pub(crate) fn angles(&self, position: usize) -> impl Iterator<Item = (f32, f32)> + '_ {
        let m = f64::from(self.magnitude);
        self.frequencies.iter().map(move |f| {
            let (sin, cos) = (position as f64 * f).sin_cos();
            ((cos * m) as f32, (sin * m) as f32)
        })
    }
}

/// One operation. Widths are those of the slots; an output slot is never an input of the same
/// operation.
#[derive(Clone)]
pub enum Op {
    /// Rows of the table by token id.
    Embed {
        /// The embeddings.
        table: RowTable,
        /// `[rows][cols]`
        out: Slot,
    },
    /// Rows that come with the step, where another program computed what is before this one.
    Input {
        /// `[rows][width]`
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
        /// Which of the matrices that the executor owns.
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
            | Op::Input { out }
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

    /// Whether a slot is one of its inputs.
    pub(crate) fn reads(&self, slot: Slot) -> bool {
        self.inputs().contains(&Resource::Slot(slot))
    }

    /// What is read of what other operations write.
    pub(crate) fn inputs(&self) -> Vec<Resource> {
        match *self {
            Op::Embed { .. } | Op::Input { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::MatMul { x, .. }
            | Op::AddBias { x, .. }
            | Op::SelectRows { x, .. } => {
                vec![Resource::Slot(x)]
            }
            Op::Rope { x, .. } => vec![Resource::Slot(x), Resource::Angles],
            Op::KvWrite { k, v, .. } => vec![Resource::Slot(k), Resource::Slot(v)],
            Op::Attention { q, layer, .. } => vec![Resource::Slot(q), Resource::Kv(layer)],
            Op::SwiGlu { gate: a, up: b, .. } | Op::Add { a, b, .. } => {
                vec![Resource::Slot(a), Resource::Slot(b)]
            }
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
    /// The input of products as integers, of which there is room for two.
    Codes(usize),
    /// The input of products in tiles of any form.
    Tiles,
    /// Partial results of attention.
    Pieces,
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

/// A compiled model, without the weights of its products: whoever executes it has them in a layout
/// of its own.
pub struct Program {
    /// In order.
    pub ops: Vec<Op>,
    /// Indexed by [`Slot`].
    pub slots: Vec<SlotInfo>,
    /// Positions.
    pub rope: Rope,
    /// The cache.
    pub kv: KvShape,
    /// The slot that holds the outputs: the logits, or what another program goes on with.
    pub output: Slot,
}

/// One token of a step.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Which of the step's sequences.
    pub(crate) seq: usize,
    pub(crate) token: u32,
    pub(crate) pos: usize,
}

impl Program {
    /// Whether its numbers fit each other and matrices of these `shapes` (rows, columns).
    ///
    /// # Panics
    /// If they do not: a bug in whoever compiled it.
    pub(crate) fn check(&self, shapes: &[(usize, usize)]) {
        assert!(self.kv.head_dim > 0 && self.kv.head_dim.is_multiple_of(2));
        let width = |s: Slot| self.slots[s].width;
        for op in &self.ops {
            match op {
                Op::Embed { table, out } => assert_eq!(table.cols, width(*out)),
                Op::Input { out } => assert!(!self.slots[*out].selected, "a step brings all rows"),
                Op::RmsNorm { x, weight, out, .. } => {
                    assert!(
                        x != out
                            && width(*x) == width(*out)
                            && width(*x).is_multiple_of(weight.len())
                    );
                }
                Op::MatMul { x, w, out } => {
                    assert!(x != out && shapes[*w] == (width(*out), width(*x)))
                }
                Op::AddBias { x, bias, out } => {
                    assert!(width(*x) == bias.len() && width(*out) == bias.len())
                }
                Op::Rope { x, head_dim, out } => {
                    assert!(width(*x) == width(*out) && width(*x).is_multiple_of(*head_dim));
                    assert!(2 * self.rope.frequencies.len() <= *head_dim);
                }
                Op::KvWrite { k, v, layer } => {
                    let n = self.kv.n_head_kv * self.kv.head_dim;
                    assert!(width(*k) == n && width(*v) == n && *layer < self.kv.n_layer);
                }
                Op::Attention { q, layer, out, .. } => {
                    assert!(q != out && width(*q) == width(*out) && *layer < self.kv.n_layer);
                    assert!(width(*q).is_multiple_of(self.kv.n_head_kv * self.kv.head_dim));
                }
                Op::SwiGlu {
                    gate: a,
                    up: b,
                    out,
                }
                | Op::Add { a, b, out } => {
                    assert!(width(*a) == width(*out) && width(*b) == width(*out));
                }
                Op::SelectRows { x, out } => assert!(x != out && width(*x) == width(*out)),
            }
        }
    }

    /// Whether nobody reads from a slot what is there before operation `from`.
    pub(crate) fn unread(&self, slot: Slot, from: usize) -> bool {
        for op in &self.ops[from..] {
            if op.reads(slot) {
                return false;
            }
            if op.out() == Some(slot) {
                return true;
            }
        }
        slot != self.output
    }

    /// Rows that a step of so many has in a slot, of which so many are wanted.
    pub(crate) fn rows_of(&self, slot: Slot, rows: usize, wanted: usize) -> usize {
        if self.slots[slot].selected {
            wanted
        } else {
            rows
        }
    }

    /// Where a step's own rows go, if this program begins with them.
    pub(crate) fn input(&self) -> Option<Slot> {
        self.ops.iter().find_map(|op| match *op {
            Op::Input { out } => Some(out),
            _ => None,
        })
    }

    /// The tokens of a step on a cache of `n_pages`, and the rows with outputs.
    ///
    /// # Panics
    /// If the step does not fit: tokens beyond the table (where there is one), tables that do not
    /// cover the positions, page numbers that do not exist, an input of another size.
    pub(crate) fn rows(&self, step: &Step<'_>, n_pages: usize) -> (Vec<Row>, Vec<usize>) {
        let vocabulary = self.ops.iter().find_map(|op| match op {
            Op::Embed { table, .. } => Some(table.rows),
            _ => None,
        });
        let (mut rows, mut wanted) = (Vec::new(), Vec::new());
        for (seq, s) in step.seqs.iter().enumerate() {
            let end = s.start + s.tokens.len();
            assert!(
                s.table.len() * PAGE >= end,
                "the block table ends before position {end}"
            );
            assert!(
                s.table.iter().all(|p| (*p as usize) < n_pages),
                "a page that does not exist"
            );
            assert!(
                s.wanted.end <= s.tokens.len(),
                "outputs wanted of tokens that are not there"
            );
            wanted.extend(s.wanted.clone().map(|i| rows.len() + i));
            for (i, token) in s.tokens.iter().enumerate() {
                assert!(
                    vocabulary.is_none_or(|n| (*token as usize) < n),
                    "token {token} has no embedding"
                );
                rows.push(Row {
                    seq,
                    token: *token,
                    pos: s.start + i,
                });
            }
        }
        let width = self.input().map_or(0, |slot| self.slots[slot].width);
        assert_eq!(
            step.input.len(),
            rows.len() * width,
            "an input of other rows, or for another program"
        );
        (rows, wanted)
    }
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
    /// What [`Op::Input`] gives, `[rows][width]`; empty for programs without one.
    pub input: &'a [f32],
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
