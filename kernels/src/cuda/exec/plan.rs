//! What an executor keeps on its device, and where: worked out before anything is allocated, so
//! that a model that does not fit is refused with numbers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use octavo_quant::TensorType;

use super::ranks::gathered_floats;
use super::record::Record;
use crate::bytes::Bytes;
use crate::cuda::launch::Form;
use crate::cuda::pack::{Layout, is_packed};
use crate::cuda::{Error, FORMATS, launch};
use crate::kv::KvShape;
use crate::op::{Op, scale_at};
use crate::program::{Program, ProgramOp};
use crate::rope::Rope;

/// Rows whose attention is split and merged at a time: what the partial sums of all rows would take
/// is too much.
pub(super) const ATTEND_ROWS: usize = 64;
/// Parts of a row's positions that blocks take: fixed, so that a row's numbers depend on nothing
/// but its length, and so many that one row of a usual model keeps a large device busy.
pub(super) const SPLITS: usize = launch::MOST_SPLITS as usize;
/// Every piece of the arena begins at such a multiple.
const ALIGNMENT: u64 = 256;

/// The largest step, and the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a step.
    pub rows: usize,
    /// Tokens of a step with outputs.
    pub wanted: usize,
    /// Sequences of a step.
    pub sequences: usize,
    /// Positions of a sequence.
    pub positions: usize,
    /// Pages of the cache.
    pub n_pages: usize,
    /// Slots of states; none are needed by a program that keeps none.
    pub states: usize,
}

impl Limits {
    /// Pages of the longest sequence.
    pub(super) fn max_pages(&self) -> usize {
        self.positions.div_ceil(crate::PAGE_POSITIONS)
    }

    /// Positions that tables of angles and the like are made for: those of whole pages.
    pub(super) fn table_positions(&self) -> usize {
        self.max_pages() * crate::PAGE_POSITIONS
    }
}

/// A weight as it lies in the file.
#[derive(Clone)]
pub struct Source {
    /// Its name there.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `rows` rows of whole blocks.
    pub bytes: Arc<dyn Bytes>,
}

impl Source {
    /// The type of the kernels that multiply it: its own, or floats where it has none.
    pub(super) fn stored(&self) -> TensorType {
        if is_packed(self.ty) {
            self.ty
        } else {
            TensorType::F32
        }
    }

    fn layout(&self, experts: usize) -> Result<Layout, Error> {
        let unusable = |expected: String| {
            let (name, got) = (
                self.name.clone(),
                format!("{} x {} {}", self.rows, self.cols, self.ty),
            );
            Error::Weight {
                name,
                expected,
                got,
            }
        };
        if !octavo_quant::can_dequantize(self.ty) {
            let own: Vec<String> = FORMATS.iter().map(ToString::to_string).collect();
            return Err(unusable(format!(
                "one of {}, or a type that can be read as floats",
                own.join(" ")
            )));
        }
        let bytes = self
            .ty
            .row_bytes(self.cols as u64)
            .and_then(|b| b.checked_mul(self.rows as u64));
        let got = self.bytes.n_bytes();
        match Layout::of_experts(self.stored(), experts, self.rows, self.cols) {
            Some(layout) if bytes == Some(got as u64) => Ok(layout),
            _ => Err(unusable(format!("rows of whole blocks in {got} bytes"))),
        }
    }
}

/// Bytes that a model takes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Weights, in the kernels' layout.
    pub weights: u64,
    /// Keys and values.
    pub kv: u64,
    /// States of sequences.
    pub states: u64,
    /// Everything that a step writes.
    pub buffers: u64,
}

impl Needs {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.kv)
            .saturating_add(self.states)
            .saturating_add(self.buffers)
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Needs {
            weights,
            kv,
            states,
            buffers,
        } = *self;
        let (total, weights, kv) = (mib(self.total()), mib(weights), mib(kv));
        write!(f, "{total} MiB (weights {weights}, KV cache {kv}, ")?;
        if states > 0 {
            write!(f, "states {}, ", mib(states))?;
        }
        write!(f, "buffers {})", mib(buffers))
    }
}

/// Hands out pieces of a range that begins at 0.
#[derive(Default)]
struct Arena(u64);

impl Arena {
    /// As many bytes as the product of `factors`; more than can be counted is at least more than
    /// there is.
    fn take(&mut self, factors: &[usize]) -> u64 {
        let bytes = factors
            .iter()
            .fold(1, |a: u64, b| a.saturating_mul(*b as u64));
        let at = self.0;
        self.0 = at
            .saturating_add(bytes)
            .checked_next_multiple_of(ALIGNMENT)
            .unwrap_or(u64::MAX);
        at
    }
}

/// A weight's place.
pub(super) struct Placed {
    pub(super) source: Source,
    /// Matrices one below the other: 1 for an ordinary one.
    pub(super) experts: usize,
    pub(super) layout: Layout,
    pub(super) at: u64,
}

/// Places of a table's cosines and sines, of all positions.
#[derive(Clone, Copy)]
pub(super) struct Angles {
    pub(super) cosines: u64,
    pub(super) sines: u64,
    /// Along which axis each pair turns, if not all along the first.
    pub(super) axes: Option<u64>,
}

impl Angles {
    fn place(rope: &Rope, limits: &Limits, arena: &mut Arena) -> Angles {
        let pairs = rope.frequencies.len();
        let values = [4, limits.table_positions(), pairs];
        Angles {
            cosines: arena.take(&values),
            sines: arena.take(&values),
            axes: (!rope.axes.is_empty()).then(|| arena.take(&[4, pairs])),
        }
    }
}

/// Places of everything, as distances from the arena's beginning.
pub(super) struct Plan {
    /// Every weight once.
    pub(super) placed: Vec<Placed>,
    /// Which of them a product multiplies with.
    pub(super) weights: Vec<usize>,
    /// Which of them an operation looks rows up in.
    pub(super) tables: HashMap<usize, usize>,
    /// Values that an operation brings, by operation: see [`vector_of`].
    pub(super) vectors: HashMap<usize, u64>,
    /// For each table of angles.
    pub(super) angles: Vec<Angles>,
    /// For each group of the cache's layers: keys of its first layer, its values, keys of the
    /// second and so on, all pages of each.
    pub(super) pages: Vec<u64>,
    /// Where each part of a state is in the first slot; the others follow at equal distances.
    pub(super) state_parts: Vec<u64>,
    pub(super) slots: Vec<u64>,
    /// Rows that are given in the place of embeddings.
    pub(super) given: u64,
    /// Inputs of products in the kernels' form, and their scales.
    pub(super) activations: u64,
    pub(super) scales: u64,
    /// Integers of what is gated.
    pub(super) gated: u64,
    /// Products on their way to be queries, keys and values.
    pub(super) heads: u64,
    /// Partial sums of attention, and their maxima and totals.
    pub(super) sums: u64,
    pub(super) states: u64,
    /// Parts of the search for the largest outputs.
    pub(super) parts: u64,
    /// The ranks' parts of rows, side by side.
    pub(super) gathered: u64,
    pub(super) record: u64,
    pub(super) needs: Needs,
}

impl Plan {
    /// # Errors
    /// For what the kernels do not take: a weight, the cache's type, the size of heads.
    pub(super) fn new(
        program: &Program,
        sources: &[Source],
        limits: &Limits,
    ) -> Result<Plan, Error> {
        check(program)?;
        let mut arena = Arena::default();
        let Constants {
            placed,
            weights,
            tables,
            vectors,
        } = Constants::new(program, sources, limits.table_positions(), &mut arena)?;
        let mut place = |rope: &Rope| Angles::place(rope, limits, &mut arena);
        let angles = program.ropes.iter().map(&mut place).collect();
        let weight_bytes = arena.0;
        let mut group =
            |kv: &KvShape| arena.take(&[kv.page_bytes().unwrap_or(usize::MAX), limits.n_pages]);
        let pages = program.caches.iter().map(&mut group).collect();
        let kv_bytes = arena.0 - weight_bytes;
        let state_parts = place_states(program, limits, &mut arena);
        let state_bytes = arena.0 - weight_bytes - kv_bytes;

        let rows_of = |slot: usize| program.rows_of(slot, limits.rows, limits.wanted);
        let slots = program
            .slots
            .iter()
            .enumerate()
            .map(|(i, s)| arena.take(&[4, s.width, rows_of(i)]))
            .collect();
        let given = arena.take(&[4, program.given, limits.rows]);
        let widest = Widest::new(program, limits, |w| &placed[weights[w]].source);
        let activations = arena.take(&[widest.activation_bytes]);
        let scales = arena.take(&[4, limits.rows.max(limits.wanted)]);
        let gated = arena.take(&[widest.gated_bytes]);
        let query_width = widest.query_width;
        let heads = arena.take(&[4, limits.rows, query_width + 2 * widest.key_width]);
        let split = [4, ATTEND_ROWS.min(limits.rows), SPLITS, query_width];
        let (sums, states) = (arena.take(&split), arena.take(&[&split[..], &[2]].concat()));
        let parts = arena.take(&[
            limits.wanted,
            launch::ARGMAX_PARTS as usize,
            launch::ARGMAX_PART_BYTES,
        ]);
        let gathered = arena.take(&[4, gathered_floats(program, rows_of)]);
        let record = arena.take(&[Record::most_bytes(limits, program)]);
        let needs = Needs {
            weights: weight_bytes,
            kv: kv_bytes,
            states: state_bytes,
            buffers: arena.0 - weight_bytes - kv_bytes - state_bytes,
        };
        Ok(Plan {
            placed,
            weights,
            tables,
            vectors,
            angles,
            pages,
            state_parts,
            slots,
            given,
            activations,
            scales,
            gated,
            heads,
            sums,
            states,
            parts,
            gathered,
            record,
            needs,
        })
    }
}

/// Whether kernels take the cache's types, and the sizes of heads and keys.
fn check(program: &Program) -> Result<(), Error> {
    for &KvShape {
        types, head_dim, ..
    } in &program.caches
    {
        if launch::kv_type(types).is_none() {
            return Err(Error::KvTypes(types));
        }
        if !types.takes(head_dim) {
            return Err(Error::KvType { types, head_dim });
        }
        if !launch::takes_head_dim(head_dim) {
            return Err(Error::HeadDim(head_dim));
        }
    }
    for instruction in &program.ops {
        if let Op::LinearAttention { how, .. } = &instruction.op
            && how.key_dim > launch::MOST_KEY_DIM
        {
            return Err(Error::KeyDim(how.key_dim));
        }
    }
    Ok(())
}

/// Takes room for all slots of states; answers where the parts of the first one are.
fn place_states(program: &Program, limits: &Limits, arena: &mut Arena) -> Vec<u64> {
    let mut before = 0usize;
    let parts: Vec<usize> = program
        .states
        .iter()
        .map(|floats| {
            let part = before;
            before = before.saturating_add(*floats);
            part
        })
        .collect();
    let start = arena.take(&[4, before, limits.states]);
    let at = |part: usize| start.saturating_add((part as u64).saturating_mul(4));
    parts.into_iter().map(at).collect()
}

/// The values that an operation reads besides its inputs and matrices: a norm's weights, a bias, or
/// factors by position, of so many.
pub(super) fn vector_of(op: &ProgramOp, positions: usize) -> Option<Cow<'_, [f32]>> {
    if let Op::ScaleByPosition { rate, step, .. } = *op {
        let factors = (0..positions).map(|position| scale_at(position, rate, step));
        return Some(factors.collect());
    }
    op.vector().map(|values| Cow::Borrowed(&values[..]))
}

/// Places of what a model brings: matrices, tables and vectors.
struct Constants {
    placed: Vec<Placed>,
    weights: Vec<usize>,
    tables: HashMap<usize, usize>,
    vectors: HashMap<usize, u64>,
}

impl Constants {
    fn new(
        program: &Program,
        sources: &[Source],
        positions: usize,
        arena: &mut Arena,
    ) -> Result<Constants, Error> {
        let mut constants = Constants {
            placed: Vec::new(),
            weights: Vec::new(),
            tables: HashMap::new(),
            vectors: HashMap::new(),
        };
        for (source, experts) in sources.iter().zip(program.experts(sources.len())) {
            let placed = constants.place(source, experts, arena)?;
            constants.weights.push(placed);
        }
        for (at, instruction) in program.ops.iter().enumerate() {
            match &instruction.op {
                Op::Embed { table } | Op::EmbedPositions { table } => {
                    let source = Source {
                        name: "token embeddings".to_owned(),
                        ty: table.ty,
                        rows: table.rows,
                        cols: table.cols,
                        bytes: table.source.clone(),
                    };
                    let placed = constants.place(&source, 1, arena)?;
                    constants.tables.insert(at, placed);
                }
                op => {
                    if let Some(values) = vector_of(op, positions) {
                        let place = arena.take(&[4, values.len()]);
                        constants.vectors.insert(at, place);
                    }
                }
            }
        }
        Ok(constants)
    }

    /// Which of the placed weights this is, which may be there already: an output that is the
    /// embedding once more is one weight.
    fn place(
        &mut self,
        source: &Source,
        experts: usize,
        arena: &mut Arena,
    ) -> Result<usize, Error> {
        let lies_at = source.bytes.lies_at();
        let same = |p: &Placed| {
            let there = lies_at.is_some_and(|at| p.source.bytes.lies_at() == Some(at));
            p.experts == experts && there
        };
        if let Some(at) = self.placed.iter().position(same) {
            return Ok(at);
        }
        let layout = source.layout(experts)?;
        self.placed.push(Placed {
            source: source.clone(),
            experts,
            layout,
            at: arena.take(&[layout.bytes]),
        });
        Ok(self.placed.len() - 1)
    }
}

/// What the largest operations of a kind need.
#[derive(Default)]
struct Widest {
    activation_bytes: usize,
    gated_bytes: usize,
    query_width: usize,
    key_width: usize,
}

impl Widest {
    fn new<'a>(program: &Program, limits: &Limits, source: impl Fn(usize) -> &'a Source) -> Widest {
        let rows_of = |slot: usize| program.rows_of(slot, limits.rows, limits.wanted);
        let mut widest = Widest::default();
        for instruction in &program.ops {
            match instruction.op {
                Op::MatMul { x, w } => {
                    let (rows, source) = (rows_of(x), source(w));
                    let prompts = [Form::Halves, Form::WideHalves];
                    for form in prompts.into_iter().chain([Form::of_gemv(source.stored())]) {
                        let bytes = launch::activation_bytes(form, rows, source.cols);
                        widest.activation_bytes = widest.activation_bytes.max(bytes);
                    }
                }
                Op::ExpertMatMul { x, w, .. } => {
                    let source = source(w);
                    let inputs = rows_of(x) * (program.slots[x].width / source.cols);
                    let form = Form::of_gemv(source.stored());
                    let bytes = launch::activation_bytes(form, inputs, source.cols);
                    widest.activation_bytes = widest.activation_bytes.max(bytes);
                }
                Op::Gate { up: x, .. } => {
                    let width = program.slots[x].width;
                    let bytes = launch::activation_bytes(Form::Integers, rows_of(x), width);
                    widest.gated_bytes = widest.gated_bytes.max(bytes);
                }
                Op::Attention { q, .. } => {
                    widest.query_width = widest.query_width.max(program.slots[q].width);
                }
                Op::KvWrite { k, .. } => {
                    widest.key_width = widest.key_width.max(program.slots[k].width);
                }
                _ => {}
            }
        }
        widest
    }
}
