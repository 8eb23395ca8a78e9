//! Products of an operation list: bring the input into the kernel's form, then divide strips among threads.

use super::{
    ACT_GROUP, ActRow, Frame, Gemv, Matrix, Operands, Ordering, Reads, Role, STRIPS, Scratch, Slot, Then, Tokens,
    UNITS, Worker, gemm, sums_len,
};

/// Bytes of activations that stay near beside everything else.
const NEAR_BYTES: usize = 1 << 19;

impl Frame<'_> {
    /// # Safety
    /// As [`Frame::op`].
    pub(super) unsafe fn matmul(&self, at: usize, x: Slot, matrix: &Matrix, out: Slot, w: &Worker<'_>) {
        let m = self.n_rows(x);
        if m == 0 {
            return;
        }
        // SAFETY: every thread takes the same branches, so the barrier is met by all; see `op`.
        unsafe {
            let generated = self.step.role == Role::Generated;
            if let Some(form) = self.plan[at].prepare {
                match form {
                    Reads::Codes => self.quantize(x, m, w),
                    Reads::Floats => {}
                    Reads::Tiles | Reads::Pairs | Reads::Bf16 => self.tile(x, m, matrix.prompt(generated).0, w),
                }
                w.barrier();
            }
            match matrix.reads(generated) {
                Reads::Codes | Reads::Floats => self.gemv(at, matrix, (x, m), out, w),
                Reads::Tiles | Reads::Pairs | Reads::Bf16 => self.gemm(at, matrix, m, out, w),
            }
        }
    }

    /// Row `r` of the quantized activations of width `k`.
    fn act_row(&self, r: usize, k: usize) -> ActRow {
        ActRow {
            q: self.act.q.wrapping_add(r * k / 4),
            scale: self.act.scale.wrapping_add(r * k / ACT_GROUP),
            isum: self.act.isum.wrapping_add(r * k / 16),
            fsum: self.act.fsum.wrapping_add(r * k / 16),
        }
    }

    unsafe fn quantize(&self, x: Slot, m: usize, w: &Worker<'_>) {
        let k = self.width(x);
        // parts of rows, so that one row keeps all threads busy
        for i in w.share(m * k / ACT_GROUP, 8) {
            let (r, g) = (i / (k / ACT_GROUP), i % (k / ACT_GROUP));
            let row = self.act_row(r, k);
            let part = ActRow {
                q: row.q.wrapping_add(g * ACT_GROUP / 4),
                scale: row.scale.wrapping_add(g),
                isum: row.isum.wrapping_add(2 * g),
                fsum: row.fsum.wrapping_add(2 * g),
            };
            // SAFETY: one thread has this group; k is a multiple of 32 because the weights come in such blocks.
            unsafe { (self.table.quantize)(self.row(x, r)[g * ACT_GROUP..].as_ptr(), ACT_GROUP, &part) }
        }
    }

    unsafe fn tile(&self, x: Slot, m: usize, tokens: &Tokens, w: &Worker<'_>) {
        let (k, nt) = (self.width(x), tokens.tile);
        for i in w.share(m.div_ceil(nt), 1) {
            let t = i * nt;
            let width = if tokens.narrow { gemm::tile_width(m - t, nt) } else { nt };
            // SAFETY: one thread has this tile, whose place is reserved: tiles before it are full.
            unsafe {
                let tile = self.tiles.part(t * k * tokens.bytes / 4, width * k * tokens.bytes / 4);
                (tokens.pack)(self.buffers[x].0, m, k, t, width, tile.as_mut_ptr());
            }
        }
    }

    unsafe fn gemv(&self, at: usize, matrix: &Matrix, (x, m): (Slot, usize), out: Slot, w: &Worker<'_>) {
        // Each thread has one long stream. The last strips go to whoever is first: no two CPUs are equally fast.
        let fixed = if w.n == 1 { matrix.strips() } else { matrix.strips() * 15 / 16 / 2 * 2 };
        let share = w.share(fixed, 2);
        let mut s = share.start;
        while s < share.end {
            let n = (share.end - s).min(2);
            // SAFETY: one thread has these strips; see `op`.
            unsafe { self.gemv_strips((at, matrix), s..s + n, (x, m), out, w) };
            s += n;
        }
        loop {
            let s = fixed + 2 * self.counters[at].fetch_add(1, Ordering::Relaxed);
            if s >= matrix.strips() {
                return;
            }
            // SAFETY: as above: the counter gives each pair to one thread.
            unsafe { self.gemv_strips((at, matrix), s..(s + 2).min(matrix.strips()), (x, m), out, w) };
        }
    }

    /// One or two strips times all rows, and what follows.
    unsafe fn gemv_strips(
        &self,
        (at, matrix): (usize, &Matrix),
        strips: std::ops::Range<usize>,
        (x, m): (Slot, usize),
        out: Slot,
        w: &Worker<'_>,
    ) {
        let r = self.table.strip;
        let kernel = matrix.gemv().expect("`reads` says that it is packed");
        let at_once = if matches!(kernel, Gemv::Codes(_)) { strips.len() } else { 1 };
        for s in strips.step_by(at_once) {
            let rows = (at_once * r).min(matrix.rows - s * r);
            for row in 0..m {
                let place = |slot: Slot| self.buffers[slot].0.wrapping_add(row * matrix.rows + s * r);
                // SAFETY: one thread has these strips, so rows s * r .. of the output; strips that are not full, and what
                // is not the output yet, go through this thread's scratch.
                unsafe {
                    let product = |matrix: &Matrix, to: *mut f32| match kernel {
                        Gemv::Codes(f) => {
                            (f[at_once - 1])(matrix.strip(s), matrix.cols, &self.act_row(row, matrix.cols), to);
                        }
                        Gemv::Float(f) => f(matrix.strip(s), matrix.cols, self.row(x, row).as_ptr(), to),
                    };
                    let scratch = &mut self.threads.part(w.id, 1)[0].strip;
                    let [near, other] = [0, STRIPS * r].map(|i| scratch.as_mut_ptr().wrapping_add(i));
                    let Some(then) = self.plan[at].then else {
                        let whole = rows == at_once * r;
                        product(matrix, if whole { place(out) } else { near });
                        if !whole {
                            std::ptr::copy_nonoverlapping(near, place(out), rows);
                        }
                        continue;
                    };
                    product(matrix, near);
                    let (f, b) = match then {
                        Then::SwiGlu { up, .. } => {
                            product(&self.matrices[up], other);
                            (self.table.swiglu, other)
                        }
                        Then::Add { to, .. } => (self.table.add, place(to)),
                    };
                    let (a, b) = ((near.cast_const(), 0), (b.cast_const(), 0));
                    f(&Operands { a, b, y: (place(then.out()), 0), rows: 1, n: rows });
                }
            }
        }
    }

    unsafe fn gemm(&self, at: usize, matrix: &Matrix, m: usize, out: Slot, w: &Worker<'_>) {
        let r = self.table.strip;
        let generated = self.step.role == Role::Generated;
        let (tokens, kernels) = matrix.prompt(generated);
        let then = self.plan[at].then;
        // a unit is two neighbouring strips, or one of the gate and one of the up projection
        let up = match then {
            Some(Then::SwiGlu { up, .. }) => Some(&self.matrices[up]),
            _ => None,
        };
        let units = if up.is_some() { matrix.strips() } else { matrix.strips().div_ceil(STRIPS) };
        let strips = |unit: usize| match up {
            Some(up) => [Some((matrix, unit)), Some((up, unit))],
            None => [0, 1].map(|i| Some((matrix, unit * STRIPS + i)).filter(|s| s.1 < matrix.strips())),
        };
        // a slice of many activations serves several units once it is there
        let many = m * matrix.cols * tokens.bytes > NEAR_BYTES && matrix.cols > tokens.slice;
        let at_once = if many { (units / (3 * w.n)).clamp(1, UNITS) } else { 1 };
        let tasks = units.div_ceil(at_once);
        loop {
            let task = self.counters[at].fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            let mine = task * at_once..((task + 1) * at_once).min(units);
            // SAFETY: the scratch at this thread's number is its own.
            let Scratch { panel, sums, .. } = unsafe { &mut self.threads.part(w.id, 1)[0] };
            for k0 in (0..matrix.cols).step_by(tokens.slice) {
                let kc = tokens.slice.min(matrix.cols - k0);
                for (unit, sums) in mine.clone().zip(sums.chunks_exact_mut(sums_len(m))) {
                    let floats = kc * r * tokens.bytes / 4;
                    let mut n = 0;
                    for (matrix, s) in strips(unit).into_iter().flatten() {
                        matrix.panel(generated, s, k0, k0 + kc, &mut panel[n * floats..(n + 1) * floats]);
                        n += 1;
                    }
                    // what the next turn of these loops reads
                    let (next, k) = if unit + 1 < mine.end { (unit + 1, k0) } else { (mine.start, k0 + kc) };
                    let end = matrix.cols.min(k + tokens.slice);
                    let soon = strips(next).map(|s| s.map_or(&[][..], |(matrix, s)| matrix.packed(s, k, end)));
                    let first = strips(unit)[0].map_or(0, |s| s.1) * r;
                    let tiles = gemm::Tiles {
                        panel: panel.as_ptr(),
                        kc,
                        k0,
                        k: matrix.cols,
                        x: self.tiles.0,
                        m,
                        sums: sums.as_mut_ptr(),
                        y: then.is_none().then(|| (self.buffers[out].0.wrapping_add(first), matrix.rows)),
                        rows: matrix.rows - first,
                        soon,
                    };
                    // SAFETY: one thread has these strips and so these columns of the output; its scratch holds the
                    // panel and the sums.
                    unsafe { (kernels[n - 1])(&tiles) };
                }
            }
            let Some(then) = then else { continue };
            for (unit, sums) in mine.zip(sums.chunks_exact(sums_len(m))) {
                // SAFETY: one thread has these columns of the output, whose other inputs were finished before the last
                // barrier.
                unsafe { self.follow(then, matrix, unit, sums, m) };
            }
        }
    }

    /// Does what follows a product with the sums of one unit.
    ///
    /// # Safety
    /// As [`Frame::op`]; this thread has the unit's columns of the output.
    unsafe fn follow(&self, then: Then, matrix: &Matrix, unit: usize, sums: &[f32], m: usize) {
        let r = self.table.strip;
        let column = |slot: Slot, first: usize| self.buffers[slot].0.wrapping_add(first);
        // SAFETY: sums are `[m][strips][r]`, and columns end with the matrix's rows.
        unsafe {
            match then {
                Then::SwiGlu { out, .. } => {
                    let first = unit * r;
                    let n = r.min(matrix.rows - first);
                    let (a, b) = ((sums.as_ptr(), 2 * r), (sums.as_ptr().add(r), 2 * r));
                    (self.table.swiglu)(&Operands { a, b, y: (column(out, first), matrix.rows), rows: m, n });
                }
                Then::Add { to, out } => {
                    let first = unit * STRIPS * r;
                    let n = (STRIPS * r).min(matrix.rows - first);
                    let width = STRIPS.min(matrix.strips() - unit * STRIPS) * r;
                    let (a, b) = ((sums.as_ptr(), width), (column(to, first).cast_const(), matrix.rows));
                    (self.table.add)(&Operands { a, b, y: (column(out, first), matrix.rows), rows: m, n });
                }
            }
        }
    }
}
