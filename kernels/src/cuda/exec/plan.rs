//! Layout of an executor's device memory, computed before anything is allocated, so that a model
//! that does not fit is refused with numbers.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Index;
use std::sync::Arc;

use octavo_quant::TensorType;

use super::candidates::MAX_CANDIDATE_ROWS;
pub use super::limits::Limits;
pub use super::needs::Needs;
use super::record::Record;
use super::widest::{Widest, gathered_floats};
use crate::cuda::pack::{Layout, is_packed};
use crate::cuda::{Error, FORMATS, launch};
use crate::op::{Op, Scores, scale_at};
use crate::program::{Program, ProgramOp};
use crate::rope::Rope;
use crate::weight_bytes::WeightBytes;
use octavo_simd::kv_layout::KvShape;

/// Rows whose split attention is merged at a time: partial sums of all rows would take too much
/// memory.
pub(super) const ATTEND_ROWS: usize = 64;
/// Number of splits of a row's positions: fixed, so that a row's results depend on nothing but its
/// length, and large enough that one row of a typical model keeps a large device busy.
pub(super) const SPLITS: usize = launch::MAX_SPLITS as usize;
/// Alignment of each piece of the arena in bytes.
const ALIGNMENT: u64 = 256;

/// A weight as stored in the file.
#[derive(Clone)]
pub struct Source {
    /// Tensor name.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// `rows` rows of whole blocks.
    pub bytes: Arc<dyn WeightBytes>,
}

impl Source {
    /// Returns the type stored on the device: its own, or F32 if that has no kernels.
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

/// Bump allocator of offsets, from 0 up.
#[derive(Default)]
struct Arena(u64);

impl Arena {
    /// Takes the product of `factors` in bytes; saturates on overflow, which is more than any
    /// device has.
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

/// A weight and its place in the arena.
pub(super) struct Placed {
    pub(super) source: Source,
    /// Number of stacked expert matrices: 1 for an ordinary one.
    pub(super) experts: usize,
    pub(super) layout: Layout,
    pub(super) at: u64,
}

/// Offsets of a RoPE table's cosines and sines for all positions.
#[derive(Clone, Copy)]
pub(super) struct Angles {
    pub(super) cosines: u64,
    pub(super) sines: u64,
    /// Offset of each pair's position axis, unless all use the first.
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

/// Offsets of everything in the arena, in bytes.
pub(super) struct Plan {
    /// Distinct weights.
    pub(super) placed: Vec<Placed>,
    /// Index into `placed` of each product's weight.
    pub(super) weights: Weights,
    /// Index into `placed` of each embedding table, by operation.
    pub(super) tables: HashMap<usize, usize>,
    /// Constant vectors by operation; see [`vector_of`].
    pub(super) vectors: HashMap<usize, u64>,
    /// RoPE tables.
    pub(super) angles: Vec<Angles>,
    /// For each group of cache layers: all pages of the first layer's keys, of its values, of the
    /// second layer's keys, and so on.
    pub(super) pages: Vec<u64>,
    /// Offset of each part of a state in the first slot; other slots follow at a fixed stride.
    pub(super) state_parts: Vec<u64>,
    pub(super) slots: Vec<u64>,
    /// Embedding inputs.
    pub(super) embedding_inputs: u64,
    /// Inputs of products in the kernels' form, and their scales.
    pub(super) activations: u64,
    pub(super) scales: u64,
    /// Integer form of gate outputs.
    pub(super) gated: u64,
    /// QKV products before biases, norms and RoPE.
    pub(super) heads: u64,
    /// Partial sums of split attention, and their softmax maxima and totals.
    pub(super) sums: u64,
    pub(super) states: u64,
    /// Chosen experts in the order of the experts, and the tiles in which they are multiplied.
    pub(super) order: u64,
    pub(super) tiles: u64,
    /// Partial results of argmax.
    pub(super) parts: u64,
    /// Largest outputs of each row, and of its parts.
    pub(super) candidates: u64,
    pub(super) candidate_parts: u64,
    /// Gathered parts of rows from all ranks, concatenated.
    pub(super) gathered: u64,
    pub(super) record: u64,
    pub(super) needs: Needs,
}

impl Plan {
    /// # Errors
    /// For what the kernels do not support: a weight, a cache type, a head or key size.
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

        let rows_of = |slot: usize| program.rows_of(slot, limits.rows, limits.outputs);
        let is_used = slots_on_device(program);
        let slots = program
            .slots
            .iter()
            .enumerate()
            .map(|(i, s)| arena.take(&[4, s.width, rows_of(i) * usize::from(is_used[i])]))
            .collect();
        let embedding_inputs = arena.take(&[4, program.embedding_input_width, limits.rows]);
        let widest = Widest::new(program, limits, |w| &placed[weights[w]].source);
        let activations = arena.take(&[widest.activation_bytes]);
        let scales = arena.take(&[4, limits.rows.max(limits.outputs)]);
        let gated = arena.take(&[widest.gated_bytes]);
        let query_width = widest.query_width;
        let heads = arena.take(&[4, limits.rows, query_width + 2 * widest.key_width]);
        let split = [4, ATTEND_ROWS.min(limits.rows), SPLITS];
        let mut of_splits = |each: &[usize]| arena.take(&[&split[..], each].concat());
        let (sums, states) = (of_splits(&[query_width]), of_splits(&[widest.heads, 2]));
        let order = arena.take(&[4, widest.choices]);
        let tiles = arena.take(&[launch::EXPERT_TILE_BYTES, widest.tiles]);
        let of_argmax = launch::ARGMAX_PARTS as usize * launch::ARGMAX_PART_BYTES;
        let parts = arena.take(&[limits.outputs, of_argmax]);
        let [candidates, candidate_parts] = place_candidates(program, limits, &mut arena);
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
            embedding_inputs,
            activations,
            scales,
            gated,
            heads,
            sums,
            states,
            order,
            tiles,
            parts,
            candidates,
            candidate_parts,
            gathered,
            record,
            needs,
        })
    }
}

/// Index into [`Plan::placed`] of each product's weight, by its number in the program; `None` for
/// those that the host keeps.
pub(super) struct Weights(Vec<Option<usize>>);

impl Index<usize> for Weights {
    type Output = usize;

    fn index(&self, w: usize) -> &usize {
        self.0[w]
            .as_ref()
            .expect("operations of the host have no launches")
    }
}

/// Returns for each slot whether an operation on the device reads or writes it, or a block of the
/// host does at its ends.
fn slots_on_device(program: &Program) -> Vec<bool> {
    let mut used = vec![false; program.slots.len()];
    used[program.output] = true;
    program.kept.into_iter().for_each(|slot| used[slot] = true);
    let on_host = program.host_ops();
    for (instruction, _) in program.ops.iter().zip(on_host).filter(|(_, host)| !host) {
        let slots = instruction.op.inputs().chain(instruction.out);
        slots.for_each(|slot| used[slot] = true);
    }
    for (inputs, out) in program.on_host.iter().map(|ops| program.boundary(ops)) {
        inputs
            .into_iter()
            .chain([out])
            .for_each(|slot| used[slot] = true);
    }
    used
}

/// Checks that kernels support the cache types and the sizes of heads and keys.
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
        if let Op::SelectKeys { .. } | Op::Attention { seen: Some(_), .. } = &instruction.op {
            return Err(Error::SelectedKeys);
        }
        if let Op::LinearAttention { how, .. } = &instruction.op
            && how.key_dim > launch::max_key_dim(how.decay_by_key)
        {
            return Err(Error::KeyDim(how.key_dim, how.decay_by_key));
        }
        let (what, most, got) = match instruction.op {
            Op::SelectiveScan { b, .. } => {
                let size = program.slots[b].width;
                ("selective scan", launch::MAX_SCAN_SIZE, size)
            }
            Op::Wkv7 { key_dim, .. } => ("time mixing", launch::MAX_WKV_KEYS, key_dim),
            _ => continue,
        };
        if got > most {
            return Err(Error::StateSize { what, most, got });
        }
    }
    Ok(())
}

/// Allocates the largest outputs of each row, and those of its parts.
fn place_candidates(program: &Program, limits: &Limits, arena: &mut Arena) -> [u64; 2] {
    let n = program.slots[program.output].width;
    let rows = limits.outputs.min(MAX_CANDIDATE_ROWS);
    let of = |parts: usize| [8, rows, parts, launch::max_candidates(n)];
    [1, launch::candidate_parts(n)].map(|parts| arena.take(&of(parts)))
}

/// Allocates all state slots; returns the offsets of the parts of the first one.
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

/// Returns the constant vector that an operation reads besides its inputs and matrices: norm
/// weights, a bias, or the factors of `positions` positions.
pub(super) fn vector_of(op: &ProgramOp, positions: usize) -> Option<Cow<'_, [f32]>> {
    if let Op::ScaleByPosition { .. } = op {
        let factors = (0..positions).map(|position| scale_at(op, position));
        return Some(factors.collect());
    }
    if let Op::Attention {
        scores: Scores {
            alibi: Some(alibi), ..
        },
        sinks,
        ..
    } = op
    {
        // slopes follow the sinks, if there are any
        let slopes = (0..alibi.heads).map(|head| alibi.slope(head));
        let sinks = sinks.iter().flat_map(|sinks| sinks.iter().copied());
        return Some(sinks.chain(slopes).collect());
    }
    op.vector().map(|values| Cow::Borrowed(&values[..]))
}

/// Places of a model's constants: matrices, tables and vectors.
struct Constants {
    placed: Vec<Placed>,
    weights: Weights,
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
            weights: Weights(Vec::new()),
            tables: HashMap::new(),
            vectors: HashMap::new(),
        };
        let on_host = program.host_ops();
        let hosts = program.ops.iter().zip(&on_host).filter(|(_, host)| **host);
        let kept: HashSet<usize> = hosts.filter_map(|(i, _)| i.op.matrix().copied()).collect();
        for (w, (source, experts)) in sources
            .iter()
            .zip(program.experts(sources.len()))
            .enumerate()
        {
            let placed = match kept.contains(&w) {
                true => None,
                false => Some(constants.place(source, experts, arena)?),
            };
            constants.weights.0.push(placed);
        }
        let ops = program.ops.iter().enumerate();
        for (at, instruction) in ops.filter(|(at, _)| !on_host[*at]) {
            match &instruction.op {
                Op::Embed { table, .. } | Op::EmbedPositions { table } => {
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

    /// Places a weight and returns its index; a weight already placed is shared, such as an output
    /// tied to the embedding.
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
