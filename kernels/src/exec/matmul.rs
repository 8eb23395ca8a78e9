//! Products of an operation list: conversion of the input to the kernel's form, and division of
//! strips among threads.

use std::ops::Range;

use super::epilogue::Epilogue;
use super::plan::{Division, Task};
use super::scratch::Scratch;
use super::section_part::SectionPart;
use super::sizes::{STRIP_PAIR, UNITS, sums_len};
use crate::matrix::Matrix;
use crate::program::Slot;
use octavo_simd::act::{ACT_GROUP, Form};
use octavo_simd::generic::elementwise::Operands;
use octavo_simd::generic::gemm;
use octavo_simd::table::ActivationForm;

/// Bytes of activations that stay in the L2 cache while all weights are read: at most a quarter of
/// it (2 MiB on the Xeon with AMX where this was measured), since panels, sums and the weights
/// themselves want the rest.
const NEAR_BYTES: usize = 1 << 19;

/// Pairs of strips, whose sums are adjacent: neighbours, or one of the gate and one of the up
/// projection.
pub(super) struct StripPairs<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) up: Option<&'a Matrix>,
    /// Range of strips to multiply: all, or those of one expert.
    pub(super) strips: Range<usize>,
    /// Rows of these strips.
    pub(super) rows: usize,
}

impl<'a> StripPairs<'a> {
    fn count(&self) -> usize {
        if self.up.is_some() {
            self.strips.len()
        } else {
            self.strips.len().div_ceil(STRIP_PAIR)
        }
    }

    /// The strips of a pair, the last of which may lack its second: matrix and number.
    fn strips(&self, pair: usize) -> impl Iterator<Item = (&'a Matrix, usize)> {
        let (matrix, start, end) = (self.matrix, self.strips.start, self.strips.end);
        let [first, second] = match self.up {
            Some(up) => [(matrix, start + pair), (up, start + pair)],
            None => [0, 1].map(|i| (matrix, start + pair * STRIP_PAIR + i)),
        };
        [first, second]
            .into_iter()
            .filter(move |(_, strip)| *strip < end)
    }

    /// First of the rows that a pair has.
    pub(super) fn first_row(&self, pair: usize) -> usize {
        let strips = if self.up.is_some() { 1 } else { STRIP_PAIR };
        pair * strips * self.matrix.strip_rows()
    }

    /// Writes the panels of a pair one after the other, and returns how many there are.
    fn write_panels(&self, pair: usize, k: Range<usize>, out: &mut [f32]) -> usize {
        let form = self.matrix.prompt().0;
        let floats = form.floats(self.matrix.strip_rows(), k.len());
        let mut n = 0;
        for (matrix, strip) in self.strips(pair) {
            let out = &mut out[n * floats..(n + 1) * floats];
            matrix.panel(strip, k.start, k.end, out);
            n += 1;
        }
        n
    }

    /// The packed weights of a pair, k in `k0..k1`.
    fn packed(&self, pair: usize, k0: usize, k1: usize) -> [&'a [u8]; 2] {
        let mut packed = [&[][..]; 2];
        for (packed, (matrix, strip)) in packed.iter_mut().zip(self.strips(pair)) {
            *packed = matrix.packed(strip, k0, k1);
        }
        packed
    }
}

/// Activations in tiles that strips are multiplied by, and the destination of the results.
pub(super) struct Tokens {
    pub(super) x: *const f32,
    pub(super) m: usize,
    /// Address of the first token's results, and stride between tokens in floats. Without it
    /// results stay among the sums.
    pub(super) y: Option<(*mut f32, usize)>,
}

/// Pairs of strips that share each slice of activations, out of the `each` pairs of a thread: a
/// slice of many activations serves several pairs once it is cached.
pub(super) fn pairs_at_once(tokens: &ActivationForm, m: usize, cols: usize, each: usize) -> usize {
    let many = m * cols * tokens.bytes > NEAR_BYTES;
    if many && cols > tokens.slice {
        (each / 3).clamp(1, UNITS)
    } else {
        1
    }
}

/// A product of an operation list.
pub(super) struct Product<'a> {
    pub(super) task: &'a Task,
    pub(super) x: Slot,
    pub(super) matrix: &'a Matrix,
    pub(super) out: Slot,
    pub(super) then: Option<Epilogue>,
}

impl SectionPart<'_> {
    /// Converts the input of a product to the form that its kernel reads.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of groups or of tiles.
    pub(super) unsafe fn prepare(&self, form: Form, x: Slot, matrix: &Matrix, task: &Task) {
        // SAFETY: the same shares of the same finished input.
        unsafe {
            match form {
                Form::Codes => self.quantize(x, task),
                Form::Floats => {}
                Form::Tiles(_) => self.tile(x, matrix.prompt().0),
            }
        }
    }

    /// Computes a product and its epilogue.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Items*: strips.
    pub(super) unsafe fn matmul(&self, product: &Product<'_>) {
        let m = self.n_rows(product.x);
        if m == 0 {
            return;
        }
        // SAFETY: the same items of the same finished input.
        unsafe {
            match product.matrix.reads(self.extent.phase) {
                Form::Codes | Form::Floats => self.gemv(product, m),
                Form::Tiles(_) => self.gemm(product, m),
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of groups: of whole rows where the operation before
    /// divides rows.
    pub(super) unsafe fn quantize(&self, x: Slot, task: &Task) {
        let Some(codes) = task.codes else {
            unreachable!("the plan gives it a place")
        };
        let (m, groups) = (self.n_rows(x), self.width(x) / ACT_GROUP);
        let share = match task.division {
            Division::Rows { grain } => {
                let rows = self.w.share(m, grain);
                rows.start * groups..rows.end * groups
            }
            // parts of rows, so that a single row keeps all threads busy
            _ => self.w.share(m * groups, 8),
        };
        // SAFETY: one thread has these groups, of inputs that are finished.
        unsafe { self.quantize_groups(x, share, codes) }
    }

    /// Quantizes groups of a slot's values, counted over all rows, to integers at one of the places
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
    /// As [`SectionPart::run`]. *Shares* of whole tiles.
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
                let (at, floats) = (tokens.floats(t, k), tokens.floats(width, k));
                let tile = self.view.tiles.write(at, floats);
                (tokens.pack)(self.view.buffers[x].0, m, k, t, width, tile.as_mut_ptr());
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Items*: pairs of strips, several of which are taken at a time;
    /// each is finished by itself.
    unsafe fn gemm(&self, product: &Product<'_>, m: usize) {
        let matrix = product.matrix;
        let (activations, _) = matrix.prompt();
        let pairs = StripPairs {
            matrix,
            up: match product.then {
                Some(Epilogue::Gate { up, .. }) => Some(&self.model.matrices[up]),
                _ => None,
            },
            strips: 0..matrix.strips(),
            rows: matrix.rows,
        };
        let each = pairs.count() / self.w.size;
        let at_once = pairs_at_once(activations, m, matrix.cols, each);
        let turns = pairs.count().div_ceil(at_once);
        self.take_items(product.task.op, 0, turns, |turn| {
            let turn = turn * at_once..((turn + 1) * at_once).min(pairs.count());
            // finished items are never written again: other threads may be reading them
            let mut mine = [0; UNITS];
            let mut n_mine = 0;
            for pair in turn.filter(|pair| !self.is_done(*pair)) {
                mine[n_mine] = pair;
                n_mine += 1;
            }
            if n_mine > 0 {
                // SAFETY: one thread has these pairs.
                unsafe { self.gemm_turn(product, &pairs, &mine[..n_mine], m) };
            }
        });
    }

    /// Multiplies some pairs by all tokens, slice by slice, and applies the epilogue.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the pairs, at least one, are of one of the *items*.
    unsafe fn gemm_turn(
        &self,
        product: &Product<'_>,
        pairs: &StripPairs<'_>,
        turn: &[usize],
        m: usize,
    ) {
        let &Product {
            matrix, out, then, ..
        } = product;
        // SAFETY: the scratch at this thread's number is its own.
        let Scratch { panel, sums, .. } = unsafe { self.scratches.of(self.w.thread) };
        let tokens = Tokens {
            x: self.view.tiles.0,
            m,
            y: then
                .is_none()
                .then_some((self.view.buffers[out].0, matrix.rows)),
        };
        // SAFETY: one thread has these strips and so these columns of the output; tiles are
        // finished.
        unsafe { self.multiply_turn(pairs, turn, &tokens, panel, sums) };
        for (pair, sums) in turn.iter().zip(sums.chunks_exact(sums_len(m))) {
            if let Some(then) = then {
                // SAFETY: one thread has these columns of the output, whose other inputs were
                // finished before the last barrier.
                unsafe { self.follow(then, matrix, *pair, sums, m) };
            }
            self.note_done(*pair);
        }
    }

    /// Multiplies some pairs of strips by tokens, slice by slice. The sums of pairs are `sums_len`
    /// apart.
    ///
    /// # Safety
    /// The tokens are finished and in the form of the matrix; the results are the calling thread's.
    pub(super) unsafe fn multiply_turn(
        &self,
        pairs: &StripPairs<'_>,
        turn: &[usize],
        tokens: &Tokens,
        panel: &mut [f32],
        sums: &mut [f32],
    ) {
        let &Tokens { x, m, y } = tokens;
        let cols = pairs.matrix.cols;
        let (activations, kernels) = pairs.matrix.prompt();
        let offset = pairs.matrix.panel_offset();
        for k0 in (0..cols).step_by(activations.slice) {
            let kc = activations.slice.min(cols - k0);
            for (i, (pair, sums)) in turn
                .iter()
                .zip(sums.chunks_exact_mut(sums_len(m)))
                .enumerate()
            {
                let n_strips = pairs.write_panels(*pair, k0..k0 + kc, panel);
                // data that the next iteration of these loops reads
                let (next, k) = match turn.get(i + 1) {
                    Some(next) => (*next, k0),
                    None => (turn[0], k0 + kc),
                };
                let end = cols.min(k + activations.slice);
                let first = pairs.first_row(*pair);
                let tiles = gemm::Tiles {
                    panel: panel.as_ptr(),
                    kc,
                    k0,
                    k: cols,
                    offset,
                    x,
                    m,
                    sums: sums.as_mut_ptr(),
                    y: y.map(|(y, stride)| (y.wrapping_add(first), stride)),
                    rows: pairs.rows - first,
                    prefetch_next: pairs.packed(next, k, end),
                };
                // SAFETY: the caller's tokens and results; panel and sums are this thread's, and
                // have room.
                unsafe { (kernels[n_strips - 1])(&tiles) };
            }
        }
    }

    /// Applies a product's epilogue to the sums of one pair of strips.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the pair belongs to one of the *items*, and so do these columns of
    /// the output.
    unsafe fn follow(&self, then: Epilogue, matrix: &Matrix, pair: usize, sums: &[f32], m: usize) {
        let r = self.model.table.strip;
        let column = |slot: Slot, first: usize| self.view.buffers[slot].0.wrapping_add(first);
        // SAFETY: sums are `[m][strips][r]`, and columns end with the matrix's rows.
        unsafe {
            match then {
                Epilogue::Gate { act, out, .. } => {
                    let first = pair * r;
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
                    let first = pair * STRIP_PAIR * r;
                    let n = (STRIP_PAIR * r).min(matrix.rows - first);
                    let width = STRIP_PAIR.min(matrix.strips() - pair * STRIP_PAIR) * r;
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
