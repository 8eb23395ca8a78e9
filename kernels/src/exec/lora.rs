//! Products of low-rank adapters. Threads divide the strips of each adapter's matrices; a strip is
//! multiplied by the rows that use the adapter, with the kernels of float weights whatever the
//! phase, and what is added to a row comes in order of the adapters. So a row has the same bits
//! whatever its neighbours use.

use std::ops::Range;
use std::sync::Arc;

use super::Executor;
use super::gemv::{PACKED, multiply_floats};
use super::rows::read_row;
use super::scratch::Scratch;
use super::section_part::SectionPart;
use super::sizes::STRIP_PAIR;
use crate::lora::{LoraInput, LoraPart, LoraSite};
use crate::matrix::Matrix;
use crate::op::RowSet;
use crate::program::{Slot, UsedAdapter};
use octavo_simd::table::{FloatKernels, Gemv};

/// Rows that a strip is multiplied by at a time: the scratch has room for their results.
const ROWS: usize = 8;

impl Executor {
    /// Adds the adapters of each matrix that the program has a place for, by number of the place.
    ///
    /// # Panics
    /// If their shapes do not fit the program, or a step has run already: a bug in the caller.
    #[must_use]
    pub fn with_lora(mut self, sites: Vec<LoraSite>) -> Executor {
        crate::lora::check(&self.model.program, &sites);
        let model = Arc::get_mut(&mut self.model);
        model.expect("no step holds the model yet").lora = sites;
        self
    }
}

/// Rows of a product that use one adapter, [`ROWS`] at a time.
struct Users<'a> {
    rows: &'a [(usize, f32)],
}

impl SectionPart<'_> {
    /// The adapters that row `r` of a slot uses.
    fn used(&self, slot: Slot, r: usize) -> impl Iterator<Item = &UsedAdapter> {
        let row = match self.model.program.slots[slot].rows {
            RowSet::Outputs => self.output_rows[r],
            RowSet::All | RowSet::Merged(_) => r,
        };
        let row = &self.frame.rows[row];
        let adapters = self.frame.adapters[row.seq].iter();
        adapters.filter(move |used| used.from <= row.pos)
    }

    /// The rows of a slot that use the adapter of a part, with their scales.
    fn users(&self, slot: Slot, part: &LoraPart) -> Vec<(usize, f32)> {
        let scale = |r: usize| {
            let mut used = self.used(slot, r);
            let used = used.find(|used| used.adapter == part.adapter)?;
            Some((r, used.scale * part.scale))
        };
        (0..self.n_rows(slot)).filter_map(scale).collect()
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of strips of the adapters' matrices, or of rows.
    pub(super) unsafe fn lora_down(
        &self,
        (x, ids): (Option<Slot>, Option<Slot>),
        site: usize,
        out: Slot,
    ) {
        let site = &self.model.lora[site];
        // SAFETY: the same shares of the same finished input.
        unsafe {
            match (x, ids) {
                (Some(x), None) => self.down(x, site, out),
                (Some(x), Some(ids)) => self.down_by_experts([x, ids], site, out),
                (None, _) => self.down_of_tokens(site, out),
            }
        }
    }

    /// Copies the rows of `A` of tokens; nothing is added to embedding inputs.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of rows.
    unsafe fn down_of_tokens(&self, site: &LoraSite, out: Slot) {
        for r in self.w.share(self.n_rows(out), 1) {
            for part in self.used(out, r).filter_map(|used| site.part(used.adapter)) {
                let LoraInput::Rows(table) = &part.a else {
                    continue;
                };
                // SAFETY: this row is of this member's share.
                let to = unsafe { self.row_mut(out, r, part.first..part.first + table.cols) };
                match self.frame.rows[r].embedding_input {
                    Some(_) => to.fill(0.0),
                    None => read_row(table, self.frame.rows[r].token as usize, to),
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of strips.
    unsafe fn down(&self, x: Slot, site: &LoraSite, out: Slot) {
        let mut before = 0;
        let strips = site.parts.iter().map(|part| strips_of(&part.a)).sum();
        let share = self.w.share(strips, 1);
        for part in &site.parts {
            let LoraInput::Matrix(a) = &part.a else {
                continue;
            };
            let (from, to) = (before, before + a.strips());
            before = to;
            let mine = share.start.clamp(from, to) - from..share.end.clamp(from, to) - from;
            if mine.is_empty() {
                continue;
            }
            let users = self.users(out, part);
            let users = Users { rows: &users };
            for strip in mine {
                let first = strip * a.strip_rows();
                let n = a.strip_rows().min(a.rows - first);
                let put = |r: usize, _: f32, values: &[f32]| {
                    let at = part.first + first;
                    // SAFETY: one thread has this strip, and so these values of every row.
                    unsafe { self.row_mut(out, r, at..at + n) }.copy_from_slice(&values[..n]);
                };
                let all = 0..a.cols;
                // SAFETY: the input is finished.
                let input = |r: usize| unsafe { self.row(x, r, all.clone()) }.as_ptr();
                // SAFETY: rows of the input are as wide as the matrix.
                unsafe { self.strips(a, strip..strip + 1, &users, &input, put) };
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of pairs of strips.
    pub(super) unsafe fn lora_up(
        &self,
        [y, h]: [Slot; 2],
        ids: Option<Slot>,
        site: usize,
        out: Slot,
    ) {
        let site = &self.model.lora[site];
        if let Some(ids) = ids {
            // SAFETY: the same shares of the same finished input.
            return unsafe { self.up_by_experts([y, h, ids], site, out) };
        }
        let (width, r) = (self.width(out), self.model.table.strip);
        let users: Vec<Vec<(usize, f32)>> = site
            .parts
            .iter()
            .map(|part| self.users(out, part))
            .collect();
        for pair in self.w.share(width.div_ceil(STRIP_PAIR * r), 1) {
            let columns = pair * STRIP_PAIR * r..width.min((pair + 1) * STRIP_PAIR * r);
            for row in 0..self.n_rows(out) {
                // SAFETY: one thread has these columns, and the input is finished.
                unsafe {
                    let from = self.row(y, row, columns.clone());
                    self.row_mut(out, row, columns.clone())
                        .copy_from_slice(from);
                }
            }
            let strips = pair * STRIP_PAIR..((pair + 1) * STRIP_PAIR).min(width.div_ceil(r));
            for (part, rows) in site.parts.iter().zip(&users) {
                let put = |row: usize, scale: f32, values: &[f32]| {
                    // SAFETY: one thread has these columns.
                    add(
                        unsafe { self.row_mut(out, row, columns.clone()) },
                        scale,
                        values,
                    );
                };
                let own = part.first..part.first + part.rank();
                // SAFETY: the input is finished.
                let input = |row: usize| unsafe { self.row(h, row, own.clone()) }.as_ptr();
                let users = Users { rows };
                // SAFETY: as many values of a row as the matrix has columns.
                unsafe { self.strips(&part.b, strips.clone(), &users, &input, put) };
            }
        }
    }

    /// Multiplies one or two strips of an adapter's matrix by rows of `input`, and hands the
    /// results for each row to `put`, with its scale: whole strips of them.
    ///
    /// # Safety
    /// `input` yields finished rows, as wide as the matrix; the scratch of this thread is not
    /// borrowed elsewhere.
    unsafe fn strips(
        &self,
        matrix: &Matrix,
        strips: Range<usize>,
        users: &Users<'_>,
        input: &dyn Fn(usize) -> *const f32,
        mut put: impl FnMut(usize, f32, &[f32]),
    ) {
        // SAFETY: the scratch at this thread's number is its own.
        let Scratch { strip, packed, .. } = unsafe { self.scratches.of(self.w.thread) };
        let width = strips.len() * matrix.strip_rows();
        let pair = matrix.packed_strips().expect(PACKED).pair(&strips, packed);
        let kernels = float_kernels(pair.gemv);
        for rows in users.rows.chunks(ROWS) {
            let inputs = rows.iter().map(|(row, _)| input(*row));
            let to = (strip.as_mut_ptr(), width);
            // SAFETY: strips are whole, their kernels are of this CPU, and the scratch has room for
            // the results of these rows.
            unsafe { multiply_floats(kernels, pair, matrix.cols, inputs, to) };
            for ((row, scale), values) in rows.iter().zip(strip.chunks_exact(width)) {
                put(*row, *scale, values);
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of the experts of rows.
    unsafe fn down_by_experts(&self, [x, ids]: [Slot; 2], site: &LoraSite, out: Slot) {
        let used = self.width(ids);
        let each = self.width(out) / used;
        for choice in self.w.share(self.n_rows(ids) * used, 1) {
            let (r, place) = (choice / used, choice % used);
            // SAFETY: it is finished.
            let expert = unsafe { self.row(ids, r, place..place + 1) }[0] as usize;
            for part in self.used(out, r).filter_map(|used| site.part(used.adapter)) {
                let LoraInput::Matrix(a) = &part.a else {
                    continue;
                };
                let from = match self.width(x) == a.cols {
                    true => 0,
                    false => place * a.cols,
                };
                // SAFETY: it is finished.
                let input = |r: usize| unsafe { self.row(x, r, from..from + a.cols) }.as_ptr();
                let first = place * each + part.first;
                // SAFETY: one thread has this choice; rows of the input are as wide as the matrix.
                unsafe {
                    let to = self.row_mut(out, r, first..first + part.rank());
                    self.expert(a, expert, (r, 1.0), &input, &mut |at, _, values| {
                        to[at..at + values.len()].copy_from_slice(values);
                    });
                }
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Shares* of the experts of rows.
    unsafe fn up_by_experts(&self, [y, h, ids]: [Slot; 3], site: &LoraSite, out: Slot) {
        let used = self.width(ids);
        let (n, each) = (self.width(out) / used, self.width(h) / used);
        for choice in self.w.share(self.n_rows(ids) * used, 1) {
            let (r, place) = (choice / used, choice % used);
            let columns = place * n..(place + 1) * n;
            // SAFETY: these values are finished, and one thread has this choice.
            let (expert, to) = unsafe {
                let to = self.row_mut(out, r, columns.clone());
                to.copy_from_slice(self.row(y, r, columns));
                (self.row(ids, r, place..place + 1)[0] as usize, to)
            };
            for adapter in self.used(out, r) {
                let Some(part) = site.part(adapter.adapter) else {
                    continue;
                };
                let first = place * each + part.first;
                let own = first..first + part.rank();
                // SAFETY: it is finished.
                let input = |r: usize| unsafe { self.row(h, r, own.clone()) }.as_ptr();
                let scale = adapter.scale * part.scale;
                // SAFETY: as many values as the matrix has columns.
                unsafe {
                    self.expert(
                        &part.b,
                        expert,
                        (r, scale),
                        &input,
                        &mut |at, scale, values| {
                            add(&mut to[at..at + values.len()], scale, values);
                        },
                    );
                }
            }
        }
    }

    /// Multiplies all strips of an expert by one row of `input`, and hands the results to `put`,
    /// with the first one's number among the expert's and the row's scale.
    ///
    /// # Safety
    /// As [`SectionPart::strips`].
    unsafe fn expert(
        &self,
        matrix: &Matrix,
        expert: usize,
        row: (usize, f32),
        input: &dyn Fn(usize) -> *const f32,
        put: &mut dyn FnMut(usize, f32, &[f32]),
    ) {
        let (strips, r) = (matrix.expert_strips(), matrix.strip_rows());
        for first in (0..strips).step_by(STRIP_PAIR) {
            let pair = first..strips.min(first + STRIP_PAIR);
            let n = (matrix.expert_rows() - first * r).min(pair.len() * r);
            let pair = expert * strips + pair.start..expert * strips + pair.end;
            let users = Users { rows: &[row] };
            let put = |_: usize, scale: f32, values: &[f32]| put(first * r, scale, &values[..n]);
            // SAFETY: the caller's promise.
            unsafe { self.strips(matrix, pair, &users, input, put) };
        }
    }
}

/// Strips of a matrix `A`; none of a table.
fn strips_of(a: &LoraInput) -> usize {
    match a {
        LoraInput::Matrix(a) => a.strips(),
        LoraInput::Rows(_) => 0,
    }
}

/// Adds values times a factor.
fn add(to: &mut [f32], scale: f32, values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += scale * value;
    }
}

fn float_kernels(gemv: &Gemv) -> &FloatKernels {
    match gemv {
        Gemv::Float(kernels) => kernels,
        Gemv::Codes(_) => unreachable!("`lora::check` refused them"),
    }
}
