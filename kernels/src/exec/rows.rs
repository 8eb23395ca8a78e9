//! Operations of an operation list on rows, or on heads of rows, each of which is one thread's.

use super::{Op, Operands, PAGE, Part, Row, Slot};

impl Part<'_> {
    /// Cosines and sines of all rows.
    ///
    /// # Safety
    /// As [`Part::run`]. *Shares* of rows.
    pub(super) unsafe fn angles(&self) {
        let rope = &self.model.program.rope;
        let n = rope.frequencies.len();
        for r in self.w.share(self.rows.len(), 1) {
            // SAFETY: this row is of this member's share.
            let (cosines, sines) =
                unsafe { self.view.angles.write(r * 2 * n, 2 * n) }.split_at_mut(n);
            for (i, angle) in rope.angles(self.rows[r].pos).enumerate() {
                (cosines[i], sines[i]) = angle;
            }
        }
    }

    /// An operation on rows, or on heads of rows, each of which is one thread's.
    ///
    /// # Safety
    /// As [`Part::run`]. *Shares* of rows, of groups of a row that are normed together, or of 64
    /// values.
    pub(super) unsafe fn rowwise(&self, op: &Op, grain: usize) {
        let table = self.model.table;
        let all = |slot: Slot| 0..self.width(slot);
        // SAFETY: each of these parts of rows is in this member's share, inputs are finished, and
        // lengths are those that `Program::check` compared.
        unsafe {
            match op {
                Op::Embed { table, out } => {
                    let bytes = table
                        .ty
                        .row_bytes(table.cols as u64)
                        .expect("whole blocks, checked at load")
                        as usize;
                    for r in self.w.share(self.rows.len(), 1) {
                        let from = self.rows[r].token as usize * bytes;
                        let raw = &table.source.bytes()[from..from + bytes];
                        let to = self.row_mut(*out, r, all(*out));
                        octavo_quant::dequantize(table.ty, raw, to).expect("checked at load");
                    }
                }
                Op::Input { out } => {
                    let width = self.width(*out);
                    for r in self.w.share(self.rows.len(), 1) {
                        self.row_mut(*out, r, 0..width)
                            .copy_from_slice(&self.input[r * width..(r + 1) * width]);
                    }
                }
                Op::RmsNorm {
                    x,
                    weight,
                    eps,
                    out,
                } => {
                    let n = weight.len();
                    let groups = self.width(*x) / n;
                    for i in self.w.share(self.n_rows(*x) * groups, grain) {
                        let part = i % groups * n..(i % groups + 1) * n;
                        let from = self.row(*x, i / groups, part.clone());
                        let to = self.row_mut(*out, i / groups, part);
                        (table.rms_norm)(from.as_ptr(), weight.as_ptr(), *eps, n, to.as_mut_ptr());
                    }
                }
                Op::AddBias { x, bias, out } => {
                    let head_dim = self.model.program.kv.head_dim;
                    let n = if bias.len().is_multiple_of(head_dim) {
                        head_dim
                    } else {
                        bias.len()
                    };
                    let parts = bias.len() / n;
                    for i in self.w.share(self.n_rows(*x) * parts, 1) {
                        let at = (i / parts) * bias.len() + i % parts * n;
                        let a = (self.view.buffers[*x].0.add(at).cast_const(), 0);
                        let b = (bias[i % parts * n..].as_ptr(), 0);
                        (table.add)(&Operands {
                            a,
                            b,
                            y: (self.view.buffers[*out].0.add(at), 0),
                            rows: 1,
                            n,
                        });
                    }
                }
                Op::Rope { x, head_dim, out } => self.rope(*x, *head_dim, *out),
                Op::KvWrite { k, v, layer } => self.kv_write(*k, *v, *layer),
                Op::SwiGlu {
                    gate: a,
                    up: b,
                    out,
                }
                | Op::Add { a, b, out } => {
                    let f = if matches!(op, Op::SwiGlu { .. }) {
                        table.swiglu
                    } else {
                        table.add
                    };
                    // rows of one length lie side by side: divide them as one, so that one row
                    // keeps all threads busy
                    let part = self.w.share(self.n_rows(*out) * self.width(*out), 64);
                    let at = |slot: Slot| (self.view.buffers[slot].0.add(part.start), 0);
                    let (a, b) = ((at(*a).0.cast_const(), 0), (at(*b).0.cast_const(), 0));
                    f(&Operands {
                        a,
                        b,
                        y: at(*out),
                        rows: 1,
                        n: part.len(),
                    });
                }
                Op::SelectRows { x, out } => {
                    for r in self.w.share(self.wanted.len(), 1) {
                        let from = self.row(*x, self.wanted[r], all(*x));
                        self.row_mut(*out, r, all(*out)).copy_from_slice(from);
                    }
                }
                Op::MatMul { .. } | Op::Attention { .. } => {
                    unreachable!("these have tasks of their own")
                }
            }
        }
    }

    /// # Safety
    /// As [`Part::run`]. *Shares* of heads of rows.
    unsafe fn rope(&self, x: Slot, head_dim: usize, out: Slot) {
        let n = self.model.program.rope.frequencies.len();
        let heads = self.width(x) / head_dim;
        for i in self.w.share(self.n_rows(x) * heads, 1) {
            let (r, part) = (i / heads, i % heads * head_dim..(i % heads + 1) * head_dim);
            // SAFETY: one thread has this row and head; angles were finished in an earlier section.
            unsafe {
                let (cosines, sines) = self.view.angles.read(r * 2 * n, 2 * n).split_at(n);
                let x = self.row(x, r, part.clone());
                let y = self.row_mut(out, r, part);
                y.copy_from_slice(x);
                if self.model.program.rope.neox {
                    let (cos, sin) = (cosines.as_ptr(), sines.as_ptr());
                    (self.model.table.rotate)(x.as_ptr(), cos, sin, n, y.as_mut_ptr());
                } else {
                    rotate_pairs(x, cosines, sines, y);
                }
            }
        }
    }

    /// # Safety
    /// As [`Part::run`]. *Shares* of heads of rows: no two rows of a step are at one position of
    /// one sequence.
    unsafe fn kv_write(&self, k: Slot, v: Slot, layer: usize) {
        let shape = self.model.program.kv;
        for i in self.w.share(self.rows.len() * shape.n_head_kv, 1) {
            let (r, head) = (i / shape.n_head_kv, i % shape.n_head_kv);
            let Row { seq, pos, .. } = self.rows[r];
            let page = self.tables[seq][pos / PAGE];
            let part = head * shape.head_dim..(head + 1) * shape.head_dim;
            // SAFETY: one thread has this row and head, sequences do not share pages they write to,
            // and the store is read only in later sections: nobody is left behind in this one, and
            // who was in an earlier step does not read what this one writes
            // (`Executor::keep_clear_of`).
            unsafe {
                let kv = (self.row(k, r, part.clone()), self.row(v, r, part));
                self.kv
                    .write((layer, head, page, pos % PAGE), kv, self.model.table.to_f16);
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
