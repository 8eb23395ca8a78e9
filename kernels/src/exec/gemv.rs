//! Products of generated tokens: pairs of strips are divided among threads, and each is multiplied
//! by all rows.

use std::ops::Range;

use super::epilogue::Epilogue;
use super::matmul::Product;
use super::scratch::{Scratch, Tiled};
use super::section_part::SectionPart;
use super::sizes::{GENERATED_ROWS, STRIP_PAIR};
use crate::program::Slot;
use crate::strips::{StripPair, Strips};
use octavo_simd::act::{ACT_GROUP, ActRow};
use octavo_simd::generic::batch;
use octavo_simd::generic::elementwise::Operands;
use octavo_simd::table::{CodeKernels, FloatKernels, Gemv};

/// Panic message where packed strips are missing.
pub(super) const PACKED: &str = "a task reads codes or floats of packed matrices only";

/// Results in rows: address of the first, and stride between rows in floats.
type Results = (*mut f32, usize);

/// Parameters of a product by strips that are the same for all of them, looked up once.
struct ByStrips<'a> {
    product: &'a Product<'a>,
    weights: Strips<'a>,
    /// The other matrix of [`Epilogue::Gate`].
    up: Option<Strips<'a>>,
    /// Rows of the product.
    m: usize,
    /// Outputs of a row, and inputs.
    width: usize,
    cols: usize,
}

impl SectionPart<'_> {
    /// # Safety
    /// As [`SectionPart::run`]. *Items*: pairs of strips.
    pub(super) unsafe fn gemv(&self, product: &Product<'_>, m: usize) {
        // Each thread has one long stream. The last strips go to the first thread that is free: no
        // two CPUs are equally fast.
        let strips = product.matrix.strips();
        let pairs = strips.div_ceil(STRIP_PAIR);
        let fixed = if self.w.size == 1 {
            pairs
        } else {
            strips * 15 / 16 / STRIP_PAIR
        };
        let packed = |matrix: usize| self.model.matrices[matrix].packed_strips().expect(PACKED);
        let by_strips = ByStrips {
            product,
            weights: product.matrix.packed_strips().expect(PACKED),
            up: match product.then {
                Some(Epilogue::Gate { up, .. }) => Some(packed(up)),
                Some(Epilogue::Add { .. }) | None => None,
            },
            m,
            width: product.matrix.rows,
            cols: product.matrix.cols,
        };
        // SAFETY: the scratch at this thread's number is its own, and it is not borrowed elsewhere.
        unsafe { self.scratches.of(self.w.thread) }.tiled.forget();
        self.take_items(product.task.op, fixed, pairs, |pair| {
            if self.is_done(pair) {
                return;
            }
            let first = pair * STRIP_PAIR;
            let strips = first..(first + STRIP_PAIR).min(strips);
            let mut row = 0;
            while row < m {
                let rows = row..m.min(row + GENERATED_ROWS);
                row = rows.end;
                // SAFETY: one thread has these strips.
                unsafe { self.gemv_strips(&by_strips, &strips, rows) };
            }
            self.note_done(pair);
        });
    }

    /// Multiplies one or two strips by some rows, and applies the epilogue.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the strips are those of one of the *items*.
    unsafe fn gemv_strips(&self, by: &ByStrips<'_>, strips: &Range<usize>, rows: Range<usize>) {
        let &Product {
            task, out, then, ..
        } = by.product;
        let m = rows.len();
        let r = self.model.table.strip;
        let (first, width) = (strips.start * r, strips.len() * r);
        let n = width.min(by.width - first);
        let at = rows.start * by.width + first;
        let place = |slot: Slot| self.view.buffers[slot].0.wrapping_add(at);
        // SAFETY: the scratch at this thread's number is its own, and nothing below borrows it
        // again.
        let scratch = unsafe { self.scratches.of(self.w.thread) };
        let Scratch {
            strip,
            tiled,
            packed,
            ..
        } = scratch;
        // both from one pointer: borrowing the scratch again would invalidate the first borrow
        let near = strip.as_mut_ptr();
        let other = near.wrapping_add(m * width);
        // SAFETY: one thread has these strips, so `n` columns of the output; partial strips, and
        // results before the epilogue, go through this thread's scratch.
        unsafe {
            let pair = by.weights.pair(strips, packed);
            let Some(then) = then else {
                if n == width {
                    self.multiply(by, pair, &rows, tiled, (place(out), by.width));
                } else {
                    self.multiply(by, pair, &rows, tiled, (near, width));
                    for row in 0..m {
                        let to = place(out).add(row * by.width);
                        std::ptr::copy_nonoverlapping(near.add(row * width), to, n);
                    }
                }
                return;
            };
            self.multiply(by, pair, &rows, tiled, (near, width));
            let (f, b) = match then {
                Epilogue::Gate { act, .. } => {
                    let up = by.up.as_ref().expect("a gate has two matrices");
                    let pair = up.pair(strips, packed);
                    self.multiply(by, pair, &rows, tiled, (other, width));
                    let gate = self.model.table.gate;
                    (gate(act), (other.cast_const(), width))
                }
                Epilogue::Add { to, .. } => {
                    let add = self.model.table.add;
                    (add, (place(to).cast_const(), by.width))
                }
            };
            f(&Operands {
                a: (near, width),
                b,
                y: (place(then.out()), by.width),
                rows: m,
                n,
            });
            if let Some(codes) = task.codes {
                for row in 0..m {
                    // whole groups, or the plan would not have asked for integers
                    let first = (at + row * by.width) / ACT_GROUP;
                    self.quantize_groups(then.out(), first..first + n / ACT_GROUP, codes);
                }
            }
        }
    }

    /// Integers of some rows of a product's input, from `row` on.
    fn codes(&self, by: &ByStrips<'_>, row: usize) -> ActRow {
        self.view.codes[by.product.task.reads_codes].at_group(row * (by.cols / ACT_GROUP))
    }

    /// Multiplies one or two strips of a matrix by some rows of a product's input; results are
    /// whole strips.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the results are this thread's.
    unsafe fn multiply(
        &self,
        by: &ByStrips<'_>,
        pair: StripPair<'_>,
        rows: &Range<usize>,
        tiled: &mut Tiled,
        to: Results,
    ) {
        // SAFETY: kernels are of this CPU; strips are whole, and the input is finished.
        unsafe {
            match pair.gemv {
                Gemv::Codes(kernels) if rows.len() > 1 && pair.count == batch::STRIPS => {
                    self.multiply_rows(by, kernels, pair, rows, tiled, to);
                }
                Gemv::Codes(kernels) => {
                    for row in rows.clone() {
                        let to = to.0.add((row - rows.start) * to.1);
                        let x = self.codes(by, row);
                        kernels.row[pair.count - 1](pair.at, by.cols, &x, (to, 0));
                    }
                }
                Gemv::Float(kernels) => {
                    self.float_strips(kernels, pair, (by.product.x, rows), to);
                }
            }
        }
    }

    /// Multiplies a pair of strips by several rows of a product's input, with vectors or the matrix
    /// unit.
    ///
    /// # Safety
    /// As [`SectionPart::multiply`].
    #[inline(never)] // what one row does is short, and stays so
    unsafe fn multiply_rows(
        &self,
        by: &ByStrips<'_>,
        kernels: &CodeKernels,
        pair: StripPair<'_>,
        rows: &Range<usize>,
        tiled: &mut Tiled,
        to: Results,
    ) {
        let m = rows.len();
        // SAFETY: as the caller's.
        unsafe {
            let by_vectors = || {
                let x = self.codes(by, rows.start);
                let strips = (pair.at, pair.bytes, pair.r);
                batch::strips(&kernels.batch, strips, by.cols, (&x, m), to);
            };
            let Some(unit) = kernels.tiled.filter(|unit| m >= unit.fewest) else {
                return by_vectors();
            };
            tiled.faster(&unit, (&self.codes(by, 0), by.m, by.cols), |tiles| {
                let Some(x) = tiles else {
                    return by_vectors();
                };
                let x = x.wrapping_add((unit.bytes)(rows.start, by.cols));
                (unit.strips)((pair.at, pair.bytes), by.cols, (x, m), to);
            });
        }
    }

    /// Multiplies one or two strips of float weights by some rows of a slot.
    ///
    /// # Safety
    /// As [`SectionPart::multiply`]; the strips are as wide as the slot.
    unsafe fn float_strips(
        &self,
        kernels: &FloatKernels,
        pair: StripPair<'_>,
        (x, rows): (Slot, &Range<usize>),
        to: Results,
    ) {
        let cols = self.width(x);
        assert!(rows.end <= self.n_rows(x));
        // SAFETY: the input is finished and has these rows, and the results are the caller's.
        unsafe {
            let input = |row: usize| self.view.buffers[x].read(row * cols, cols).as_ptr();
            multiply_floats(kernels, pair, cols, rows.clone().map(input), to);
        }
    }
}

/// Multiplies one or two strips of float weights by rows of `cols` activations.
///
/// # Safety
/// The kernels are of this CPU, strips are whole, rows are finished; `to` has room for the results,
/// which are the caller's.
pub(super) unsafe fn multiply_floats(
    kernels: &FloatKernels,
    pair: StripPair<'_>,
    cols: usize,
    mut rows: impl ExactSizeIterator<Item = *const f32>,
    (to, stride): Results,
) {
    let mut done = 0;
    // SAFETY: passed on.
    unsafe {
        while rows.len() > 1 {
            let mut x = [std::ptr::null(); GENERATED_ROWS];
            let mut n = 0;
            for (x, row) in x.iter_mut().zip(&mut rows) {
                *x = row;
                n += 1;
            }
            let to = to.add(done * stride);
            kernels.rows[pair.count - 1](pair.at, cols, &x[..n], (to, stride));
            done += n;
        }
        if let Some(x) = rows.next() {
            kernels.row[pair.count - 1](pair.at, cols, x, to.add(done * stride));
        }
    }
}
