//! Recurrent operations: they go from token to token of a sequence, and keep a state between steps.

use super::frame::Span;
use super::section_part::SectionPart;
use crate::op::Op;
use crate::program::{ProgramOp, Recurrent, Scan, Slot, Wkv7};
use octavo_simd::generic::recurrence::{Columns, Lanes, STATE_LANES, ScanLanes, WkvLanes};

/// Neighbouring values that one thread convolves: some cache lines of each row.
const COLUMNS: usize = 64;

/// Place of a block of a state: the same in every slot.
struct BlockPlace {
    /// Part of the states.
    part: usize,
    /// Index of the block in this part.
    number: usize,
    /// Floats of a block.
    len: usize,
}

impl SectionPart<'_> {
    /// Runs an operation that keeps a state.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares*, as the functions below say.
    pub(super) unsafe fn recurrent(&self, op: &ProgramOp, out: Slot) {
        // SAFETY: the caller's promise.
        unsafe {
            match *op {
                Op::CausalConv {
                    x,
                    ref weight,
                    state,
                } => self.causal_conv(x, weight, state, out),
                Op::SelectiveScan { ref a, .. } => self.selective_scan(&Scan::of(op, out), a),
                Op::Wkv7 { .. } => self.wkv7(&Wkv7::of(op, out)),
                _ => self.linear_attention(&Recurrent::of(op, out)),
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of sequences and columns. Only the operation that writes a
    /// state reads it, in a section that cannot be repeated, so no thread is left behind in it; and
    /// no sequence of a step writes a slot that is read in it (`Program::rows`).
    unsafe fn causal_conv(&self, x: Slot, weight: &[f32], state: usize, out: Slot) {
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
    unsafe fn linear_attention(&self, op: &Recurrent) {
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
        let place = BlockPlace {
            part: op.state,
            number: head * value_dim.div_ceil(STATE_LANES) + block,
            len: key_dim * STATE_LANES,
        };
        // SAFETY: inputs are finished; this part of the result and of the new states is of this
        // member's share.
        unsafe {
            self.with_states(span, &place, |row, tokens, state| {
                let inputs = |slot: Slot, column: usize| self.column(slot, row, column);
                (self.model.table.linear_attention)(&Lanes {
                    q: inputs(op.q, key),
                    k: inputs(op.k, key),
                    v: inputs(op.v, value),
                    decay: inputs(op.decay, head * decays),
                    rate: inputs(op.rate, head),
                    y: self.column_mut(op.out, row, value),
                    tokens,
                    key_dim,
                    lanes: STATE_LANES.min(value_dim - block * STATE_LANES),
                    delta: op.how.delta,
                    decay_by_key: op.how.decay_by_key,
                    scale: op.how.scale,
                    state,
                });
            });
        }
    }

    /// # Safety
    /// As [`SectionPart::causal_conv`]. *Shares* of sequences and [`STATE_LANES`] values.
    unsafe fn selective_scan(&self, op: &Scan, a: &[f32]) {
        let (width, size) = (self.width(op.x), self.width(op.b));
        let blocks = width.div_ceil(STATE_LANES);
        for i in self.w.share(self.spans.len() * blocks, 1) {
            let (span, block) = (&self.spans[i / blocks], i % blocks);
            let value = block * STATE_LANES;
            let place = BlockPlace {
                part: op.state,
                number: block,
                len: size * STATE_LANES,
            };
            // SAFETY: inputs are finished; these values are of this member's share.
            unsafe {
                self.with_states(span, &place, |row, tokens, state| {
                    (self.model.table.selective_scan)(&ScanLanes {
                        x: self.column(op.x, row, value),
                        steps: self.column(op.steps, row, value),
                        b: self.column(op.b, row, 0),
                        c: self.column(op.c, row, 0),
                        a: (a[value..].as_ptr(), width),
                        y: self.column_mut(op.out, row, value),
                        tokens,
                        size,
                        lanes: STATE_LANES.min(width - value),
                        state,
                    });
                });
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::causal_conv`]. *Shares* of sequences and [`STATE_LANES`] values of a head.
    unsafe fn wkv7(&self, op: &Wkv7) {
        let heads = self.width(op.r) / op.key_dim;
        let value_dim = self.width(op.v) / heads;
        let blocks = value_dim.div_ceil(STATE_LANES);
        for i in self.w.share(self.spans.len() * heads * blocks, 1) {
            let (span, number) = (&self.spans[i / (heads * blocks)], i % (heads * blocks));
            let (head, block) = (number / blocks, number % blocks);
            let (key, first) = (head * op.key_dim, block * STATE_LANES);
            let value = head * value_dim + first;
            let place = BlockPlace {
                part: op.state,
                number,
                len: op.key_dim * STATE_LANES,
            };
            // SAFETY: inputs are finished; these values are of this member's share.
            unsafe {
                self.with_states(span, &place, |row, tokens, state| {
                    (self.model.table.wkv7)(&WkvLanes {
                        r: self.column(op.r, row, key),
                        decay: self.column(op.decay, row, key),
                        k: self.column(op.k, row, key),
                        v: self.column(op.v, row, value),
                        removed: self.column(op.removed, row, key),
                        replaced: self.column(op.replaced, row, key),
                        y: self.column_mut(op.out, row, value),
                        tokens,
                        key_dim: op.key_dim,
                        lanes: STATE_LANES.min(value_dim - first),
                        state,
                    });
                });
            }
        }
    }

    /// Calls `update` for each run of tokens of a sequence up to one after which a state is kept,
    /// with the run's first row, its number of tokens, and the block's state before it, which
    /// becomes the one after it.
    ///
    /// # Safety
    /// As [`SectionPart::causal_conv`]; the block of the new states is of this member's share.
    unsafe fn with_states(
        &self,
        span: &Span,
        place: &BlockPlace,
        mut update: impl FnMut(usize, usize, *mut f32),
    ) {
        let of_block = place.number * place.len;
        let state_in = |slot| self.kv.states.part(slot, place.part).wrapping_add(of_block);
        let (mut done, mut before) = (0, span.from.map(state_in));
        for write in &span.to {
            let state = state_in(write.slot);
            // SAFETY: this part of the new state is of this member's share, and the state before is
            // complete, and in another slot.
            unsafe {
                match before {
                    Some(before) => std::ptr::copy_nonoverlapping(before, state, place.len),
                    None => std::ptr::write_bytes(state, 0, place.len),
                }
            }
            update(span.first + done, write.after - done, state);
            (done, before) = (write.after, Some(state));
        }
    }

    /// Address of a value of a row, and the stride between rows in floats.
    fn column(&self, slot: Slot, row: usize, column: usize) -> (*const f32, usize) {
        let (at, width) = self.column_mut(slot, row, column);
        (at.cast_const(), width)
    }

    fn column_mut(&self, slot: Slot, row: usize, column: usize) -> (*mut f32, usize) {
        let width = self.width(slot);
        let at = row * width + column;
        (self.view.buffers[slot].0.wrapping_add(at), width)
    }
}
