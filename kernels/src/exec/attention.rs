//! Attention of an operation list: division of rows, heads and positions among threads.

use std::ops::Range;

use super::items::block_tokens;
use super::plan::Task;
use super::scratch::Scratch;
use super::section_part::SectionPart;
use super::sizes::{PIECE, piece_len};
use crate::op::{CacheLayer, Scores};
use crate::program::{Attend, Slot};
use octavo_simd::act::ACT_GROUP;
use octavo_simd::generic::attention::{
    self, Block, PAGE, Pages, QUERY_ROWS, Query, Slope, VisibleRange,
};
use octavo_simd::kv_layout::KvShape;
use octavo_simd::table::PromptAttention;
use std::sync::atomic::Ordering;

/// Some query rows of one KV head.
struct Group<'a> {
    cache: CacheLayer,
    kv: KvShape,
    head_kv: usize,
    table: &'a [u32],
    /// Pairs of a row of the step and a query head.
    rows: &'a [(usize, usize)],
    scores: Scores,
    /// The positions that each row of the step sees, if it sees some only.
    seen: Option<Slot>,
    /// Of all query heads.
    sinks: Option<&'a [f32]>,
    /// Positions to attend to.
    from: usize,
    to: usize,
}

/// Layout of query rows for a kernel that takes `size` of them at a time.
pub(super) struct Interleaved {
    pub(super) size: usize,
    pub(super) head_dim: usize,
    /// Multiplies the queries.
    pub(super) scale: f32,
}

/// Takes the rows just run (row of the step, head), their sums and their softmax states.
type Done<'a> = dyn FnMut(&[(usize, usize)], &[f32], &[(f32, f32)]) + 'a;

impl SectionPart<'_> {
    fn pages<'g>(&self, group: &Group<'g>) -> Pages<'g> {
        let pages = &self.kv[group.cache.group];
        let [k, v] = pages.bases(group.cache.layer, group.head_kv);
        Pages {
            table: group.table,
            k,
            v,
            head_dim: group.kv.head_dim,
        }
    }

    /// Positions that a row of the step sees.
    fn visible(&self, scores: Scores, row: usize) -> VisibleRange {
        let row = &self.rows[row];
        if scores.blocks {
            let [first, end] = row.block;
            return VisibleRange { first, end };
        }
        let Range { start, mut end } = scores.visible(row.pos, row.end);
        if scores.images {
            end = row.image_end;
        }
        VisibleRange { first: start, end }
    }

    /// Copies the queries of pairs of a row and a head to where a kernel reads them.
    ///
    /// # Safety
    /// They are finished.
    pub(super) unsafe fn interleave(
        &self,
        q: Slot,
        rows: &[(usize, usize)],
        how: Interleaved,
        to: &mut [f32],
    ) {
        let (size, d) = (how.size, how.head_dim);
        for (j, (row, head)) in rows.iter().enumerate() {
            // SAFETY: the caller's promise.
            let q = unsafe { self.row(q, *row, head * d..(head + 1) * d) };
            let to = to[j / size * d * size + j % size..].iter_mut();
            to.step_by(size)
                .zip(q)
                .for_each(|(to, x)| *to = x * how.scale);
        }
    }

    /// The positions that a row sees, if it sees some only.
    ///
    /// # Safety
    /// They are finished.
    unsafe fn chosen(&self, seen: Option<Slot>, row: usize) -> &[f32] {
        let Some(seen) = seen else {
            return &[];
        };
        let n = self.width(seen).min(self.rows[row].pos + 1);
        // SAFETY: the caller's promise.
        unsafe { self.row(seen, row, 0..n) }
    }

    /// Computes attention for `rows` and hands the results to `done`, some rows at a time.
    ///
    /// # Safety
    /// As [`SectionPart::run`]: the queries are finished.
    unsafe fn attend_all(&self, q: Slot, group: Group<'_>, done: &mut Done<'_>) {
        for rows in group.rows.chunks(QUERY_ROWS) {
            // SAFETY: some of the same rows; the scratch at this thread's number is its own.
            unsafe {
                let scratch = self.scratches.of(self.w.thread);
                let states = self.attend_together(q, &Group { rows, ..group }, scratch);
                done(rows, &scratch.out, &states[..rows.len()]);
            }
        }
    }

    /// Runs at most [`QUERY_ROWS`] rows; leaves their sums in the scratch, and returns their
    /// softmax states.
    ///
    /// # Safety
    /// As [`SectionPart::attend_all`]; the scratch is this thread's.
    unsafe fn attend_together(
        &self,
        q: Slot,
        group: &Group<'_>,
        scratch: &mut Scratch,
    ) -> [(f32, f32); QUERY_ROWS] {
        let (n, d) = (group.rows.len(), group.kv.head_dim);
        let stride = attention::padded(d);
        let mut states = [(0.0, 0.0); QUERY_ROWS];
        attention::start(&mut scratch.out[..n * stride], &mut states[..n]);
        let mut start = 0;
        for size in self.model.table.queries {
            // as many of the rest as this kernel takes
            let rows = start..start + (n - start) / size * size;
            start = rows.end;
            if rows.is_empty() {
                continue;
            }
            let mut visible = [VisibleRange { first: 0, end: 0 }; QUERY_ROWS];
            let mut chosen: [&[f32]; QUERY_ROWS] = [&[]; QUERY_ROWS];
            let mut slopes = [Slope {
                slope: 0.0,
                position: 0,
            }; QUERY_ROWS];
            for (j, (row, head)) in group.rows[rows.clone()].iter().enumerate() {
                visible[j] = self.visible(group.scores, *row);
                if let Some(alibi) = group.scores.alibi {
                    slopes[j] = Slope {
                        slope: alibi.slope(*head),
                        position: self.rows[*row].pos,
                    };
                }
                // SAFETY: the choice was finished before the last barrier.
                chosen[j] = unsafe { self.chosen(group.seen, *row) };
            }
            let layout = Interleaved {
                size: *size,
                head_dim: d,
                scale: group.scores.scale,
            };
            // SAFETY: the query buffer was finished before the last barrier.
            unsafe { self.interleave(q, &group.rows[rows.clone()], layout, &mut scratch.q) };
            let mut run = attention::QueryRows {
                pages: self.pages(group),
                q: scratch.q.as_ptr(),
                visible: &visible[..rows.len()],
                chosen: match group.seen {
                    Some(_) => &chosen[..rows.len()],
                    None => &[],
                },
                cap: group.scores.cap,
                slopes: match group.scores.alibi {
                    Some(_) => &slopes[..rows.len()],
                    None => &[],
                },
                first: group.from,
                scores: scratch.span.as_mut_ptr(),
                out: scratch.out[rows.start * stride..].as_mut_ptr(),
                state: &mut states[rows],
            };
            // SAFETY: the table covers all visible positions (`Program::rows`), the scratch holds
            // the rows, and pages written in this step were finished before the last barrier.
            unsafe {
                let kernels = (self.model.table.attention)(*size, group.kv.types);
                attention::run(kernels, &mut run, group.to);
            }
        }
        states
    }

    /// # Safety
    /// As [`SectionPart::run`]. *Items*: a block of rows and one KV head.
    pub(super) unsafe fn attend_prompt(&self, at: usize, attend: &Attend, sinks: Option<&[f32]>) {
        let &Attend {
            q,
            seen,
            cache,
            scores,
            out,
        } = attend;
        let kv = self.model.program.cache(cache);
        let (d, n_kv) = (kv.head_dim, kv.n_head_kv);
        let heads = self.width(q) / d / n_kv;
        let block_tokens = block_tokens(&self.model, heads);
        let blocks = self.rows.len().div_ceil(block_tokens);
        let mut rows = Vec::with_capacity(block_tokens * heads);
        self.take_items(at, 0, blocks * n_kv, |task| {
            // the last blocks see the most positions: start with them
            let (block, head_kv) = (blocks - 1 - task / n_kv, task % n_kv);
            let item = block * n_kv + head_kv;
            if self.is_done(item) {
                return;
            }
            let block = block * block_tokens..((block + 1) * block_tokens).min(self.rows.len());
            let mut first = block.start;
            while first < block.end {
                // rows of one sequence at a time
                let seq = self.rows[first].seq;
                let end = (first..block.end)
                    .find(|r| self.rows[*r].seq != seq)
                    .unwrap_or(block.end);
                rows.clear();
                rows.extend(
                    (first..end).flat_map(|r| (0..heads).map(move |h| (r, head_kv * heads + h))),
                );
                let table = &self.tables[seq][cache.group];
                let group = Group {
                    cache,
                    kv,
                    head_kv,
                    table,
                    rows: &rows,
                    scores,
                    seen,
                    sinks,
                    from: 0,
                    to: usize::MAX,
                };
                first = end;
                let blocks = self.model.prompt_attention;
                // scores that fall with distance, and those of chosen keys, are computed in floats
                let in_floats = scores.alibi.is_some() || seen.is_some();
                if let Some(kernels) = blocks.filter(|_| !in_floats) {
                    // SAFETY: one thread has these rows and heads.
                    unsafe { self.attend_blocks(kernels, (q, out), &group) };
                    continue;
                }
                // SAFETY: as above.
                unsafe {
                    self.attend_all(q, group, &mut |rows, sums, states| {
                        for (j, (row, head)) in rows.iter().enumerate() {
                            let to = self.row_mut(out, *row, head * d..(head + 1) * d);
                            let sums = &sums[j * attention::padded(d)..];
                            let (weight, total) =
                                attention::last_factors(states[j], sink_of(sinks, *head));
                            to.iter_mut()
                                .zip(sums)
                                .for_each(|(to, sum)| *to = sum * weight / total);
                        }
                    });
                }
            }
            self.note_done(item);
        });
    }

    /// Runs `group` in blocks of many rows and writes its results.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; this thread has these rows and heads of the output.
    unsafe fn attend_blocks(
        &self,
        kernels: &PromptAttention,
        (q, out): (Slot, Slot),
        group: &Group<'_>,
    ) {
        let d = group.kv.head_dim;
        for rows in group.rows.chunks(kernels.rows) {
            let query = |&(row, head): &(usize, usize)| {
                let part = head * d..(head + 1) * d;
                // SAFETY: the query buffer was finished before the last barrier, the output is the
                // caller's promise.
                let (q, out) =
                    unsafe { (self.row(q, row, part.clone()), self.row_mut(out, row, part)) };
                Query {
                    q: q.as_ptr(),
                    out: out.as_mut_ptr(),
                    visible: self.visible(group.scores, row),
                    sink: sink_of(group.sinks, head),
                }
            };
            let queries: Vec<Query> = rows.iter().map(query).collect();
            let block = Block {
                rows: &queries,
                scale: group.scores.scale,
                cap: group.scores.cap,
                pages: self.pages(group),
            };
            let types = group.kv.types;
            let pack = [(kernels.keys)(types.k), (kernels.values)(types.v)];
            // SAFETY: the table covers all visible positions (`Program::rows`), pages written in
            // this step were finished before the last barrier, and the scratch at this thread's
            // number is its own and has the room.
            unsafe {
                let scratch = self.scratches.of(self.w.thread);
                (kernels.attend)(&block, pack, scratch.attention.as_mut_ptr().cast());
            }
        }
    }

    /// Computes attention of generated tokens in pieces of [`PIECE`] positions, counted from
    /// position 0, one piece per thread; pieces wholly before a row's window are left out. The
    /// thread that finishes the last piece of a row and KV head joins them, and quantizes the
    /// result to integers if there is a place for these.
    ///
    /// # Safety
    /// As [`SectionPart::run`]. *Items*: a row, a KV head and a piece; the thread that finishes the
    /// last piece has the row's heads.
    pub(super) unsafe fn attend_pieces(&self, task: &Task, attend: &Attend, sinks: Option<&[f32]>) {
        let &Attend {
            q,
            seen,
            cache,
            scores,
            out,
        } = attend;
        let kv = self.model.program.cache(cache);
        let (n_kv, max_pieces) = (kv.n_head_kv, self.extent.pieces);
        let heads = self.width(q) / kv.head_dim / n_kv;
        let pieces_of = |row: usize| self.pieces(scores, row);
        let count = n_kv
            * (0..self.rows.len())
                .map(|row| pieces_of(row).len())
                .sum::<usize>();
        // the pieces of one row take equally long; those of several may not, and the fastest thread
        // takes more
        let fixed = if self.rows.len() == 1 { count } else { 0 };
        // a row, and the number of its items that came before it
        let (mut row, mut before) = (0, 0);
        self.take_items(task.op, fixed, count, |i| {
            while i - before >= n_kv * pieces_of(row).len() {
                before += n_kv * pieces_of(row).len();
                row += 1;
            }
            let pieces = pieces_of(row);
            let head_kv = (i - before) / pieces.len();
            let piece = pieces.start + (i - before) % pieces.len();
            let group = row * n_kv + head_kv;
            let item = group * max_pieces + piece;
            if !self.is_done(item) {
                let rows: Vec<(usize, usize)> =
                    (0..heads).map(|h| (row, head_kv * heads + h)).collect();
                let table = &self.tables[self.rows[row].seq][cache.group];
                let (from, to) = (piece * PIECE, (piece + 1) * PIECE);
                let of_piece = Group {
                    cache,
                    kv,
                    head_kv,
                    table,
                    rows: &rows,
                    scores,
                    seen,
                    sinks,
                    from,
                    to,
                };
                // SAFETY: one thread has this row, head and piece.
                unsafe { self.attend_piece(q, of_piece, piece) };
                self.note_done(item);
            }
            // acquires the pieces of the threads that have finished the others, and releases this
            // one to the thread that finishes the last
            let counter = &self.finished_pieces[row * self.model.most_heads_kv() + head_kv];
            // the first piece stands for those before the window as well: so a row has the same
            // number of pieces in all layers
            let stands_for = if piece == pieces.start { 1 + piece } else { 1 };
            let finished = counter.fetch_add(stands_for as u32, Ordering::AcqRel) as usize;
            if (finished + stands_for).is_multiple_of(pieces.end) {
                let groups = self.width(out) / n_kv / ACT_GROUP;
                // SAFETY: all pieces are complete, and no other thread has finished the last one.
                unsafe {
                    for head in head_kv * heads..(head_kv + 1) * heads {
                        let sink = sink_of(sinks, head);
                        self.merge_pieces((kv, heads), &pieces, sink, out, (row, head));
                    }
                    if let Some(codes) = task.codes {
                        self.quantize_groups(out, group * groups..(group + 1) * groups, codes);
                    }
                }
            }
        });
    }

    /// The pieces that contain any position that a row sees.
    fn pieces(&self, scores: Scores, row: usize) -> Range<usize> {
        let visible = self.visible(scores, row);
        visible.first / PIECE..visible.end.div_ceil(PIECE)
    }

    /// Computes one piece of attention.
    ///
    /// # Safety
    /// As [`SectionPart::run`]; one thread has this piece of the rows and heads of the group.
    unsafe fn attend_piece(&self, q: Slot, group: Group<'_>, piece: usize) {
        let (kv, heads) = (group.kv, group.rows.len());
        let d = kv.head_dim;
        // SAFETY: one thread has this piece, and so the place of its result.
        unsafe {
            self.attend_all(q, group, &mut |rows, sums, states| {
                for (j, (row, head)) in rows.iter().enumerate() {
                    let len = piece_len(d);
                    let to = self
                        .view
                        .pieces
                        .write(self.piece_at(kv, heads, (*row, *head), piece), len);
                    to[..d].copy_from_slice(&sums[j * attention::padded(d)..][..d]);
                    (to[len - 2], to[len - 1]) = states[j];
                }
            });
        }
    }

    /// Address of a piece's result, for a row and one of its query heads; `heads` of them share one
    /// KV head.
    fn piece_at(
        &self,
        kv: KvShape,
        heads: usize,
        (row, head): (usize, usize),
        piece: usize,
    ) -> usize {
        ((row * kv.n_head_kv * heads + head) * self.extent.pieces + piece) * piece_len(kv.head_dim)
    }

    /// Joins the pieces of a row and head.
    ///
    /// # Safety
    /// They are complete, and no other thread has this row and head of the output.
    unsafe fn merge_pieces(
        &self,
        (kv, heads): (KvShape, usize),
        pieces: &Range<usize>,
        sink: f32,
        out: Slot,
        (row, head): (usize, usize),
    ) {
        let d = kv.head_dim;
        // SAFETY: the pieces are complete, and this thread has the row and head.
        unsafe {
            let piece = |p| {
                self.view
                    .pieces
                    .read(self.piece_at(kv, heads, (row, head), p), piece_len(d))
            };
            let pieces: Vec<&[f32]> = pieces.clone().map(piece).collect();
            merge(
                &pieces,
                sink,
                self.row_mut(out, row, head * d..(head + 1) * d),
            );
        }
    }
}

/// The sink of a query head: minus infinity, which adds nothing, where there are none.
fn sink_of(sinks: Option<&[f32]>, head: usize) -> f32 {
    sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head])
}

/// Joins partial softmax sums, in the order of their positions, and adds the sink to their total.
fn merge(pieces: &[&[f32]], sink: f32, out: &mut [f32]) {
    let state = |p: &[f32]| (p[p.len() - 2], p[p.len() - 1]);
    let max = pieces.iter().map(|p| state(p).0).fold(sink, f32::max);
    let mut total = 0.0;
    out.fill(0.0);
    for p in pieces {
        let (m, sum) = state(p);
        let weight = (m - max).exp();
        total += sum * weight;
        out.iter_mut().zip(*p).for_each(|(o, x)| *o += x * weight);
    }
    total += (sink - max).exp();
    out.iter_mut().for_each(|o| *o /= total);
}

const _: () = assert!(PIECE.is_multiple_of(PAGE));
