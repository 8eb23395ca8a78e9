//! Products of an operation list: bring the input into the kernel's form, then divide strips among threads.

use super::{
    ACT_GROUP, ActRow, Frame, Gemv, Matrix, Ordering, Reads, Role, STRIPS, Scratch, Shared, Slot, Tokens, Worker, gemm,
};

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
            unsafe { self.gemv_strips(matrix, s..s + n, (x, m), out, w) };
            s += n;
        }
        loop {
            let s = fixed + 2 * self.counters[at].fetch_add(1, Ordering::Relaxed);
            if s >= matrix.strips() {
                return;
            }
            // SAFETY: as above: the counter gives each pair to one thread.
            unsafe { self.gemv_strips(matrix, s..(s + 2).min(matrix.strips()), (x, m), out, w) };
        }
    }

    /// One or two strips times all rows.
    unsafe fn gemv_strips(
        &self,
        matrix: &Matrix,
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
                // SAFETY: one thread has these strips, so rows s * r .. of the output; strips that are not full go
                // through this thread's scratch.
                unsafe {
                    let y = self.buffers[out].part(row * matrix.rows + s * r, rows);
                    let scratch = &mut self.threads.part(w.id, 1)[0].strip;
                    let to = if rows == at_once * r { y.as_mut_ptr() } else { scratch.as_mut_ptr() };
                    match kernel {
                        Gemv::Codes(f) => {
                            (f[at_once - 1])(matrix.strip(s), matrix.cols, &self.act_row(row, matrix.cols), to);
                        }
                        Gemv::Float(f) => f(matrix.strip(s), matrix.cols, self.row(x, row).as_ptr(), to),
                    }
                    if rows < at_once * r {
                        y.copy_from_slice(&scratch[..rows]);
                    }
                }
            }
        }
    }

    unsafe fn gemm(&self, at: usize, matrix: &Matrix, m: usize, out: Slot, w: &Worker<'_>) {
        let r = self.table.strip;
        let generated = self.step.role == Role::Generated;
        let (tokens, kernels) = matrix.prompt(generated);
        let tasks = matrix.strips().div_ceil(STRIPS);
        loop {
            let task = self.counters[at].fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            let first = task * STRIPS;
            let strips = STRIPS.min(matrix.strips() - first);
            let y = Shared(self.buffers[out].0.wrapping_add(first * r));
            let mut k0 = 0;
            while k0 < matrix.cols {
                let kc = tokens.slice.min(matrix.cols - k0);
                // SAFETY: one thread has these strips and so these columns of the output; its scratch holds the panel.
                unsafe {
                    let Scratch { panel, sums, .. } = &mut self.threads.part(w.id, 1)[0];
                    let floats = kc * r * tokens.bytes / 4;
                    for s in 0..strips {
                        matrix.panel(generated, first + s, k0, k0 + kc, &mut panel[s * floats..(s + 1) * floats]);
                    }
                    let tiles = gemm::Tiles {
                        panel: panel.as_ptr(),
                        kc,
                        k0,
                        k: matrix.cols,
                        x: self.tiles.0,
                        m,
                        sums: sums.as_mut_ptr(),
                        y: y.0,
                        n: matrix.rows,
                        rows: matrix.rows - first * r,
                    };
                    (kernels[strips - 1])(&tiles);
                }
                k0 += kc;
            }
        }
    }
}
