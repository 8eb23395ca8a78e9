//! Products of generated tokens: pairs of strips are divided among threads, and each goes through
//! all rows.

use std::ops::Range;

use super::matmul::Product;
use super::scratch::{Scratch, Tiled};
use super::{ACT_GROUP, Epilogue, GENERATED_ROWS, Gemv, Matrix, Operands, Part, STRIP_PAIR, Slot};
use crate::generic::batch;
use crate::table::FloatKernels;

/// Results in rows: where the first one's begin, and floats from there to the next row's.
type Results = (*mut f32, usize);

/// Some of a product's rows.
#[derive(Clone, Copy)]
struct Rows<'a> {
    range: &'a Range<usize>,
    /// How many the product has.
    all: usize,
}

impl Part<'_> {
    /// # Safety
    /// As [`Part::run`]. *Items*: pairs of strips.
    pub(super) unsafe fn gemv(&self, product: &Product<'_>, m: usize) {
        // Each thread has one long stream. The last strips go to whoever is first: no two CPUs are
        // equally fast.
        let strips = product.matrix.strips();
        let pairs = strips.div_ceil(STRIP_PAIR);
        let fixed = if self.w.size == 1 {
            pairs
        } else {
            strips * 15 / 16 / STRIP_PAIR
        };
        // SAFETY: the scratch at this thread's number is its own, and nobody has borrowed it.
        unsafe { self.scratches.of(self.w.thread) }.tiled.forget();
        self.take_items(product.task.op, fixed, pairs, |pair| {
            if self.is_done(pair) {
                return;
            }
            let first = pair * STRIP_PAIR;
            let strips = first..(first + STRIP_PAIR).min(strips);
            for row in (0..m).step_by(GENERATED_ROWS) {
                let rows = row..m.min(row + GENERATED_ROWS);
                // SAFETY: one thread has these strips.
                unsafe { self.gemv_strips(product, strips.clone(), rows, m) };
            }
            self.note_done(pair);
        });
    }

    /// One or two strips times some of so many rows, and what follows.
    ///
    /// # Safety
    /// As [`Part::run`]; the strips are those of one of the *items*.
    unsafe fn gemv_strips(
        &self,
        product: &Product<'_>,
        strips: Range<usize>,
        rows: Range<usize>,
        all: usize,
    ) {
        let &Product {
            task,
            matrix,
            out,
            then,
            ..
        } = product;
        let (table, m) = (self.model.table, rows.len());
        let (first, width) = (strips.start * table.strip, strips.len() * table.strip);
        let n = width.min(matrix.rows - first);
        let at = rows.start * matrix.rows + first;
        let place = |slot: Slot| self.view.buffers[slot].0.wrapping_add(at);
        // SAFETY: the scratch at this thread's number is its own, and nothing below borrows it
        // again.
        let Scratch { strip, tiled, .. } = unsafe { self.scratches.of(self.w.thread) };
        // both from one pointer: to borrow the scratch again would end what came of the first
        // borrow
        let near = strip.as_mut_ptr();
        let other = near.wrapping_add(m * width);
        // SAFETY: one thread has these strips, so `n` columns of the output; strips that are not
        // full, and what is not the output yet, go through this thread's scratch.
        unsafe {
            let mut multiply = |matrix, to| {
                let rows = Rows { range: &rows, all };
                self.multiply(product, matrix, &strips, rows, tiled, to);
            };
            let Some(then) = then else {
                if n == width {
                    multiply(matrix, (place(out), matrix.rows));
                } else {
                    multiply(matrix, (near, width));
                    for row in 0..m {
                        let to = place(out).add(row * matrix.rows);
                        std::ptr::copy_nonoverlapping(near.add(row * width), to, n);
                    }
                }
                return;
            };
            multiply(matrix, (near, width));
            let (f, b) = match then {
                Epilogue::Gate { up, act, .. } => {
                    multiply(&self.model.matrices[up], (other, width));
                    ((table.gate)(act), (other.cast_const(), width))
                }
                Epilogue::Add { to, .. } => (table.add, (place(to).cast_const(), matrix.rows)),
            };
            f(&Operands {
                a: (near, width),
                b,
                y: (place(then.out()), matrix.rows),
                rows: m,
                n,
            });
            if let Some(codes) = task.codes {
                for row in 0..m {
                    // whole groups, or the plan would not have asked for them
                    let first = (at + row * matrix.rows) / ACT_GROUP;
                    self.quantize_groups(then.out(), first..first + n / ACT_GROUP, codes);
                }
            }
        }
    }

    /// One or two strips of a matrix times some rows of a product's input, whole strips of results.
    ///
    /// # Safety
    /// As [`Part::run`]; the results are this thread's.
    unsafe fn multiply(
        &self,
        product: &Product<'_>,
        matrix: &Matrix,
        strips: &Range<usize>,
        Rows { range: rows, all }: Rows<'_>,
        tiled: &mut Tiled,
        to: Results,
    ) {
        let (r, cols) = (self.model.table.strip, matrix.cols);
        let groups = cols / ACT_GROUP;
        let codes = |row| self.view.codes[product.task.reads_codes].at_group(row * groups);
        let (first, m) = (strips.start, rows.len());
        let weights = matrix.strip(first);
        let is_pair = strips.len() == batch::STRIPS;
        // SAFETY: kernels are of this CPU; strips are whole, and the input is finished.
        unsafe {
            match matrix.gemv().expect("`reads` says that it is packed") {
                Gemv::Codes(kernels) if m > 1 && is_pair => {
                    let strip_bytes = matrix.strip_bytes();
                    let by_vectors = || {
                        let (weights, x) = ((weights, strip_bytes, r), codes(rows.start));
                        batch::strips(&kernels.batch, weights, cols, (&x, m), to);
                    };
                    let Some(unit) = kernels.tiled.filter(|unit| m >= unit.fewest) else {
                        return by_vectors();
                    };
                    tiled.faster(&unit, (&codes(0), all, cols), |tiles| {
                        let Some(x) = tiles else {
                            return by_vectors();
                        };
                        let x = x.wrapping_add((unit.bytes)(rows.start, cols));
                        (unit.strips)((weights, strip_bytes), cols, (x, m), to);
                    });
                }
                Gemv::Codes(kernels) => {
                    for (i, row) in rows.clone().enumerate() {
                        let kernel = kernels.row[strips.len() - 1];
                        kernel(weights, cols, &codes(row), (to.0.add(i * to.1), to.1));
                    }
                }
                Gemv::Float(kernels) => {
                    for s in strips.clone() {
                        let (strip, to) = (matrix.strip(s), (to.0.add((s - first) * r), to.1));
                        self.float_strip(&kernels, strip, (product.x, rows), to);
                    }
                }
            }
        }
    }
    /// A strip of float weights times some rows of a slot.
    ///
    /// # Safety
    /// As [`Part::multiply`]; the strip is as wide as the slot.
    unsafe fn float_strip(
        &self,
        kernels: &FloatKernels,
        strip: *const u8,
        (x, rows): (Slot, &Range<usize>),
        to: Results,
    ) {
        let cols = self.width(x);
        let mut row = rows.start;
        while row < rows.end {
            let (kernel, n) = if rows.end - row >= kernels.at_once {
                (kernels.rows, kernels.at_once)
            } else {
                (kernels.row, 1)
            };
            assert!(row + n <= self.n_rows(x));
            // SAFETY: the input is finished and has these rows, and the results are the caller's.
            unsafe {
                let values = self.view.buffers[x].read(row * cols, n * cols);
                let to = (to.0.add((row - rows.start) * to.1), to.1);
                kernel(strip, cols, (values.as_ptr(), cols), to);
            }
            row += n;
        }
    }
}
