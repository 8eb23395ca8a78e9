//! Choice of the keys that attention sees, by an indexer's scores.

use super::attention::Interleaved;
use super::plan::{Stage, Task};
use super::section_part::SectionPart;
use super::sizes::PIECE;
use crate::op::{CacheLayer, Op};
use crate::program::{Instruction, Slot};
use octavo_simd::generic::attention::{
    self, Pages, QUERY_ROWS, QueryRows, SPAN_POSITIONS, VisibleRange,
};
use std::sync::atomic::Ordering;

/// A choice of keys: the operands of `Op::SelectKeys`, and the slot of its result.
#[derive(Clone, Copy)]
pub(super) struct Select {
    pub(super) q: Slot,
    pub(super) weights: Slot,
    pub(super) cache: CacheLayer,
    pub(super) n: usize,
    pub(super) out: Slot,
}

impl Select {
    pub(super) fn of(instruction: &Instruction) -> Select {
        match instruction.op {
            Op::SelectKeys {
                q,
                weights,
                cache,
                n,
            } => Select {
                q,
                weights,
                cache,
                n,
                out: instruction.result(),
            },
            _ => unreachable!("the caller has seen which operation it is"),
        }
    }
}

impl SectionPart<'_> {
    /// Chooses the keys of all rows.
    ///
    /// # Safety
    /// As [`SectionPart::run`].
    pub(super) unsafe fn select(&self, task: &Task, select: &Select) {
        // SAFETY: passed on.
        unsafe {
            match task.stage {
                Stage::Pieces => self.select_in_pieces(task, select),
                _ => self.select_keys(task.op, select),
            }
        }
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Items*: a row.
    unsafe fn select_keys(&self, at: usize, select: &Select) {
        self.take_items(at, 0, self.rows.len(), |row| {
            if self.is_done(row) {
                return;
            }
            let (end, mut best) = (self.rows[row].pos + 1, Best::new(select.n));
            if end > select.n {
                let mut scores = [0.0; PIECE];
                for first in (0..end).step_by(PIECE) {
                    let scores = &mut scores[..PIECE.min(end - first)];
                    // SAFETY: the queries and the cached keys are finished.
                    unsafe { self.score_keys(select, row, first, scores) };
                    best.add(first, scores);
                }
            }
            // SAFETY: one thread has this row of the output.
            unsafe { self.write_choice(select, row, best) };
            self.note_done(row);
        });
    }

    /// Scores the keys of generated tokens in the same pieces as attention reads them. The thread
    /// that finishes the last piece of a row chooses.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Items*: a row and a piece; the thread that finishes the last piece
    /// has the row.
    unsafe fn select_in_pieces(&self, task: &Task, select: &Select) {
        let max_pieces = self.extent.pieces;
        let pieces_of = |row: usize| (self.rows[row].pos + 1).div_ceil(PIECE);
        let items: Vec<(usize, usize)> = (0..self.rows.len())
            .flat_map(|row| (0..pieces_of(row)).map(move |piece| (row, piece)))
            .collect();
        let fixed = if self.rows.len() == 1 { items.len() } else { 0 };
        self.take_items(task.op, fixed, items.len(), |i| {
            let (row, piece) = items[i];
            let item = row * max_pieces + piece;
            let end = self.rows[row].pos + 1;
            let piece_of = |piece: usize| (piece * PIECE, PIECE.min(end - piece * PIECE));
            if !self.is_done(item) {
                let (first, len) = piece_of(piece);
                // SAFETY: one thread has this piece, and so the place of its scores; what they are
                // computed from is finished.
                unsafe {
                    let scores = self.view.pieces.write(item * PIECE, len);
                    if end > select.n {
                        self.score_keys(select, row, first, scores);
                    }
                }
                self.note_done(item);
            }
            // acquires the pieces of other threads, and releases this one to the last of them; see
            // `attend_pieces`, which counts on from here
            let counter = &self.finished_pieces[row * self.model.most_heads_kv()];
            let finished = counter.fetch_add(1, Ordering::AcqRel) as usize + 1;
            if finished.is_multiple_of(pieces_of(row)) {
                let mut best = Best::new(select.n);
                // SAFETY: all pieces are complete, and no other thread has finished the last one.
                unsafe {
                    for piece in 0..pieces_of(row) {
                        let (first, len) = piece_of(piece);
                        let at = (row * max_pieces + piece) * PIECE;
                        if end > select.n {
                            best.add(first, self.view.pieces.read(at, len));
                        }
                    }
                    self.write_choice(select, row, best);
                }
            }
        });
    }

    /// Computes the scores of some keys for a row: of those from position `first` on, the first of
    /// a span.
    ///
    /// # Safety
    /// The row's queries and weights, and the cached keys, are finished.
    unsafe fn score_keys(&self, select: &Select, row: usize, first: usize, scores: &mut [f32]) {
        let kv = self.model.program.cache(select.cache);
        let heads = self.width(select.weights);
        let rows: Vec<(usize, usize)> = (0..heads).map(|head| (row, head)).collect();
        let end = first + scores.len();
        let visible = [VisibleRange { first: 0, end }; QUERY_ROWS];
        let (pages, seq) = (&self.kv[select.cache.group], self.rows[row].seq);
        let [k, v] = pages.bases(select.cache.layer, 0);
        scores.fill(0.0);
        // SAFETY: the inputs are finished, the table covers the positions (`Program::rows`), and
        // the scratch at this thread's number is its own and has the room.
        unsafe {
            let weights = self.row(select.weights, row, 0..heads);
            let scratch = self.scratches.of(self.w.thread);
            for together in rows.chunks(QUERY_ROWS) {
                let mut start = 0;
                for size in self.model.table.queries {
                    let some = start..start + (together.len() - start) / size * size;
                    start = some.end;
                    if some.is_empty() {
                        continue;
                    }
                    let (some, n) = (&together[some.clone()], some.len());
                    let q = Interleaved {
                        size: *size,
                        head_dim: kv.head_dim,
                        scale: 1.0,
                    };
                    self.interleave(select.q, some, q, &mut scratch.q);
                    let mut run = QueryRows {
                        pages: Pages {
                            table: &self.tables[seq][select.cache.group],
                            k,
                            v,
                            head_dim: kv.head_dim,
                        },
                        q: scratch.q.as_ptr(),
                        visible: &visible[..n],
                        chosen: &[],
                        cap: None,
                        slopes: &[],
                        first,
                        scores: scratch.span.as_mut_ptr(),
                        out: scratch.out.as_mut_ptr(),
                        state: &mut [],
                    };
                    let kernels = (self.model.table.attention)(*size, kv.types);
                    for (i, to) in scores.chunks_mut(SPAN_POSITIONS).enumerate() {
                        attention::score_span(kernels, &mut run, first + i * SPAN_POSITIONS, end);
                        for (j, (_, head)) in some.iter().enumerate() {
                            let of = &scratch.span[j * SPAN_POSITIONS..][..to.len()];
                            let add =
                                |(to, x): (&mut f32, &f32)| *to += weights[*head] * x.max(0.0);
                            to.iter_mut().zip(of).for_each(add);
                        }
                    }
                }
            }
        }
    }

    /// Writes the chosen positions of a row; without any, it sees all up to its own.
    ///
    /// # Safety
    /// One thread has this row of the output.
    unsafe fn write_choice(&self, select: &Select, row: usize, best: Best) {
        // SAFETY: the caller's promise.
        let to = unsafe { self.row_mut(select.out, row, 0..select.n) };
        let last = self.rows[row].pos;
        match last < select.n {
            true => (0..).zip(to).for_each(|(i, to)| *to = last.min(i) as f32),
            false => (to.iter_mut().zip(best.ascending())).for_each(|(to, at)| *to = at as f32),
        }
    }
}

/// The best scores so far, each with its position.
///
/// Which of equal ones are kept at the edge is llama.cpp's choice, which is that of GNU's
/// `std::partial_sort`: the first scores become a heap with the lowest on top, and a later score
/// takes the place of the top if it is higher. Where scores are zero because no query points in
/// the direction of a key, many can be equal.
struct Best {
    n: usize,
    heap: Vec<(f32, usize)>,
}

impl Best {
    fn new(n: usize) -> Best {
        Best {
            n,
            heap: Vec::with_capacity(n),
        }
    }

    /// Adds the scores of the positions from `first` on.
    fn add(&mut self, first: usize, scores: &[f32]) {
        for (i, score) in scores.iter().enumerate() {
            let candidate = (*score, first + i);
            if self.heap.len() == self.n {
                if *score > self.heap[0].0 {
                    self.sink(0, candidate);
                }
                continue;
            }
            self.heap.push(candidate);
            if self.heap.len() == self.n {
                for parent in (0..self.n / 2).rev() {
                    self.sink(parent, self.heap[parent]);
                }
            }
        }
    }

    /// Moves the lowest scores below `top` up, down to a leaf, and lets the candidate rise from
    /// there to its place.
    fn sink(&mut self, top: usize, candidate: (f32, usize)) {
        let mut hole = top;
        while 2 * hole + 1 < self.n {
            let (left, right) = (2 * hole + 1, 2 * hole + 2);
            // of equal scores, and where one is no number, the right one
            let lower = match right >= self.n || self.heap[right].0 > self.heap[left].0 {
                true => left,
                false => right,
            };
            self.heap[hole] = self.heap[lower];
            hole = lower;
        }
        while hole > top && self.heap[(hole - 1) / 2].0 > candidate.0 {
            self.heap[hole] = self.heap[(hole - 1) / 2];
            hole = (hole - 1) / 2;
        }
        self.heap[hole] = candidate;
    }

    /// The positions in ascending order.
    fn ascending(self) -> Vec<usize> {
        let mut positions: Vec<usize> = self.heap.into_iter().map(|(_, at)| at).collect();
        positions.sort_unstable();
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses, with scores in pieces of every length.
    fn best(scores: &[f32], n: usize) -> Vec<usize> {
        let in_pieces = |len: usize| {
            let mut best = Best::new(n);
            let pieces = scores.chunks(len).enumerate();
            pieces.for_each(|(i, piece)| best.add(i * len, piece));
            best.ascending()
        };
        let whole = in_pieces(scores.len());
        (1..scores.len()).for_each(|len| assert_eq!(in_pieces(len), whole, "in {len}s"));
        whole
    }

    #[test]
    fn the_highest_are_chosen_whatever_their_order() {
        let scores: Vec<f32> = (0..50u8).map(|i| f32::from((i * 3 + 7) % 50)).collect();
        for n in [1, 2, 3, 7, 16, 49, 50] {
            let is_high = |at: &usize| scores[*at] >= (50 - n) as f32;
            let expected: Vec<usize> = (0..50).filter(is_high).collect();
            assert_eq!(best(&scores, n), expected, "{n}");
        }
    }

    /// The choices that a program in C++ made with `std::partial_sort`.
    #[test]
    fn of_equal_ones_partial_sort_s_are_chosen() {
        const LAST: [f32; 17] = [
            -1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, -1.0, 5.0, 0.0, 0.0, 6.0,
        ];
        let cases: [(&[f32], usize, &[usize]); 6] = [
            (
                &[1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 2.0, 0.0, 0.0],
                5,
                &[0, 1, 3, 5, 7],
            ),
            (
                &[0.0, 5.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0, 0.0, 5.0],
                5,
                &[1, 3, 4, 6, 9],
            ),
            (&LAST, 3, &[7, 13, 16]),
            (&LAST, 4, &[1, 7, 13, 16]),
            (&LAST, 5, &[3, 5, 7, 13, 16]),
            (&LAST, 6, &[1, 3, 6, 7, 13, 16]),
        ];
        for (scores, n, expected) in cases {
            assert_eq!(best(scores, n), expected, "{scores:?}, {n}");
        }
    }
}
