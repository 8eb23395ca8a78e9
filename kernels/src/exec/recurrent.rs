//! Recurrent operations: they go from token to token of a sequence, and keep a state between steps.

use super::frame::Span;
use super::section_part::SectionPart;
use crate::program::{Recurrent, Slot};
use octavo_simd::generic::recurrence::{Columns, Lanes, STATE_LANES};

/// Neighbouring values that one thread convolves: some cache lines of each row.
const COLUMNS: usize = 64;

impl SectionPart<'_> {
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of sequences and columns. Only the operation that writes a
    /// state reads it, in a section that cannot be repeated, so no thread is left behind in it; and
    /// no sequence of a step writes a slot that is read in it (`Program::rows`).
    pub(super) unsafe fn causal_conv(&self, x: Slot, weight: &[f32], state: usize, out: Slot) {
        let width = self.width(x);
        let kernel = weight.len() / width;
        let blocks = width.div_ceil(COLUMNS);
        for i in self.w.share(self.spans.len() * blocks, 1) {
            let span = &self.spans[i / blocks];
            let first = i % blocks * COLUMNS;
            let n = COLUMNS.min(width - first);
            let at = span.first * width + first;
            let before = match span.from {
                Some(slot) => self
                    .kv
                    .states
                    .part(slot, state)
                    .wrapping_add(first)
                    .cast_const(),
                None => std::ptr::null(),
            };
            // SAFETY: these columns are of this member's share, rows of the input are finished, and
            // those kept before are whole.
            unsafe {
                let columns = Columns {
                    x: (self.view.buffers[x].0.add(at).cast_const(), width),
                    before: (before, width),
                    weight: (weight[first..].as_ptr(), width),
                    kernel,
                    y: (self.view.buffers[out].0.add(at), width),
                    rows: span.rows,
                    n,
                };
                (self.model.table.convolve)(&columns);
                for write in &span.to {
                    let to = self.kv.states.part(write.slot, state).wrapping_add(first);
                    columns.keep(write.after, to, width);
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::causal_conv`]. *Shares* of sequences and [`STATE_LANES`] values of a head.
    pub(super) unsafe fn linear_attention(&self, op: &Recurrent) {
        let heads = self.width(op.rate);
        let blocks = (self.width(op.v) / heads).div_ceil(STATE_LANES);
        for i in self.w.share(self.spans.len() * heads * blocks, 1) {
            let (span, block) = (&self.spans[i / (heads * blocks)], i % (heads * blocks));
            // SAFETY: this block is of this member's share.
            unsafe { self.linear_block(op, span, block / blocks, block % blocks) }
        }
    }

    /// Updates some values of a head, for all tokens of a sequence.
    ///
    /// # Safety
    /// As [`SectionPart::linear_attention`]; the block is of this member's share.
    unsafe fn linear_block(&self, op: &Recurrent, span: &Span, head: usize, block: usize) {
        let (heads, key_dim) = (self.width(op.rate), op.how.key_dim);
        let decays = self.width(op.decay) / heads;
        let value_dim = self.width(op.v) / heads;
        let key = op.how.heads.key_of(head, heads, self.width(op.q) / key_dim) * key_dim;
        let value = head * value_dim + block * STATE_LANES;
        let len = key_dim * STATE_LANES;
        let of_block = (head * value_dim.div_ceil(STATE_LANES) + block) * len;
        let state_in = |slot| self.kv.states.part(slot, op.state).wrapping_add(of_block);
        let (mut done, mut before) = (0, span.from.map(state_in));
        for write in &span.to {
            let state = state_in(write.slot);
            // SAFETY: inputs are finished; this part of the result and of the new state are of this
            // member's share; and the state before is complete, and in another slot.
            unsafe {
                match before {
                    Some(before) => std::ptr::copy_nonoverlapping(before, state, len),
                    None => std::ptr::write_bytes(state, 0, len),
                }
                let rows = |slot: Slot, column: usize| {
                    let width = self.width(slot);
                    let at = (span.first + done) * width + column;
                    (self.view.buffers[slot].0.add(at), width)
                };
                let inputs = |slot: Slot, column: usize| {
                    let (at, width) = rows(slot, column);
                    (at.cast_const(), width)
                };
                (self.model.table.linear_attention)(&Lanes {
                    q: inputs(op.q, key),
                    k: inputs(op.k, key),
                    v: inputs(op.v, value),
                    decay: inputs(op.decay, head * decays),
                    rate: inputs(op.rate, head),
                    y: rows(op.out, value),
                    tokens: write.after - done,
                    key_dim,
                    lanes: STATE_LANES.min(value_dim - block * STATE_LANES),
                    delta: op.how.delta,
                    decay_by_key: op.how.decay_by_key,
                    scale: op.how.scale,
                    state,
                });
            }
            (done, before) = (write.after, Some(state));
        }
    }
}
