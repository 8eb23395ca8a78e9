//! Mixtures of experts: routing of rows, products with the chosen experts, and combination of their
//! results.
//!
//! Each expert of a row is a *choice*, numbered row by row. Choices are sorted by expert first, by
//! every thread for itself: that takes less time than to wait for each other. Then threads take
//! pairs of strips of the chosen experts only, so that weights of the others are not read. All rows
//! of an expert go through the kernels that [`Op::MatMul`](super::Op::MatMul) has for their phase,
//! which give a row the same bits whatever other rows there are.

mod choosing;

use super::arena::Codes;
use super::gemv::PACKED;
use super::gemv::multiply_floats;
use super::grouping::{Grouping, Run};
use super::matmul::{StripPairs, Tokens, pairs_at_once};
use super::plan::Task;
use super::scratch::{EXPERT_ROWS, Scratch};
use super::section_part::SectionPart;
use super::sizes::{STRIP_PAIR, UNITS, sums_len};
use crate::matrix::Matrix;
use crate::memory::Floats;
use crate::program::Slot;
use crate::strips::StripPair;
use octavo_simd::act::{ACT_GROUP, ActRow, Form};
use octavo_simd::generic::{batch, gemm};
use octavo_simd::table::{CodeKernels, FloatKernels, Gemv};

/// A product with experts of an operation list.
pub(super) struct ExpertProduct<'a> {
    pub(super) task: &'a Task,
    pub(super) x: Slot,
    pub(super) ids: Slot,
    pub(super) matrix: &'a Matrix,
    pub(super) out: Slot,
}

/// Destination of results before they are copied to their rows: whole strips of `width` floats a
/// row.
#[derive(Clone, Copy)]
struct Near {
    at: *mut f32,
    width: usize,
}

/// Scratch of a pair of strips: for whole strips of results, for weights packed from rows of the
/// file, and for rows of activations.
struct Rooms<'a> {
    strip: &'a mut Floats,
    packed: &'a mut Floats,
    codes: &'a mut Codes,
}

impl SectionPart<'_> {
    /// Converts the input of a product with experts to the form that its kernel reads.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of groups or of tiles.
    pub(super) unsafe fn prepare_experts(&self, form: Form, product: &ExpertProduct<'_>) {
        // SAFETY: the same shares of the same finished input.
        unsafe {
            match form {
                Form::Codes => self.quantize(product.x, product.task),
                Form::Floats => {}
                Form::Tiles(_) => self.tile_by_expert(product),
            }
        }
    }

    /// A product with experts.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Items*: pairs of strips for a choice; those of all choices of an
    /// expert are taken together.
    pub(super) unsafe fn expert_matmul(&self, product: &ExpertProduct<'_>) {
        if self.n_rows(product.x) == 0 {
            return;
        }
        // SAFETY: the same items of the same finished input.
        unsafe {
            match product.matrix.reads(self.extent.phase) {
                Form::Codes | Form::Floats => self.expert_gemv(product),
                Form::Tiles(_) => self.expert_gemm(product),
            }
        }
    }

    /// Sorts the choices of all rows by expert: the same in every thread.
    ///
    /// # Safety
    /// As [`SectionPart::run`].
    unsafe fn sort(&self, product: &ExpertProduct<'_>, tile: usize, grouping: &mut Grouping) {
        let ids = product.ids;
        let n = self.n_rows(ids) * self.width(ids);
        // SAFETY: they are finished, and the buffer holds `n` values.
        let ids = unsafe { self.view.buffers[ids].read(0, n) };
        // no more rows than the sums have room for: where an expert is chosen once a row, that is
        // all of its rows
        let most = self.extent.most_rows().max(1);
        grouping.sort(ids, product.matrix.experts(), most, tile);
    }

    /// The row of the input, `cols` values wide, that a choice is multiplied with.
    fn input_of(&self, product: &ExpertProduct<'_>, choice: u32) -> usize {
        if self.width(product.x) == product.matrix.cols {
            choice as usize / self.width(product.ids)
        } else {
            choice as usize
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of whole tiles.
    unsafe fn tile_by_expert(&self, product: &ExpertProduct<'_>) {
        let tokens = product.matrix.prompt().0;
        let (k, nt) = (product.matrix.cols, tokens.tile);
        // SAFETY: the scratch at this thread's number is its own, and it is not borrowed elsewhere.
        let Scratch { grouping, rows, .. } = unsafe { self.scratches.of(self.w.thread) };
        // SAFETY: as the caller's.
        unsafe { self.sort(product, nt, grouping) };
        let tiles = |run: &Run| run.len.div_ceil(nt);
        let share = self.w.share(grouping.runs.iter().map(tiles).sum(), 1);
        let mut before = 0;
        for run in &grouping.runs {
            let (from, to) = (before, before + tiles(run));
            before = to;
            for t in share.start.clamp(from, to)..share.end.clamp(from, to) {
                let t = (t - from) * nt;
                let width = if tokens.narrow {
                    gemm::tile_width(run.len - t, nt)
                } else {
                    nt
                };
                let there = width.min(run.len - t);
                let choices = &grouping.choices[run.first + t..][..there];
                for (to, choice) in rows.chunks_exact_mut(k).zip(choices) {
                    let at = self.input_of(product, *choice) * k;
                    // SAFETY: the input is finished and has this row.
                    to.copy_from_slice(unsafe { self.view.buffers[product.x].read(at, k) });
                }
                // SAFETY: one thread has this tile, whose place is reserved: tiles before it are
                // full. Its rows are in this thread's scratch.
                unsafe {
                    let at = tokens.floats(run.tiled + t, k);
                    let tile = self.view.tiles.write(at, tokens.floats(width, k));
                    (tokens.pack)(rows.as_ptr(), there, k, 0, width, tile.as_mut_ptr());
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::expert_matmul`].
    unsafe fn expert_gemm(&self, product: &ExpertProduct<'_>) {
        let matrix = product.matrix;
        let tokens = matrix.prompt().0;
        // SAFETY: the scratch at this thread's number is its own, and it is not borrowed elsewhere.
        let scratch = unsafe { self.scratches.of(self.w.thread) };
        let Scratch {
            grouping,
            panel,
            sums,
            ..
        } = scratch;
        // SAFETY: as the caller's.
        unsafe { self.sort(product, tokens.tile, grouping) };
        let runs = &grouping.runs;
        let n_pairs = matrix.expert_strips().div_ceil(STRIP_PAIR);
        let longest = runs.iter().map(|run| run.len).max().unwrap_or(0);
        let each = runs.len() * n_pairs / self.w.size;
        let at_once = pairs_at_once(tokens, longest, matrix.cols, each);
        let turns = n_pairs.div_ceil(at_once);
        self.take_items(product.task.op, 0, runs.len() * turns, |unit| {
            let (run, first) = (&runs[unit / turns], unit % turns * at_once);
            let choices = &grouping.choices[run.first..][..run.len];
            let item = |choice: u32, pair: usize| choice as usize * n_pairs + pair;
            // finished items are never written again: other threads may be reading them
            let (mut mine, mut n_mine) = ([0; UNITS], 0);
            for pair in first..n_pairs.min(first + at_once) {
                if choices
                    .iter()
                    .any(|choice| !self.is_done(item(*choice, pair)))
                {
                    mine[n_mine] = pair;
                    n_mine += 1;
                }
            }
            if n_mine == 0 {
                return;
            }
            let strips = matrix.expert_strips();
            let pairs = StripPairs {
                matrix,
                up: None,
                strips: run.expert * strips..(run.expert + 1) * strips,
                rows: matrix.expert_rows(),
            };
            let tiled = tokens.floats(run.tiled, matrix.cols);
            let tokens = Tokens {
                x: self.view.tiles.0.wrapping_add(tiled),
                m: run.len,
                y: None,
            };
            // SAFETY: tiles are finished; the sums are this thread's, with room for as many rows as
            // a run has.
            unsafe { self.multiply_turn(&pairs, &mine[..n_mine], &tokens, panel, sums) };
            for (pair, sums) in mine[..n_mine]
                .iter()
                .zip(sums.chunks_exact(sums_len(run.len)))
            {
                let columns = Columns::of(matrix, *pair);
                for (choice, sums) in choices.iter().zip(sums.chunks_exact(columns.width)) {
                    if self.is_done(item(*choice, *pair)) {
                        continue;
                    }
                    // SAFETY: one thread has these columns of the choice.
                    unsafe { self.put(product, *choice, &columns, sums.as_ptr()) };
                    self.note_done(item(*choice, *pair));
                }
            }
        });
    }

    /// # Safety
    /// As [`SectionPart::expert_matmul`].
    unsafe fn expert_gemv(&self, product: &ExpertProduct<'_>) {
        // SAFETY: the scratch at this thread's number is its own, and it is not borrowed elsewhere.
        let scratch = unsafe { self.scratches.of(self.w.thread) };
        let Scratch {
            grouping,
            strip,
            packed,
            codes,
            ..
        } = scratch;
        let rooms = &mut Rooms {
            strip,
            packed,
            codes,
        };
        // SAFETY: as the caller's.
        unsafe { self.sort(product, 1, grouping) };
        let Grouping {
            choices,
            runs,
            mine,
            ..
        } = grouping;
        let pairs = product.matrix.expert_strips().div_ceil(STRIP_PAIR);
        let units = runs.len() * pairs;
        // as in `SectionPart::gemv`, each thread has one long stream, and the last strips go to the
        // first thread that is free; but rows make some experts take longer than others
        let fixed = match (self.w.size, self.n_rows(product.x)) {
            (1, _) => units,
            (_, 1) => units * 15 / 16,
            _ => 0,
        };
        self.take_items(product.task.op, fixed, units, |unit| {
            let (run, pair) = (&runs[unit / pairs], unit % pairs);
            let item = |choice: u32| choice as usize * pairs + pair;
            mine.clear();
            let all = choices[run.first..][..run.len].iter().copied();
            mine.extend(all.filter(|choice| !self.is_done(item(*choice))));
            for choices in mine.chunks(EXPERT_ROWS) {
                // SAFETY: one thread has this pair of strips for these choices.
                unsafe { self.expert_pair(product, run.expert, pair, choices, rooms) };
            }
            for choice in mine.iter() {
                self.note_done(item(*choice));
            }
        });
    }

    /// Multiplies one or two strips of an expert by the rows of some choices, no more than
    /// [`EXPERT_ROWS`].
    ///
    /// # Safety
    /// As [`SectionPart::run`]; the strips and choices are those of *items* of the calling thread.
    unsafe fn expert_pair(
        &self,
        product: &ExpertProduct<'_>,
        expert: usize,
        pair: usize,
        choices: &[u32],
        rooms: &mut Rooms<'_>,
    ) {
        let Rooms {
            strip,
            packed,
            codes,
        } = rooms;
        let matrix = product.matrix;
        let columns = Columns::of(matrix, pair);
        let first = expert * matrix.expert_strips() + pair * STRIP_PAIR;
        let strips = first..first + columns.width / matrix.strip_rows();
        let near = Near {
            at: strip.as_mut_ptr(),
            width: columns.width,
        };
        // SAFETY: kernels are of this CPU, strips are whole, and the input is finished. The scratch
        // has room for whole strips of these rows' results.
        unsafe {
            let pair = matrix.packed_strips().expect(PACKED).pair(&strips, packed);
            match pair.gemv {
                Gemv::Codes(kernels) => {
                    self.expert_codes(product, (pair, kernels), choices, near, codes);
                }
                Gemv::Float(kernels) => {
                    self.expert_floats(product, (pair, kernels), choices, near);
                }
            }
            for (i, choice) in choices.iter().enumerate() {
                self.put(product, *choice, &columns, near.at.add(i * near.width));
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::expert_pair`]; `near` has room for these strips' results.
    unsafe fn expert_codes(
        &self,
        product: &ExpertProduct<'_>,
        (strips, kernels): (StripPair<'_>, &CodeKernels),
        choices: &[u32],
        near: Near,
        codes: &mut Codes,
    ) {
        let matrix = product.matrix;
        let (cols, groups) = (matrix.cols, matrix.cols / ACT_GROUP);
        let input = |choice: u32| -> ActRow {
            let row = self.input_of(product, choice);
            self.view.codes[product.task.reads_codes].at_group(row * groups)
        };
        // SAFETY: the input is finished; copies of rows are in this thread's scratch, which has
        // room for all of them.
        unsafe {
            if choices.len() > 1 && strips.count == batch::STRIPS {
                let rows = codes.view();
                for (i, choice) in choices.iter().enumerate() {
                    rows.at_group(i * groups).copy_from(&input(*choice), groups);
                }
                let weights = (strips.at, strips.bytes, strips.r);
                let (x, to) = ((&rows, choices.len()), (near.at, near.width));
                return batch::strips(&kernels.batch, weights, cols, x, to);
            }
            for (i, choice) in choices.iter().enumerate() {
                let to = near.at.add(i * near.width);
                kernels.row[strips.count - 1](strips.at, cols, &input(*choice), (to, 0));
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::expert_codes`].
    unsafe fn expert_floats(
        &self,
        product: &ExpertProduct<'_>,
        (strips, kernels): (StripPair<'_>, &FloatKernels),
        choices: &[u32],
        near: Near,
    ) {
        let (matrix, x) = (product.matrix, self.view.buffers[product.x]);
        let cols = matrix.cols;
        // SAFETY: the input is finished and has these rows; strips are whole, and their results
        // have room.
        unsafe {
            let input = |choice: &u32| {
                let row = self.input_of(product, *choice);
                x.read(row * cols, cols).as_ptr()
            };
            let to = (near.at, near.width);
            multiply_floats(kernels, strips, cols, choices.iter().map(input), to);
        }
    }

    /// Copies a pair's results to their destination.
    ///
    /// # Safety
    /// These columns of the choice are the calling thread's, and `from` has as many values.
    unsafe fn put(
        &self,
        product: &ExpertProduct<'_>,
        choice: u32,
        columns: &Columns,
        from: *const f32,
    ) {
        let n = product.matrix.expert_rows();
        let at = choice as usize * n + columns.first;
        assert!(at + columns.n <= self.n_rows(product.out) * self.width(product.out));
        // SAFETY: the output has these columns, which are the caller's.
        unsafe {
            let to = self.view.buffers[product.out].0.add(at);
            std::ptr::copy_nonoverlapping(from, to, columns.n);
        }
    }
}

/// The results of a pair of strips of an expert.
struct Columns {
    first: usize,
    /// Number of columns, and of those of whole strips.
    n: usize,
    width: usize,
}

impl Columns {
    fn of(matrix: &Matrix, pair: usize) -> Columns {
        let (r, first_strip) = (matrix.strip_rows(), pair * STRIP_PAIR);
        let first = first_strip * r;
        let width = STRIP_PAIR.min(matrix.expert_strips() - first_strip) * r;
        Columns {
            first,
            n: width.min(matrix.expert_rows() - first),
            width,
        }
    }
}
