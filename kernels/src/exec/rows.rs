//! Operations of an operation list on rows, or on heads of rows, each of which is one thread's.

use std::ops::Range;

use super::section_part::SectionPart;
use crate::hadamard;
use crate::kv::Cell;
use crate::op::{CacheLayer, Op, scale_at};
use crate::program::{Instruction, ProgramOp, RowTable, Slot, TokenRow};
use crate::rope::Pairing;
use octavo_simd::function::Function;
use octavo_simd::generic::attention::PAGE;
use octavo_simd::generic::elementwise::Operands;
use octavo_simd::table::Norm;

impl SectionPart<'_> {
    /// Computes cosines and sines of all rows.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    pub(super) unsafe fn angles(&self) {
        let program = &self.model.program;
        let n = program.angles();
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share.
            let (cosines, sines) =
                unsafe { self.view.angles.write(r * 2 * n, 2 * n) }.split_at_mut(n);
            let rope_positions = self.rows[r].rope_positions;
            let all = program
                .ropes
                .iter()
                .flat_map(|rope| rope.angles(rope_positions));
            for (i, angle) in all.enumerate() {
                (cosines[i], sines[i]) = angle;
            }
        }
    }

    /// Runs an operation on rows, or on parts of rows, each of which is one thread's.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares*, as the functions below say.
    pub(super) unsafe fn rowwise(&self, instruction: &Instruction, grain: usize) {
        let (table, result) = (self.model.table, || instruction.result());
        // SAFETY: inputs are finished, as the caller promises; lengths are those that
        // `Program::check` compared.
        unsafe {
            match &instruction.op {
                Op::Embed { table, placeholder } => self.embed(table, *placeholder, result()),
                Op::AddEmbeddings { x, from } => self.add_embeddings(*x, *from, result()),
                Op::EmbedPositions { table } => self.embed_positions(table, result()),
                Op::Constant { values } => self.constant(values, result()),
                Op::Input => self.input(result()),
                Op::RmsNorm { x, weight, eps } => {
                    self.norm(table.rms_norm, *x, (weight, *eps), result(), grain);
                }
                Op::LayerNorm { x, weight, eps } => {
                    self.norm(table.layer_norm, *x, (weight, *eps), result(), grain);
                }
                Op::AddBias { x, bias } => self.add_bias(*x, bias, result()),
                Op::Rope { x, head_dim, rope } => self.rope(*x, *head_dim, *rope, result()),
                Op::Hadamard { x, order } => self.hadamard(*x, *order, result()),
                Op::KvWrite { k, v, cache } => self.kv_write(*k, *v, *cache),
                Op::Gate { gate, up, act } => {
                    self.by_element((table.gate)(*act), *gate, *up, result());
                }
                Op::Unary { x, f } => self.unary(*f, *x, result()),
                Op::ScaleByPosition { x, .. } => {
                    self.scale_by_position(*x, &instruction.op, result())
                }
                Op::Add { a, b } => self.by_element(table.add, *a, *b, result()),
                Op::SelectRows { x } => self.select_rows(*x, result()),
                Op::Merge { x, rows } => self.merge(*x, *rows, result()),
                Op::Mul { a, b } => self.by_element(table.mul, *a, *b, result()),
                Op::MulVector { x, by } => self.mul_vector(*x, by, result()),
                &Op::Slice {
                    x,
                    each,
                    from,
                    width,
                } => self.slice(x, each, from..from + width, result()),
                &Op::Concat { a, b, each } => self.concat(a, b, each, result()),
                Op::CausalConv { .. }
                | Op::LinearAttention { .. }
                | Op::SelectiveScan { .. }
                | Op::Wkv7 { .. } => self.recurrent(&instruction.op, result()),
                Op::Softmax { x } => self.softmax(*x, result()),
                Op::TopK { x, groups, .. } => self.top_k(*x, *groups, result()),
                Op::Gather { x, ids } => self.gather(*x, *ids, result()),
                Op::Normalize { x, least } => self.normalize(*x, *least, result()),
                // a sum of one part
                Op::ScaleRows { x, by } => self.scale_rows(*x, *by, result()),
                Op::ExpertSum { x, weights } => self.weighted_sum(*x, *weights, result()),
                Op::ExpertBias { x, bias, ids } => self.expert_bias(*x, bias, *ids, result()),
                Op::AllGather { cut, .. } => self.join_parts(*cut, result(), grain),
                &Op::LoraDown { x, ids, site, .. } => self.lora_down((x, ids), site, result()),
                &Op::LoraUp { y, h, ids, site } => self.lora_up([y, h], ids, site, result()),
                Op::MatMul { .. }
                | Op::Attention { .. }
                | Op::SelectKeys { .. }
                | Op::ExpertMatMul { .. } => unreachable!("these have tasks of their own"),
            }
        }
    }

    /// Copies the embeddings of tokens, or in their place the embedding inputs, or the
    /// placeholder's embedding.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn embed(&self, table: &RowTable, placeholder: Option<u32>, out: Slot) {
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share.
            let to = unsafe { self.row_mut(out, r, 0..table.cols) };
            match (self.embedding_input(r), placeholder) {
                (Some(_), Some(token)) => read_row(table, token as usize, to),
                (Some(input), None) => to.copy_from_slice(&input[..table.cols]),
                (None, _) => read_row(table, self.rows[r].token as usize, to),
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn embed_positions(&self, table: &RowTable, out: Slot) {
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share.
            let to = unsafe { self.row_mut(out, r, 0..table.cols) };
            read_row(table, self.rows[r].pos, to);
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn merge(&self, x: Slot, rows: usize, out: Slot) {
        let width = self.width(x);
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share.
            let to = unsafe { self.row_mut(out, r, 0..self.width(out)) };
            for (i, to) in to.chunks_exact_mut(width).enumerate() {
                // SAFETY: the input was finished before the last barrier.
                to.copy_from_slice(unsafe { self.row(x, r * rows + i, 0..width) });
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn add_embeddings(&self, x: Slot, from: usize, out: Slot) {
        let width = self.width(out);
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share; where both are one slot, the borrow for
            // reading ends before others are written.
            unsafe {
                if x != out {
                    let x = self.row(x, r, 0..width);
                    self.row_mut(out, r, 0..width).copy_from_slice(x);
                }
                if let Some(input) = self.embedding_input(r) {
                    let sum = self.row_mut(out, r, 0..width);
                    sum.iter_mut()
                        .zip(&input[from..from + width])
                        .for_each(|(sum, x)| *sum += x);
                }
            }
        }
    }

    /// The embedding input that replaces row `r`'s embedding, if any.
    fn embedding_input(&self, r: usize) -> Option<&[f32]> {
        let width = self.model.program.embedding_input_width;
        self.rows[r]
            .embedding_input
            .map(|at| &self.frame.embedding_inputs[at * width..(at + 1) * width])
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn input(&self, out: Slot) {
        let width = self.width(out);
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share.
            unsafe { self.row_mut(out, r, 0..width) }
                .copy_from_slice(&self.input[r * width..(r + 1) * width]);
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn constant(&self, values: &[f32], out: Slot) {
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share.
            unsafe { self.row_mut(out, r, 0..values.len()) }.copy_from_slice(values);
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn concat(&self, a: Slot, b: Slot, each: [usize; 2], out: Slot) {
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share, and its inputs are finished.
            unsafe {
                let first = self.row(a, r, 0..self.width(a)).chunks_exact(each[0]);
                let second = self.row(b, r, 0..self.width(b)).chunks_exact(each[1]);
                let to = self.row_mut(out, r, 0..self.width(out));
                let pieces = to.chunks_exact_mut(each[0] + each[1]);
                // a single piece of `b` is repeated
                for ((to, first), second) in pieces.zip(first).zip(second.cycle()) {
                    to[..each[0]].copy_from_slice(first);
                    to[each[0]..].copy_from_slice(second);
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]; the kernel is one of this CPU. *Shares* of groups of a row that are
    /// normalized together, `grain` at a time.
    unsafe fn norm(
        &self,
        kernel: Norm,
        x: Slot,
        (weight, eps): (&[f32], f32),
        out: Slot,
        grain: usize,
    ) {
        let n = weight.len();
        let groups = self.width(x) / n;
        for i in self.w.share(self.n_rows(x) * groups, grain) {
            let part = i % groups * n..(i % groups + 1) * n;
            // SAFETY: this group is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, i / groups, part.clone());
                let to = self.row_mut(out, i / groups, part);
                kernel(from.as_ptr(), weight.as_ptr(), eps, n, to.as_mut_ptr());
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of heads of rows, or of rows that are not made of heads.
    unsafe fn add_bias(&self, x: Slot, bias: &[f32], out: Slot) {
        let head_dim = self.model.program.head_dim_of(bias.len());
        let n = head_dim.unwrap_or(bias.len());
        let parts = bias.len() / n;
        for i in self.w.share(self.n_rows(x) * parts, 1) {
            let at = (i / parts) * bias.len() + i % parts * n;
            // SAFETY: this part of a row is of this member's share, and its input is finished.
            unsafe {
                let a = (self.view.buffers[x].0.add(at).cast_const(), 0);
                let b = (bias[i % parts * n..].as_ptr(), 0);
                (self.model.table.add)(&Operands {
                    a,
                    b,
                    y: (self.view.buffers[out].0.add(at), 0),
                    rows: 1,
                    n,
                });
            }
        }
    }

    /// Runs a kernel that makes each value of those at the same place in `a` and `b`.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the kernel is one of this CPU. *Shares* of 64 values: rows of one
    /// length lie side by side, and are divided as one, so that one row keeps all threads busy.
    unsafe fn by_element(&self, kernel: unsafe fn(&Operands), a: Slot, b: Slot, out: Slot) {
        let part = self.w.share(self.n_rows(out) * self.width(out), 64);
        // SAFETY: these values are of this member's share, and their inputs are finished.
        unsafe {
            let at = |slot: Slot| self.view.buffers[slot].0.add(part.start);
            kernel(&Operands {
                a: (at(a).cast_const(), 0),
                b: (at(b).cast_const(), 0),
                y: (at(out), 0),
                rows: 1,
                n: part.len(),
            });
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of 64 values, as in [`SectionPart::by_element`].
    unsafe fn unary(&self, f: Function, x: Slot, out: Slot) {
        let part = self.w.share(self.n_rows(out) * self.width(out), 64);
        // SAFETY: these values are of this member's share, and their inputs are finished.
        unsafe {
            let at = |slot: Slot| self.view.buffers[slot].0.add(part.start);
            (self.model.table.unary)(f, at(x).cast_const(), part.len(), at(out));
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn scale_by_position(&self, x: Slot, op: &ProgramOp, out: Slot) {
        let all = 0..self.width(x);
        for r in self.w.share(self.rows.len(), 1) {
            let factor = scale_at(op, self.rows[r].pos);
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, r, all.clone()).as_ptr();
                let to = self.row_mut(out, r, all.clone()).as_mut_ptr();
                (self.model.table.unary)(Function::Scale(factor), from, all.end, to);
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn hadamard(&self, x: Slot, order: usize, out: Slot) {
        let all = 0..self.width(x);
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            let to = unsafe {
                let to = self.row_mut(out, r, all.clone());
                to.copy_from_slice(self.row(x, r, all.clone()));
                to
            };
            to.chunks_exact_mut(order).for_each(hadamard::transform);
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn slice(&self, x: Slot, each: usize, part: Range<usize>, out: Slot) {
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, r, 0..self.width(x)).chunks_exact(each);
                let to = self.row_mut(out, r, 0..self.width(out));
                for (from, to) in from.zip(to.chunks_exact_mut(part.len())) {
                    to.copy_from_slice(&from[part.clone()]);
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn mul_vector(&self, x: Slot, by: &[f32], out: Slot) {
        let width = self.width(x);
        let n = width / by.len();
        for r in self.w.share(self.n_rows(out), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, r, 0..width).as_ptr();
                let to = self.row_mut(out, r, 0..width).as_mut_ptr();
                if n == 1 {
                    (self.model.table.mul)(&Operands {
                        a: (from, 0),
                        b: (by.as_ptr(), 0),
                        y: (to, 0),
                        rows: 1,
                        n: width,
                    });
                    continue;
                }
                for (i, factor) in by.iter().enumerate() {
                    let f = Function::Scale(*factor);
                    (self.model.table.unary)(f, from.add(i * n), n, to.add(i * n));
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows of the result.
    unsafe fn select_rows(&self, x: Slot, out: Slot) {
        let all = 0..self.width(x);
        for r in self.w.share(self.output_rows.len(), 1) {
            // SAFETY: this row is of this member's share, and its input is finished.
            unsafe {
                let from = self.row(x, self.output_rows[r], all.clone());
                self.row_mut(out, r, all.clone()).copy_from_slice(from);
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of heads of rows.
    unsafe fn rope(&self, x: Slot, head_dim: usize, rope: usize, out: Slot) {
        let program = &self.model.program;
        let (all, first) = (program.angles(), program.angles_before(rope));
        let rope = &program.ropes[rope];
        let n = rope.frequencies.len();
        let heads = self.width(x) / head_dim;
        for i in self.w.share(self.n_rows(x) * heads, 1) {
            let (r, part) = (i / heads, i % heads * head_dim..(i % heads + 1) * head_dim);
            // SAFETY: one thread has this row and head; angles were finished in an earlier section.
            unsafe {
                let at = r * 2 * all + first;
                let cosines = self.view.angles.read(at, n);
                let sines = self.view.angles.read(at + all, n);
                let x = self.row(x, r, part.clone());
                let y = self.row_mut(out, r, part);
                y.copy_from_slice(x);
                if rope.pairing == Pairing::Neox {
                    let (cos, sin) = (cosines.as_ptr(), sines.as_ptr());
                    (self.model.table.rotate)(x.as_ptr(), cos, sin, n, y.as_mut_ptr());
                } else {
                    rotate_pairs(x, cosines, sines, y);
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of heads of rows: no two rows of a step are at one
    /// position of one sequence.
    unsafe fn kv_write(&self, k: Slot, v: Slot, cache: CacheLayer) {
        let shape = self.model.program.cache(cache);
        for i in self.w.share(self.rows.len() * shape.n_head_kv, 1) {
            let (r, head) = (i / shape.n_head_kv, i % shape.n_head_kv);
            let TokenRow { seq, pos, .. } = self.rows[r];
            let page = self.tables[seq][cache.group][pos / PAGE];
            let part = head * shape.head_dim..(head + 1) * shape.head_dim;
            // SAFETY: one thread has this row and head, sequences do not share pages they write to,
            // and the store is read only in later sections: no thread is left behind in this one,
            // and a thread of an earlier step does not read what this one writes
            // (`Executor::keep_clear_of`).
            unsafe {
                let kv = (self.row(k, r, part.clone()), self.row(v, r, part));
                let cell = Cell {
                    layer: cache.layer,
                    head,
                    page,
                    slot: pos % PAGE,
                };
                self.kv[cache.group].write(cell, kv, self.model.table.to_f16);
            }
        }
    }
}

/// Rotates neighbouring values.
fn rotate_pairs(x: &[f32], cosines: &[f32], sines: &[f32], y: &mut [f32]) {
    for (((x, y), cos), sin) in x
        .chunks_exact(2)
        .zip(y.chunks_exact_mut(2))
        .zip(cosines)
        .zip(sines)
    {
        y[0] = x[0] * cos - x[1] * sin;
        y[1] = x[0] * sin + x[1] * cos;
    }
}

/// A row of a table.
pub(super) fn read_row(table: &RowTable, row: usize, to: &mut [f32]) {
    let bytes = table.ty.row_bytes(table.cols as u64);
    let bytes = bytes.expect("whole blocks, checked at load") as usize;
    let raw = &table.source.bytes()[row * bytes..(row + 1) * bytes];
    octavo_quant::dequantize(table.ty, raw, to).expect("checked at load");
}
