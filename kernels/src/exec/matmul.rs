//! Products of an operation list: bring the input into the kernel's form, then divide strips among
//! threads.

use std::ops::Range;

use super::{
    ACT_GROUP, ActivationForm, Division, Epilogue, Form, Gemv, Matrix, Operands, Part, Role,
    STRIP_PAIR, Scratch, Slot, Task, UNITS, gemm, sums_len,
};

/// Bytes of activations that stay near beside everything else.
const NEAR_BYTES: usize = 1 << 19;

/// A product of an operation list.
pub(super) struct Product<'a> {
    pub(super) task: &'a Task,
    pub(super) x: Slot,
    pub(super) matrix: &'a Matrix,
    pub(super) out: Slot,
    pub(super) then: Option<Epilogue>,
}

impl Part<'_> {
    /// Brings the input of a product into the form that its kernel reads.
    ///
    /// # Safety
    /// As [`Part::run`]. *Shares* of groups or of tiles.
    pub(super) unsafe fn prepare(&self, form: Form, x: Slot, matrix: &Matrix, task: &Task) {
        // SAFETY: the same shares of the same finished input.
        unsafe {
            match form {
                Form::Codes => self.quantize(x, task),
                Form::Floats => {}
                Form::Tiles | Form::Pairs | Form::Bf16 => {
                    self.tile(x, matrix.prompt(self.is_generated()).0)
                }
            }
        }
    }

    /// A product, and what follows it.
    ///
    /// # Safety
    /// As [`Part::run`]. *Items*: strips.
    pub(super) unsafe fn matmul(&self, product: &Product<'_>) {
        let m = self.n_rows(product.x);
        if m == 0 {
            return;
        }
        // SAFETY: the same items of the same finished input.
        unsafe {
            match product.matrix.reads(self.is_generated()) {
                Form::Codes | Form::Floats => self.gemv(product, m),
                Form::Tiles | Form::Pairs | Form::Bf16 => self.gemm(product, m),
            }
        }
    }

    fn is_generated(&self) -> bool {
        self.extent.role == Role::Generated
    }

    /// # Safety
    /// As [`Part::run`]. *Shares* of groups: of whole rows where the operation before divides rows.
    unsafe fn quantize(&self, x: Slot, task: &Task) {
        let Some(codes) = task.codes else {
            unreachable!("the plan gives it a place")
        };
        let (m, groups) = (self.n_rows(x), self.width(x) / ACT_GROUP);
        let share = match task.division {
            Division::Rows { grain } => {
                let rows = self.w.share(m, grain);
                rows.start * groups..rows.end * groups
            }
            // parts of rows, so that one row keeps all threads busy
            _ => self.w.share(m * groups, 8),
        };
        // SAFETY: one thread has these groups, of inputs that are finished.
        unsafe { self.quantize_groups(x, share, codes) }
    }

    /// Brings groups of a slot's values, counted over all rows, into integers at one of the places
    /// for these.
    ///
    /// # Safety
    /// These groups are the calling thread's, by whichever rule, and their values are finished.
    pub(super) unsafe fn quantize_groups(&self, x: Slot, groups: Range<usize>, codes: usize) {
        assert!(groups.end * ACT_GROUP <= self.n_rows(x) * self.width(x));
        for group in groups {
            let (from, to) = (group * ACT_GROUP, self.view.codes[codes].at_group(group));
            // SAFETY: one thread has this group, and the slot has that many values, of which the
            // integers have room for all.
            unsafe {
                let from = self.view.buffers[x].read(from, ACT_GROUP);
                (self.model.table.quantize)(from.as_ptr(), ACT_GROUP, &to);
            }
        }
    }

    /// # Safety
    /// As [`Part::run`]. *Shares* of whole tiles.
    unsafe fn tile(&self, x: Slot, tokens: &ActivationForm) {
        let (m, k, nt) = (self.n_rows(x), self.width(x), tokens.tile);
        for t in self.w.share(m, nt).step_by(nt) {
            let width = if tokens.narrow {
                gemm::tile_width(m - t, nt)
            } else {
                nt
            };
            // SAFETY: one thread has this tile, whose place is reserved: tiles before it are full.
            unsafe {
                let tile = self
                    .view
                    .tiles
                    .write(t * k * tokens.bytes / 4, width * k * tokens.bytes / 4);
                (tokens.pack)(self.view.buffers[x].0, m, k, t, width, tile.as_mut_ptr());
            }
        }
    }

    /// # Safety
    /// As [`Part::run`]. *Items*: pairs of strips.
    unsafe fn gemv(&self, product: &Product<'_>, m: usize) {
        // Each thread has one long stream. The last strips go to whoever is first: no two CPUs are
        // equally fast.
        let strips = product.matrix.strips();
        let pairs = strips.div_ceil(2);
        let fixed = if self.w.size == 1 {
            pairs
        } else {
            strips * 15 / 16 / 2
        };
        self.take_items(product.task.op, fixed, pairs, |pair| {
            if !self.is_done(pair) {
                // SAFETY: one thread has these strips.
                unsafe { self.gemv_strips(product, 2 * pair..(2 * pair + 2).min(strips), m) };
                self.note_done(pair);
            }
        });
    }

    /// One or two strips times all rows, and what follows.
    ///
    /// # Safety
    /// As [`Part::run`]; the strips are those of one of the *items*.
    unsafe fn gemv_strips(&self, product: &Product<'_>, strips: Range<usize>, m: usize) {
        let &Product {
            task,
            x,
            matrix,
            out,
            then,
        } = product;
        let table = self.model.table;
        let r = table.strip;
        let kernel = matrix.gemv().expect("`reads` says that it is packed");
        let at_once = if matches!(kernel, Gemv::Codes(_)) {
            strips.len()
        } else {
            1
        };
        // SAFETY: the scratch at this thread's number is its own, and nothing below borrows it
        // again.
        let scratch = unsafe { &mut self.scratches.of(self.w.thread).strip };
        let groups = matrix.cols / ACT_GROUP;
        // both from one pointer: to borrow the scratch again would end what came of the first
        // borrow
        let near = scratch.as_mut_ptr();
        let other = near.wrapping_add(STRIP_PAIR * r);
        for s in strips.step_by(at_once) {
            let rows = (at_once * r).min(matrix.rows - s * r);
            for row in 0..m {
                let place = |slot: Slot| {
                    self.view.buffers[slot]
                        .0
                        .wrapping_add(row * matrix.rows + s * r)
                };
                // SAFETY: one thread has these strips, so rows s * r .. of the output; strips that
                // are not full, and what is not the output yet, go through this thread's scratch.
                unsafe {
                    let multiply = |matrix: &Matrix, to: *mut f32| match kernel {
                        Gemv::Codes(f) => {
                            let x = self.view.codes[task.reads_codes].at_group(row * groups);
                            (f[at_once - 1])(matrix.strip(s), matrix.cols, &x, to);
                        }
                        Gemv::Float(f) => f(
                            matrix.strip(s),
                            matrix.cols,
                            self.row(x, row, 0..matrix.cols).as_ptr(),
                            to,
                        ),
                    };
                    let Some(then) = then else {
                        let whole = rows == at_once * r;
                        multiply(matrix, if whole { place(out) } else { near });
                        if !whole {
                            std::ptr::copy_nonoverlapping(near, place(out), rows);
                        }
                        continue;
                    };
                    multiply(matrix, near);
                    let (f, b) = match then {
                        Epilogue::Gate { up, act, .. } => {
                            multiply(&self.model.matrices[up], other);
                            ((table.gate)(act), other)
                        }
                        Epilogue::Add { to, .. } => (table.add, place(to)),
                    };
                    let (a, b) = ((near.cast_const(), 0), (b.cast_const(), 0));
                    f(&Operands {
                        a,
                        b,
                        y: (place(then.out()), 0),
                        rows: 1,
                        n: rows,
                    });
                    if let Some(codes) = task.codes {
                        // whole groups, or the plan would not have asked for them
                        let first = (row * matrix.rows + s * r) / ACT_GROUP;
                        self.quantize_groups(then.out(), first..first + rows / ACT_GROUP, codes);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`Part::run`]. *Items*: turns of several units, each of which is finished by itself.
    unsafe fn gemm(&self, product: &Product<'_>, m: usize) {
        let &Product {
            task,
            matrix,
            out,
            then,
            ..
        } = product;
        let r = self.model.table.strip;
        let generated = self.is_generated();
        let (tokens, kernels) = matrix.prompt(generated);
        // a unit is two neighbouring strips, or one of the gate and one of the up projection
        let up = match then {
            Some(Epilogue::Gate { up, .. }) => Some(&self.model.matrices[up]),
            _ => None,
        };
        let units = if up.is_some() {
            matrix.strips()
        } else {
            matrix.strips().div_ceil(STRIP_PAIR)
        };
        let strips = |unit: usize| match up {
            Some(up) => [Some((matrix, unit)), Some((up, unit))],
            None => [0, 1]
                .map(|i| Some((matrix, unit * STRIP_PAIR + i)).filter(|s| s.1 < matrix.strips())),
        };
        // a slice of many activations serves several units once it is there
        let many = m * matrix.cols * tokens.bytes > NEAR_BYTES && matrix.cols > tokens.slice;
        let at_once = if many {
            (units / (3 * self.w.size)).clamp(1, UNITS)
        } else {
            1
        };
        self.take_items(task.op, 0, units.div_ceil(at_once), |turn| {
            let turn = turn * at_once..((turn + 1) * at_once).min(units);
            // nobody writes once more what is done: others may be reading it
            let mut mine = [0; UNITS];
            let mut n_mine = 0;
            for unit in turn.filter(|unit| !self.is_done(*unit)) {
                mine[n_mine] = unit;
                n_mine += 1;
            }
            let mine = &mine[..n_mine];
            let [first_of_mine, ..] = *mine else { return };
            // SAFETY: the scratch at this thread's number is its own.
            let Scratch { panel, sums, .. } = unsafe { self.scratches.of(self.w.thread) };
            for k0 in (0..matrix.cols).step_by(tokens.slice) {
                let kc = tokens.slice.min(matrix.cols - k0);
                for (i, (unit, sums)) in mine
                    .iter()
                    .zip(sums.chunks_exact_mut(sums_len(m)))
                    .enumerate()
                {
                    let floats = kc * r * tokens.bytes / 4;
                    let mut n = 0;
                    for (matrix, s) in strips(*unit).into_iter().flatten() {
                        matrix.panel(
                            generated,
                            s,
                            k0,
                            k0 + kc,
                            &mut panel[n * floats..(n + 1) * floats],
                        );
                        n += 1;
                    }
                    // what the next turn of these loops reads
                    let (next, k) = mine
                        .get(i + 1)
                        .map_or((first_of_mine, k0 + kc), |next| (*next, k0));
                    let end = matrix.cols.min(k + tokens.slice);
                    let prefetch_next = strips(next)
                        .map(|s| s.map_or(&[][..], |(matrix, s)| matrix.packed(s, k, end)));
                    let first = strips(*unit)[0].map_or(0, |s| s.1) * r;
                    let tiles = gemm::Tiles {
                        panel: panel.as_ptr(),
                        kc,
                        k0,
                        k: matrix.cols,
                        x: self.view.tiles.0,
                        m,
                        sums: sums.as_mut_ptr(),
                        y: then
                            .is_none()
                            .then(|| (self.view.buffers[out].0.wrapping_add(first), matrix.rows)),
                        rows: matrix.rows - first,
                        prefetch_next,
                    };
                    // SAFETY: one thread has these strips and so these columns of the output; its
                    // scratch holds the panel and the sums.
                    unsafe { (kernels[n - 1])(&tiles) };
                }
            }
            for (unit, sums) in mine.iter().zip(sums.chunks_exact(sums_len(m))) {
                if let Some(then) = then {
                    // SAFETY: one thread has these columns of the output, whose other inputs were
                    // finished before the last barrier.
                    unsafe { self.follow(then, matrix, *unit, sums, m) };
                }
                self.note_done(*unit);
            }
        });
    }

    /// Does what follows a product with the sums of one unit.
    ///
    /// # Safety
    /// As [`Part::run`]; the unit belongs to one of the *items*, and so do these columns of the
    /// output.
    unsafe fn follow(&self, then: Epilogue, matrix: &Matrix, unit: usize, sums: &[f32], m: usize) {
        let r = self.model.table.strip;
        let column = |slot: Slot, first: usize| self.view.buffers[slot].0.wrapping_add(first);
        // SAFETY: sums are `[m][strips][r]`, and columns end with the matrix's rows.
        unsafe {
            match then {
                Epilogue::Gate { act, out, .. } => {
                    let first = unit * r;
                    let n = r.min(matrix.rows - first);
                    let (a, b) = ((sums.as_ptr(), 2 * r), (sums.as_ptr().add(r), 2 * r));
                    (self.model.table.gate)(act)(&Operands {
                        a,
                        b,
                        y: (column(out, first), matrix.rows),
                        rows: m,
                        n,
                    });
                }
                Epilogue::Add { to, out } => {
                    let first = unit * STRIP_PAIR * r;
                    let n = (STRIP_PAIR * r).min(matrix.rows - first);
                    let width = STRIP_PAIR.min(matrix.strips() - unit * STRIP_PAIR) * r;
                    let (a, b) = (
                        (sums.as_ptr(), width),
                        (column(to, first).cast_const(), matrix.rows),
                    );
                    (self.model.table.add)(&Operands {
                        a,
                        b,
                        y: (column(out, first), matrix.rows),
                        rows: m,
                        n,
                    });
                }
            }
        }
    }
}
