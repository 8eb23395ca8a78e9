//! The step record: everything that changes from step to step, in one piece of device memory
//! written before each step. Launches know only its address, so that captured ones can be replayed
//! for any step.

use super::limits::Limits;
use crate::cuda::Ptr;
use crate::cuda::launch::{self, TILE_QUERIES};
use crate::cuda::params::Paging;
use crate::program::{Phase, Program, StateUse, Step, TokenRow};

/// Sizes that determine a step's launches, independent of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) generated: bool,
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) sequences: usize,
    /// Tiles of prefill attention on tensor cores.
    pub(super) tiles: usize,
    /// Most splits of a row's positions in attention, rounded up.
    pub(super) splits: usize,
}

impl Shape {
    /// Returns the exact shape of a step, with prefill attention in tiles of `tile_rows` rows;
    /// its rows attend to positions before `end`.
    pub(super) fn of(step: &Step<'_>, tile_rows: usize, end: usize) -> Shape {
        let generated = step.phase == Phase::Decode;
        let tiles = step
            .seqs
            .iter()
            .map(|s| s.tokens.len().div_ceil(tile_rows))
            .sum();
        let (rows, outputs, sequences) = (step.rows(), step.n_outputs(), step.seqs.len());
        Shape {
            generated,
            rows,
            outputs,
            sequences,
            tiles: if generated { 0 } else { tiles },
            splits: splits(rows, end),
        }
    }

    /// Returns the shape for decoding `n` tokens, all with outputs, of up to `n` sequences that
    /// attend to positions before `end`: exactly `n` rows up to 8, then the next power of two.
    pub(super) fn bucket(n: usize, end: usize) -> Shape {
        let rows = if n <= 8 { n } else { n.next_power_of_two() };
        Shape {
            generated: true,
            rows,
            outputs: rows,
            sequences: rows,
            tiles: 0,
            splits: splits(rows, end),
        }
    }
}

/// Returns a number of splits that no row with positions before `end` exceeds: all, or in batches
/// of shorter sequences so few that blocks without work take little time. Two sizes, because every
/// size is captured apart.
fn splits(rows: usize, end: usize) -> usize {
    const FEW: usize = launch::MAX_SPLITS as usize / 4;
    match rows < 8 || launch::splits_of(end) > FEW {
        true => launch::MAX_SPLITS as usize,
        false => FEW,
    }
}

/// Maximum number of states of a sequence that one step keeps.
pub const MAX_RETAINED: usize = 8;

/// Words of a `Span` in `recurrence.cu`.
const SPAN: usize = 3 + 2 * MAX_RETAINED;

/// Slot number of a sequence whose initial state is zero.
const NO_SLOT: u32 = u32::MAX;

/// Index of a row without an embedding input; as a token it is in no table.
pub(super) const NO_EMBEDDING: u32 = u32::MAX;

/// Returns the rows per tile of attention on tensor cores, with `heads_per_kv` query heads per KV
/// head.
pub(super) fn tile_rows(heads_per_kv: usize) -> usize {
    (TILE_QUERIES / heads_per_kv.max(1)).max(1)
}

/// Contents of a step record, and the layout of its arrays for a shape.
pub(super) struct Record {
    bytes: Vec<u8>,
    max_pages: usize,
    /// Number of groups of cache layers.
    groups: usize,
    /// Whether sequences have recurrent states.
    has_states: bool,
    /// Number of pages in the cache, if kernels are to check page numbers.
    n_pages: Option<u32>,
}

/// Words at the beginning, where kernels report missing pages. The argmax results follow, so that
/// both are read together.
const MISSING: usize = 1;

/// Offset of each array of a record, in words.
struct Arrays {
    best: usize,
    tokens: usize,
    positions: usize,
    rope_positions: usize,
    embedding_inputs: usize,
    ends: usize,
    blocks: usize,
    block_ends: usize,
    image_ends: usize,
    sequences: usize,
    output_rows: usize,
    tiles: usize,
    spans: usize,
    tables: usize,
    end: usize,
}

/// Lays out a record with `span` and `tables_each` words per sequence.
fn arrays(shape: &Shape, span: usize, tables_each: usize) -> Arrays {
    let Shape {
        rows,
        outputs,
        sequences,
        tiles,
        ..
    } = *shape;
    let best = MISSING;
    let tokens = best + outputs;
    let positions = tokens + rows;
    let rope_positions = positions + rows;
    let embedding_inputs = rope_positions + 3 * rows;
    let ends = embedding_inputs + rows;
    let blocks = ends + rows;
    let block_ends = blocks + rows;
    let image_ends = block_ends + rows;
    let of_rows = image_ends + rows;
    let output_rows = of_rows + rows;
    let at_tiles = output_rows + outputs;
    let spans = at_tiles + 2 * tiles;
    let tables = spans + sequences * span;
    let end = tables + sequences * tables_each;
    Arrays {
        best,
        tokens,
        positions,
        rope_positions,
        embedding_inputs,
        ends,
        blocks,
        block_ends,
        image_ends,
        sequences: of_rows,
        output_rows,
        tiles: at_tiles,
        spans,
        tables,
        end,
    }
}

/// Device addresses of a record's arrays.
pub(super) struct Addresses {
    /// Argmax of each requested row's outputs; the word before it is a row, counted from 1, that
    /// lacks a page.
    pub(super) best: Ptr,
    pub(super) tokens: Ptr,
    /// RoPE positions of the rows along each axis.
    pub(super) rope_positions: Ptr,
    /// Index of the embedding input that replaces each row's embedding.
    pub(super) embedding_inputs: Ptr,
    /// Positions in each row's sequence, including this step's.
    pub(super) ends: Ptr,
    /// First position of each row's block, and the position after its last.
    pub(super) blocks: Ptr,
    pub(super) block_ends: Ptr,
    /// Position after the last of each row's image, or after its own.
    pub(super) image_ends: Ptr,
    pub(super) output_rows: Ptr,
    pub(super) tiles: Ptr,
    /// Rows and state slots of the sequences, for programs with states.
    pub(super) spans: Ptr,
    /// Paging of the first group of cache layers.
    first: Paging,
    /// Bytes of a group's block tables.
    tables: u64,
}

impl Addresses {
    /// Returns the positions of the rows.
    pub(super) fn positions(&self) -> Ptr {
        self.first.positions
    }

    /// Returns the sequence index of each row.
    pub(super) fn sequences(&self) -> Ptr {
        self.first.sequences
    }

    /// Returns the paging parameters of a group.
    pub(super) fn paging(&self, group: usize) -> Paging {
        let mut paging = self.first;
        paging.tables = paging.tables.offset(self.tables * group as u64);
        paging
    }
}

impl Record {
    /// Creates a record for steps within these limits. With `check`, kernels compare every page
    /// number with the number of pages.
    pub(super) fn new(limits: &Limits, program: &Program, check: bool) -> Record {
        let n_pages =
            check.then(|| u32::try_from(limits.n_pages).expect("pages are numbered in 32 bits"));
        Record {
            bytes: Vec::with_capacity(Record::most_bytes(limits, program)),
            max_pages: limits.max_pages(),
            groups: program.caches.len(),
            has_states: !program.states.is_empty(),
            n_pages,
        }
    }

    /// Returns the bytes of the largest record.
    pub(super) fn most_bytes(limits: &Limits, program: &Program) -> usize {
        let &Limits {
            rows,
            outputs,
            sequences,
            ..
        } = limits;
        let span = if program.states.is_empty() { 0 } else { SPAN };
        let each = limits.max_pages().saturating_mul(program.caches.len());
        // a tile has at least one row
        (MISSING + 13 * rows + 2 * outputs)
            .saturating_add(sequences.saturating_mul(each.saturating_add(span)))
            .saturating_mul(4)
    }

    fn arrays(&self, shape: &Shape) -> Arrays {
        let span = if self.has_states { SPAN } else { 0 };
        arrays(shape, span, self.groups * self.max_pages)
    }

    /// Returns the addresses of the arrays of a record of this shape at `base`.
    pub(super) fn addresses(&self, shape: &Shape, base: Ptr) -> Addresses {
        let a = self.arrays(shape);
        let at = |words: usize| base.offset(4 * words as u64);
        Addresses {
            best: at(a.best),
            tokens: at(a.tokens),
            rope_positions: at(a.rope_positions),
            embedding_inputs: at(a.embedding_inputs),
            ends: at(a.ends),
            blocks: at(a.blocks),
            block_ends: at(a.block_ends),
            image_ends: at(a.image_ends),
            output_rows: at(a.output_rows),
            tiles: at(a.tiles),
            spans: at(a.spans),
            tables: (4 * shape.sequences * self.max_pages) as u64,
            first: Paging {
                positions: at(a.positions),
                sequences: at(a.sequences),
                tables: at(a.tables),
                missing: base,
                max_pages: small(self.max_pages),
                rows: small(shape.rows),
                n_pages: self.n_pages.unwrap_or(u32::MAX),
                first_row: 0,
            },
        }
    }

    /// Writes a step in a shape that has room for it. Excess rows are padding, each a sequence of
    /// its own without positions: position -1, whose keys and values are not stored and which
    /// attends to nothing, and a state that is initially zero and is not kept.
    pub(super) fn fill(
        &mut self,
        shape: &Shape,
        step: &Step<'_>,
        rows: &[TokenRow],
        output_rows: &[usize],
        tile_rows: usize,
    ) -> &[u8] {
        let a = self.arrays(shape);
        self.bytes.clear();
        self.bytes.resize(4 * a.end, 0);
        // unused table entries are no page
        self.bytes[4 * a.tables..].fill(if self.n_pages.is_some() { u8::MAX } else { 0 });
        let mut put = |at: usize, value: u32| {
            self.bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes())
        };
        for (r, row) in rows.iter().enumerate() {
            // a row with an embedding input has no token in the table
            put(
                a.tokens + r,
                row.embedding_input.map_or(row.token, |_| NO_EMBEDDING),
            );
            put(a.positions + r, small(row.pos));
            put(
                a.embedding_inputs + r,
                row.embedding_input.map_or(NO_EMBEDDING, small),
            );
            for (axis, position) in row.rope_positions.into_iter().enumerate() {
                put(a.rope_positions + 3 * r + axis, position);
            }
            put(a.ends + r, small(row.end));
            put(a.blocks + r, small(row.block[0]));
            put(a.block_ends + r, small(row.block[1]));
            put(a.image_ends + r, small(row.image_end));
            put(a.sequences + r, small(row.seq));
        }
        for (padding, r) in (rows.len()..shape.rows).enumerate() {
            put(a.positions + r, u32::MAX);
            put(a.rope_positions + 3 * r, u32::MAX);
            put(a.embedding_inputs + r, NO_EMBEDDING);
            put(a.sequences + r, small(step.seqs.len() + padding));
        }
        for (i, row) in output_rows
            .iter()
            .copied()
            .chain(output_rows.len()..shape.outputs)
            .enumerate()
        {
            put(a.output_rows + i, small(row));
        }
        let (mut tile, mut first) = (0, 0);
        for (s, seq) in step.seqs.iter().enumerate() {
            for (group, table) in seq.tables.iter().enumerate() {
                let at = a.tables + (group * shape.sequences + s) * self.max_pages;
                for (i, page) in table.iter().take(self.max_pages).enumerate() {
                    put(at + i, *page);
                }
            }
            for at in (0..seq.tokens.len())
                .step_by(tile_rows)
                .filter(|_| shape.tiles > 0)
            {
                put(a.tiles + 2 * tile, small(first + at));
                put(
                    a.tiles + 2 * tile + 1,
                    small(tile_rows.min(seq.tokens.len() - at)),
                );
                tile += 1;
            }
            first += seq.tokens.len();
        }
        if self.has_states {
            let spans = spans(shape, step);
            let to = &mut self.bytes[4 * a.spans..4 * a.tables];
            for (to, word) in to.as_chunks_mut::<4>().0.iter_mut().zip(spans) {
                *to = word.to_le_bytes();
            }
        }
        &self.bytes
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("rows and positions are numbered in 31 bits")
}

/// Yields for each sequence of a shape: its first row, number of rows, the slot with its state, and
/// pairs of a row count and the slot that gets the state after it; 0 rows keep no state.
fn spans(shape: &Shape, step: &Step<'_>) -> impl Iterator<Item = u32> {
    let padding = StateUse::default();
    let of_step = step.seqs.iter().map(|s| (s.tokens.len(), s.states));
    let mut first = 0;
    let sequences = of_step.chain(std::iter::repeat((1, padding)));
    sequences
        .take(shape.sequences)
        .flat_map(move |(rows, states)| {
            let mut span = [0; SPAN];
            let from = states.from.unwrap_or(NO_SLOT);
            span[..3].copy_from_slice(&[small(first), small(rows), from]);
            for (words, write) in span[3..].as_chunks_mut::<2>().0.iter_mut().zip(states.to) {
                *words = [small(write.after), write.slot];
            }
            first += rows;
            span
        })
}
