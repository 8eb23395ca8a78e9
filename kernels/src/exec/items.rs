//! Work items: the units in which threads take long tasks. Finished items are not repeated when a
//! section is taken over.

use super::epilogue::Epilogue;
use super::extent::Extent;
use super::model::Model;
use super::plan::{Section, Stage, Task};
use super::sizes::{PIECE, QUERY_BLOCK, STRIP_PAIR, piece_len};
use crate::op::Op;
use crate::program::{ProgramOp, Slot};
use octavo_simd::act::Form;

/// The items of a task.
pub(super) struct Items {
    pub(super) count: usize,
    kind: Kind,
}

enum Kind {
    /// Columns of all rows of a slot, `at_once` columns at a time.
    Columns {
        slot: Slot,
        rows: usize,
        width: usize,
        at_once: usize,
    },
    /// Columns of the results of one expert of a row, `at_once` at a time; `parts` times.
    Experts {
        slot: Slot,
        n: usize,
        at_once: usize,
        parts: usize,
    },
    /// Rows of a slot, `block` at a time, and of those the part of one KV head.
    Blocks {
        slot: Slot,
        rows: usize,
        width: usize,
        block: usize,
        heads_kv: usize,
    },
    /// Pieces of positions, of one row and the query heads of one KV head.
    Pieces {
        heads: usize,
        pieces: usize,
        len: usize,
    },
}

/// Region of an item's results: `rows` times `len` values, `stride` apart, in a slot or among the
/// pieces of attention.
pub(super) struct Region {
    pub(super) slot: Option<Slot>,
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) stride: usize,
    pub(super) len: usize,
}

impl Items {
    /// Number of items of the tasks of any section, at most.
    pub(super) fn most(model: &Model, extent: &Extent) -> usize {
        let of_section = |section: &Section| -> usize {
            section
                .tasks
                .iter()
                .filter_map(|task| Items::of(model, extent, task))
                .map(|items| items.count)
                .sum()
        };
        model
            .plan(extent.phase, false)
            .sections
            .iter()
            .map(of_section)
            .max()
            .unwrap_or(0)
    }

    /// The items of a task; `None` if it is short and has none.
    pub(super) fn of(model: &Model, extent: &Extent, task: &Task) -> Option<Items> {
        let program = &model.program;
        let width = |slot: Slot| program.slots[slot].width;
        let rows = |slot: Slot| program.rows_of(slot, extent.rows, extent.outputs);
        let instruction = &program.ops[task.op];
        match (task.stage, &instruction.op) {
            (Stage::Whole(then), &Op::MatMul { w, .. }) => {
                let out = then.map_or_else(|| instruction.result(), Epilogue::out);
                let matrix = &model.matrices[w];
                let both = matches!(then, Some(Epilogue::Gate { .. }));
                let by_strip = both && matches!(matrix.reads(extent.phase), Form::Tiles(_));
                let at_once = model.table.strip * if by_strip { 1 } else { STRIP_PAIR };
                let kind = Kind::Columns {
                    slot: out,
                    rows: rows(out),
                    width: width(out),
                    at_once,
                };
                Some(Items {
                    count: width(out).div_ceil(at_once),
                    kind,
                })
            }
            (Stage::Whole(_), &Op::ExpertMatMul { w, ids, .. }) => {
                let n = model.matrices[w].expert_rows();
                let at_once = model.table.strip * STRIP_PAIR;
                let parts = n.div_ceil(at_once);
                let kind = Kind::Experts {
                    slot: instruction.result(),
                    n,
                    at_once,
                    parts,
                };
                Some(Items {
                    count: rows(ids) * width(ids) * parts,
                    kind,
                })
            }
            (stage, op @ (Op::Attention { .. } | Op::SelectKeys { .. })) => {
                Items::of_keys(model, extent, (stage, op), instruction.result())
            }
            _ => None,
        }
    }

    /// The items of an operation on cached keys, whose result is in `out`.
    fn of_keys(
        model: &Model,
        extent: &Extent,
        (stage, op): (Stage, &ProgramOp),
        out: Slot,
    ) -> Option<Items> {
        let program = &model.program;
        let width = |slot: Slot| program.slots[slot].width;
        match (stage, op) {
            (Stage::Whole(_), &Op::Attention { q, cache, .. }) => {
                let kv = program.cache(cache);
                let heads_kv = kv.n_head_kv;
                let block = block_tokens(model, width(q) / kv.head_dim / heads_kv);
                let kind = Kind::Blocks {
                    slot: out,
                    rows: extent.rows,
                    width: width(out),
                    block,
                    heads_kv,
                };
                Some(Items {
                    count: extent.rows.div_ceil(block) * heads_kv,
                    kind,
                })
            }
            (Stage::Whole(_), &Op::SelectKeys { n, .. }) => {
                let kind = Kind::Blocks {
                    slot: out,
                    rows: extent.rows,
                    width: n,
                    block: 1,
                    heads_kv: 1,
                };
                Some(Items {
                    count: extent.rows,
                    kind,
                })
            }
            (Stage::Pieces, Op::SelectKeys { .. }) => {
                let kind = Kind::Pieces {
                    heads: 1,
                    pieces: extent.pieces,
                    len: PIECE,
                };
                Some(Items {
                    count: extent.rows * extent.pieces,
                    kind,
                })
            }
            (Stage::Pieces, &Op::Attention { q, cache, .. }) => {
                let kv = program.cache(cache);
                let heads_kv = kv.n_head_kv;
                let kind = Kind::Pieces {
                    heads: width(q) / kv.head_dim / heads_kv,
                    pieces: extent.pieces,
                    len: piece_len(kv.head_dim),
                };
                Some(Items {
                    count: extent.rows * heads_kv * extent.pieces,
                    kind,
                })
            }
            _ => None,
        }
    }

    /// The region of an item's results.
    pub(super) fn region(&self, item: usize) -> Region {
        match self.kind {
            Kind::Columns {
                slot,
                rows,
                width,
                at_once,
            } => {
                let first = item * at_once;
                Region {
                    slot: Some(slot),
                    first,
                    rows,
                    stride: width,
                    len: at_once.min(width - first),
                }
            }
            Kind::Experts {
                slot,
                n,
                at_once,
                parts,
            } => {
                let (choice, first) = (item / parts, item % parts * at_once);
                Region {
                    slot: Some(slot),
                    first: choice * n + first,
                    rows: 1,
                    stride: n,
                    len: at_once.min(n - first),
                }
            }
            Kind::Blocks {
                slot,
                rows,
                width,
                block,
                heads_kv,
            } => {
                let (first_row, head) = (item / heads_kv * block, item % heads_kv);
                let len = width / heads_kv;
                let first = first_row * width + head * len;
                Region {
                    slot: Some(slot),
                    first,
                    rows: block.min(rows - first_row),
                    stride: width,
                    len,
                }
            }
            Kind::Pieces { heads, pieces, len } => {
                let (group, piece) = (item / pieces, item % pieces);
                let first = (group * heads * pieces + piece) * len;
                Region {
                    slot: None,
                    first,
                    rows: heads,
                    stride: pieces * len,
                    len,
                }
            }
        }
    }
}

/// Prompt tokens per attention item, for a KV head shared by `heads` query heads.
pub(super) fn block_tokens(model: &Model, heads: usize) -> usize {
    match model.prompt_attention {
        Some(kernels) => (kernels.rows / heads).max(1),
        None => QUERY_BLOCK,
    }
}
