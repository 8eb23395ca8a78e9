//! What a step executes: a flat list of operations over numbered buffers.

mod step;

use crate::bytes::Bytes;
use crate::generic::attention::PAGE;
use crate::kv::KvShape;
use crate::op::{CacheLayer, CacheShape, MatrixShape, Op, Recurrence, Scores, Shapes, ValueShape};
use crate::rope::{Rope, Turns};
use octavo_quant::TensorType;
use std::sync::Arc;

pub use step::{GivenRows, Role, Sequence, StateUse, StateWrite, Step};

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

/// An operation on numbered buffers and matrices; the executor owns the matrices.
pub type ProgramOp = Op<Slot, usize, Arc<[f32]>, RowTable>;

/// An operation, and where its result goes. The result of an operation that is not element by
/// element is never over one of its inputs.
#[derive(Clone)]
pub struct Instruction {
    /// What is computed.
    pub op: ProgramOp,
    /// The slot written; none for [`Op::KvWrite`].
    pub out: Option<Slot>,
}

impl ProgramOp {
    /// With the result in `out`.
    pub fn to(self, out: Slot) -> Instruction {
        Instruction {
            op: self,
            out: Some(out),
        }
    }

    /// Without a result: [`Op::KvWrite`].
    pub fn without_result(self) -> Instruction {
        Instruction {
            op: self,
            out: None,
        }
    }
}

/// An attention of a program: its operands but for the sinks, and where its result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attend {
    pub(crate) q: Slot,
    pub(crate) cache: CacheLayer,
    pub(crate) scores: Scores,
    pub(crate) out: Slot,
}

/// The operands of an [`Op::LinearAttention`] of a program, and where its result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrent {
    pub(crate) q: Slot,
    pub(crate) k: Slot,
    pub(crate) v: Slot,
    pub(crate) decay: Slot,
    pub(crate) rate: Slot,
    pub(crate) how: Recurrence,
    pub(crate) state: usize,
    pub(crate) out: Slot,
}

impl Instruction {
    /// The slot written by whatever but [`Op::KvWrite`].
    pub(crate) fn result(&self) -> Slot {
        self.out.expect("`Program::check`: all others have one")
    }

    /// Whether a slot is one of its inputs.
    pub(crate) fn reads_slot(&self, slot: Slot) -> bool {
        self.op.inputs().any(|input| input == slot)
    }

    /// What is read of what other operations write.
    pub(crate) fn reads(&self) -> Vec<Resource> {
        let mut all: Vec<_> = self.op.inputs().map(Resource::Slot).collect();
        match self.op {
            Op::Rope { .. } => all.push(Resource::Angles),
            Op::Attention { cache, .. } => all.push(Resource::Kv(cache)),
            Op::CausalConv { state, .. } | Op::LinearAttention { state, .. } => {
                all.push(Resource::State(state));
            }
            _ => {}
        }
        all
    }

    /// What is written.
    pub(crate) fn writes(&self) -> Vec<Resource> {
        match self.op {
            Op::KvWrite { cache, .. } => vec![Resource::Kv(cache)],
            Op::CausalConv { state, .. } | Op::LinearAttention { state, .. } => {
                vec![Resource::Slot(self.result()), Resource::State(state)]
            }
            _ => self.out.map(Resource::Slot).into_iter().collect(),
        }
    }
}

/// What threads share, for the order of reading and writing.
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
}

impl Resource {
    /// Whether it outlives the step.
    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Resource::Kv(_) | Resource::State(_))
    }
}

/// A compiled model, without the weights of its products: whoever executes it has them in a layout
/// of its own.
pub struct Program {
    /// In order.
    pub ops: Vec<Instruction>,
    /// Shapes of the buffers, indexed by [`Slot`].
    pub slots: Vec<ValueShape>,
    /// Tables of angles; [`Op::Rope`] names one.
    pub ropes: Vec<Rope>,
    /// Groups of the cache's layers; a [`CacheLayer`] names one.
    pub caches: Vec<KvShape>,
    /// Floats of each part of a sequence's state; operations name them by number.
    pub states: Vec<usize>,
    /// The slot that holds the outputs: the logits, or what another program goes on with.
    pub output: Slot,
    /// Values of a row that comes in the place of a token's embedding, see [`GivenRows`]; 0 if none
    /// can.
    pub given: usize,
}

/// One token of a step.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Which of the step's sequences.
    pub(crate) seq: usize,
    pub(crate) token: u32,
    pub(crate) pos: usize,
    /// By what its pairs turn.
    pub(crate) turns: Turns,
    /// Which of the step's given rows stands in the place of its embedding.
    pub(crate) given: Option<usize>,
    /// Positions of its sequence at the end of the step.
    pub(crate) end: usize,
    /// The positions of its block: where nothing attends by blocks, all of its sequence.
    pub(crate) block: [usize; 2],
}

impl Row {
    /// The largest of what its pairs turn by.
    pub(crate) fn furthest_turn(&self) -> usize {
        self.turns.into_iter().max().unwrap_or(0) as usize
    }
}

impl Program {
    /// Whether its numbers fit each other and matrices of these shapes.
    ///
    /// # Panics
    /// If they do not: a bug in whoever compiled it.
    pub(crate) fn check(&self, matrices: &[MatrixShape]) {
        let sound = |kv: &KvShape| kv.head_dim > 0 && kv.head_dim.is_multiple_of(2);
        assert!(self.caches.iter().all(sound), "heads of an even width");
        for (at, Instruction { op, out }) in self.ops.iter().enumerate() {
            let shapes = Operands {
                program: self,
                matrices,
                out: *out,
            };
            let fits = op.shape(&shapes).and_then(|shape| match out {
                Some(out) => shape.expect(self.slots[*out]),
                None => Ok(()),
            });
            if let Err(error) = fits {
                panic!("operation {at}: {error}");
            }
            assert_eq!(
                out.is_none(),
                matches!(op, Op::KvWrite { .. }),
                "operation {at}: everything but what goes to the cache has a result"
            );
            if let Op::Attention { scores, .. } = op {
                assert!(
                    scores.window != Some(0) && scores.cap.is_none_or(|cap| cap > 0.0),
                    "operation {at}: a window of no positions, or a cap that is not positive"
                );
            }
            assert!(
                op.is_by_element() || op.inputs().all(|input| Some(input) != *out),
                "operation {at} writes over its input"
            );
        }
    }

    /// How many experts each of so many matrices has, one below the other: 1 for those that
    /// ordinary products multiply with.
    pub fn experts(&self, matrices: usize) -> Vec<usize> {
        let mut experts = vec![1; matrices];
        for instruction in &self.ops {
            if let Op::ExpertMatMul { w, experts: n, .. } = instruction.op {
                experts[w] = n;
            }
        }
        experts
    }

    /// The shape of a layer of the cache.
    pub(crate) fn cache(&self, cache: CacheLayer) -> KvShape {
        self.caches[cache.group]
    }

    /// How wide the heads are that a row of this width is made of, if it is; what is divided by
    /// heads is divided by these.
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

    /// Whether no token sees a later one, so that a sequence may come in parts.
    pub(crate) fn is_causal(&self) -> bool {
        !self.ops.iter().any(|i| i.op.sees_later())
    }

    /// For each group of the cache's layers, how many positions a token looks at, at most: its own,
    /// where nothing attends.
    fn widest_windows(&self) -> Vec<usize> {
        let mut widest = vec![1; self.caches.len()];
        for instruction in &self.ops {
            if let Op::Attention { cache, scores, .. } = instruction.op {
                let window = scores.window.unwrap_or(usize::MAX);
                widest[cache.group] = window.max(widest[cache.group]);
            }
        }
        widest
    }

    /// Cosines, and as many sines, of a row: those of all tables, one after the other.
    pub(crate) fn angles(&self) -> usize {
        self.ropes.iter().map(|rope| rope.frequencies.len()).sum()
    }

    /// Where those of a table begin.
    pub(crate) fn angles_before(&self, rope: usize) -> usize {
        let before = self.ropes[..rope].iter();
        before.map(|rope| rope.frequencies.len()).sum()
    }

    /// Rows that a step of so many has in a slot, of which so many are wanted.
    pub(crate) fn rows_of(&self, slot: Slot, rows: usize, wanted: usize) -> usize {
        self.slots[slot].rows.count(rows, wanted)
    }

    /// Where a step's own rows go, if this program begins with them.
    pub(crate) fn input(&self) -> Option<Slot> {
        let given = |i: &&Instruction| matches!(i.op, Op::Input);
        self.ops.iter().find(given)?.out
    }

    /// The tokens of a step on a cache of `n_pages`, and the rows with outputs.
    ///
    /// # Panics
    /// If the step does not fit: tokens beyond the table (where there is one), tables that do not
    /// cover the positions, page numbers that do not exist, an input of another size, a part of a
    /// sequence whose tokens see later ones.
    pub(crate) fn rows(&self, step: &Step<'_>, n_pages: usize) -> (Vec<Row>, Vec<usize>) {
        let vocabulary = self.ops.iter().find_map(|i| match &i.op {
            Op::Embed { table } => Some(table.rows),
            _ => None,
        });
        let positions = self.ops.iter().find_map(|i| match &i.op {
            Op::EmbedPositions { table } => Some(table.rows),
            _ => None,
        });
        let is_causal = self.is_causal();
        let windows = self.widest_windows();
        if !self.states.is_empty() {
            check_states(step);
        }
        let (mut rows, mut wanted, mut n_given) = (Vec::new(), Vec::new(), 0);
        for (seq, s) in step.seqs.iter().enumerate() {
            let end = s.start + s.tokens.len();
            assert!(
                is_causal || (s.start == 0 && step.role == Role::Prompt),
                "a part of a sequence whose tokens see later ones"
            );
            assert!(
                positions.is_none_or(|n| end <= n),
                "position {end} has no embedding"
            );
            assert_eq!(
                s.tables.len(),
                self.caches.len(),
                "block tables for other groups of layers"
            );
            for (table, window) in s.tables.iter().zip(&windows) {
                assert!(
                    table.len() * PAGE >= end,
                    "the block table ends before position {end}"
                );
                let first = (s.start + 1).saturating_sub(*window);
                let mut read = table.iter().skip(first / PAGE);
                assert!(
                    read.all(|p| (*p as usize) < n_pages),
                    "a page that does not exist"
                );
            }
            assert!(
                s.wanted.end <= s.tokens.len(),
                "outputs wanted of tokens that are not there"
            );
            wanted.extend(s.wanted.clone().map(|i| rows.len() + i));
            assert!(
                s.turns.is_empty() || s.turns.len() == s.tokens.len(),
                "turns of other tokens"
            );
            let is_rising = s.blocks.is_sorted_by(|a, b| a < b);
            assert!(
                s.blocks.is_empty() || (is_rising && s.blocks.last() == Some(&s.tokens.len())),
                "blocks of other tokens"
            );
            let mut blocks = s.blocks.iter().map(|end| s.start + end).peekable();
            let mut block = [s.start, end];
            let first = rows.len();
            for (i, token) in s.tokens.iter().enumerate() {
                let pos = s.start + i;
                if blocks.peek() == Some(&pos) {
                    block[0] = pos;
                    blocks.next();
                }
                block[1] = blocks.peek().copied().unwrap_or(end);
                rows.push(Row {
                    seq,
                    token: *token,
                    pos,
                    turns: s.turns.get(i).copied().unwrap_or([pos as u32; 3]),
                    given: None,
                    end,
                    block,
                });
            }
            n_given = self.place_given(s, n_given, &mut rows[first..]);
            let known = |row: &Row| vocabulary.is_none_or(|n| (row.token as usize) < n);
            if let Some(row) = rows[first..]
                .iter()
                .find(|r| r.given.is_none() && !known(r))
            {
                panic!("token {} has no embedding", row.token);
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

    /// Notes in a sequence's rows which of them are given, there being so many in the step before;
    /// how many there are with these.
    ///
    /// # Panics
    /// If they are not whole rows for this program, or of tokens that are not there.
    fn place_given(&self, s: &Sequence<'_>, before: usize, rows: &mut [Row]) -> usize {
        let mut next = before;
        for given in s.given {
            assert!(
                self.given > 0 && given.rows.len().is_multiple_of(self.given),
                "given rows of another width"
            );
            for row in &mut rows[given.first..][..given.rows.len() / self.given] {
                assert!(row.given.is_none(), "two rows for one token");
                row.given = Some(next);
                next += 1;
            }
        }
        next
    }
}

/// Whether the states of a step are in order.
///
/// # Panics
/// If they are not: a bug in whoever made the step.
fn check_states(step: &Step<'_>) {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for s in step.seqs {
        let StateUse { from, to } = s.states;
        assert_eq!(
            from.is_some(),
            s.start > 0,
            "there is a state exactly where there are tokens"
        );
        assert!(
            to.windows(2).all(|w| w[0].after < w[1].after)
                && to.first().is_some_and(|first| first.after > 0)
                && to.last().is_some_and(|last| last.after == s.tokens.len()),
            "states in order, the last after all tokens"
        );
        read.extend(from);
        written.extend(to.iter().map(|write| write.slot));
    }
    let all = written.len();
    written.sort_unstable();
    written.dedup();
    assert!(
        written.len() == all && read.iter().all(|slot| written.binary_search(slot).is_err()),
        "a state written over another of the step"
    );
}

/// What an operation's shape follows from in a program.
struct Operands<'a> {
    program: &'a Program,
    matrices: &'a [MatrixShape],
    /// Where the result goes.
    out: Option<Slot>,
}

impl Shapes<Slot, usize, Arc<[f32]>, RowTable> for Operands<'_> {
    fn value(&self, slot: Slot) -> ValueShape {
        self.program.slots[slot]
    }

    fn matrix(&self, w: &usize) -> Option<MatrixShape> {
        self.matrices.get(*w).copied()
    }

    fn vector(&self, values: &Arc<[f32]>) -> Option<usize> {
        Some(values.len())
    }

    fn table(&self, table: &RowTable) -> Option<MatrixShape> {
        let RowTable { rows, cols, .. } = *table;
        Some(MatrixShape { rows, cols })
    }

    fn input(&self) -> Option<usize> {
        // a step brings whatever the slot takes
        self.out.map(|out| self.program.slots[out].width)
    }

    fn given(&self) -> usize {
        self.program.given
    }

    fn rope(&self, rope: usize) -> Option<usize> {
        let rope = self.program.ropes.get(rope)?;
        Some(rope.frequencies.len())
    }

    fn state(&self, state: usize) -> Option<usize> {
        self.program.states.get(state).copied()
    }

    fn cache(&self, group: usize) -> Option<CacheShape> {
        let kv = self.program.caches.get(group)?;
        Some(CacheShape {
            layers: kv.n_layer,
            head_dim: kv.head_dim,
            width: kv.n_head_kv * kv.head_dim,
        })
    }
}
