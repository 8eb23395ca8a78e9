//! Largest sizes of what the operations of a program need beside their slots.

use super::plan::{Limits, Source};
use crate::cuda::launch::{self, Form};
use crate::op::Op;
use crate::program::{Program, Slot};

/// Largest sizes that operations of each kind need.
#[derive(Default)]
pub(super) struct Widest {
    pub(super) activation_bytes: usize,
    pub(super) gated_bytes: usize,
    pub(super) query_width: usize,
    /// Query heads.
    pub(super) heads: usize,
    pub(super) key_width: usize,
    /// Experts chosen in a step, and tiles of them.
    pub(super) choices: usize,
    pub(super) tiles: usize,
}

impl Widest {
    pub(super) fn new<'a>(
        program: &Program,
        limits: &Limits,
        source: impl Fn(usize) -> &'a Source,
    ) -> Widest {
        let rows_of = |slot: usize| program.rows_of(slot, limits.rows, limits.outputs);
        let mut widest = Widest::default();
        let ops = program.ops.iter().zip(program.host_ops());
        for (instruction, _) in ops.filter(|(_, on_host)| !on_host) {
            match instruction.op {
                Op::MatMul { x, w } => {
                    let (rows, source) = (rows_of(x), source(w));
                    let prompts = [Form::Halves, Form::WideHalves];
                    for form in prompts.into_iter().chain([Form::of_gemv(source.stored())]) {
                        let bytes = launch::activation_bytes(form, rows, source.cols);
                        widest.activation_bytes = widest.activation_bytes.max(bytes);
                    }
                }
                Op::ExpertMatMul { x, w, ids, experts } => {
                    let choices = rows_of(ids) * program.slots[ids].width;
                    // fewer choices can have more tiles, being narrower
                    let tiles = choices / (launch::IMMA_COLUMNS / 2) + experts;
                    widest.choices = widest.choices.max(choices);
                    widest.tiles = widest.tiles.max(tiles);
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
                Op::Attention { q, cache, .. } => {
                    let width = program.slots[q].width;
                    let heads = width / program.cache(cache).head_dim;
                    widest.query_width = widest.query_width.max(width);
                    widest.heads = widest.heads.max(heads);
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

/// Returns the floats of the largest all-gather of a program; `rows_of` gives the rows of a slot.
pub(super) fn gathered_floats(program: &Program, rows_of: impl Fn(Slot) -> usize) -> usize {
    let gathers = program.ops.iter();
    let gathers = gathers.filter(|i| matches!(i.op, Op::AllGather { .. }));
    let floats = gathers.map(|i| rows_of(i.result()) * program.slots[i.result()].width);
    floats.max().unwrap_or(0)
}
