//! Attention of a prompt in 16-bit integers: twice the multiply-adds per instruction of f32, and
//! three times with Winograd's products.
//!
//! ```text
//! for every 128 positions                       K and V pages become panels, shared by all rows
//!   scores  = Q K^T                             integers, times a key's and a query's scale
//!   softmax of every row, running               f32
//!   weights                                     times the values' scales, to integers
//!   sums   += P V                               integers, times the weights' scale
//! ```
//! Panels have two 16-bit integers in every lane (see [`dots`](crate::generic::int16::dots)), and
//! their rows the same two:
//! ```text
//! keys    [128 / R vectors of positions][head_dim / 2][R]    values 2 i and 2 i + 1 of a key
//! values  [head_dim / R vectors][64][R]                      of every 2 R positions i and i + R
//! ```
//! Queries, keys and values have one scale each, a head of a token; weights have one for a row and
//! span. No sum leaves 32 bits: lengths of queries and keys are at most `LENGTH`, values at most
//! `LARGEST`, and the weights of a row sum up to at most `TOTAL`.
//!
//! A row's result does not depend on its neighbours: positions it does not see, beyond its own or
//! before its window, have weight zero, and spans of 128 are counted from position 0. Positions
//! that no row sees are not read.

mod packing;
mod products;
mod weighing;

use super::{
    Block, MAX_HEAD_DIM, PAGE, PackSpan, Pages, SPAN_POSITIONS as SPAN, Stored, VisibleRange,
    largest_score, last_factors, weights_below,
};
use crate::generic::gemm::tile_width;
use crate::kv_layout::{KvShape, KvType};
use crate::simd::Simd;
use weighing::ABREAST;

/// Largest integer: differences of two fit 16 bits.
const LARGEST: f32 = 16_383.0;

/// Longest vector of integers, before they are rounded: `(LENGTH + sqrt(MAX_HEAD_DIM) / 2)^2` is
/// below 2^31, and so is a product of two, by Cauchy and Schwarz.
const LENGTH: f32 = 46_300.0;

/// Largest sum of a row's weights in a span before they are rounded, which adds half for each:
/// `(TOTAL + SPAN / 2) LARGEST` is below 2^31.
const TOTAL: f32 = 131_000.0;

const _: () = {
    let longest = LENGTH as i64 + 16;
    assert!(MAX_HEAD_DIM <= 1024 && longest * longest < 1 << 31);
    assert!((TOTAL as i64 + SPAN as i64 / 2) * (LARGEST as i64) < 1 << 31);
};

/// Weights below that, whose scale would have no inverse, are negligible beside the row's largest.
const LEAST_WEIGHT: f32 = 1e-34;

/// Query rows of a block, at most: keys and values are quantized once for all of them.
pub const ROWS: usize = 256;

/// Rows of a block, and those by which the last tile may exceed it.
const ROOM: usize = ROWS + 16;

/// Whether this supports such heads: whole vectors, and whole pairs of pairs, of keys and values
/// that the cache has rounded already. A cache in f32 requires the accuracy of f32.
pub fn takes(kv: &KvShape) -> bool {
    !kv.types.has(KvType::F32) && kv.head_dim.is_multiple_of(16)
}

/// Bytes of scratch for a head of `d`.
pub const fn scratch_bytes(d: usize) -> usize {
    Parts::layout(std::ptr::null_mut(), d).1
}

/// The parts of the scratch.
#[derive(Clone, Copy)]
struct Parts {
    /// Values of a head.
    d: usize,
    /// `[ROOM][d / 2]`
    q: *mut i32,
    /// Scales of the rows' scores, and their products of pairs of pairs.
    q_scales: *mut f32,
    q_products: *mut i32,
    /// See the head of this module.
    k: *mut f32,
    /// Scales of every position, and products of its pairs of pairs.
    k_scales: *mut f32,
    k_products: *mut f32,
    v: *mut f32,
    v_scales: *mut f32,
    v_inverses: *mut f32,
    /// `[d][most groups]`
    v_products: *mut f32,
    /// `[ROOM][SPAN]`
    scores: *mut f32,
    /// `[ROOM][SPAN / 2]`
    weights: *mut i32,
    w_products: *mut i32,
    /// Factors of the rows' sums so far, and of their integers.
    corrections: *mut f32,
    w_scales: *mut f32,
    /// `[ROOM][d]`
    sums: *mut f32,
}

/// Most groups of `4 R` positions in a span.
const MAX_GROUPS: usize = SPAN / 32;

impl Parts {
    /// The parts from `at` on, and their bytes.
    const fn layout(at: *mut u8, d: usize) -> (Parts, usize) {
        let mut words = 0;
        macro_rules! part {
            ($n:expr) => {{
                let part = at.cast::<f32>().wrapping_add(words);
                // whole cache lines
                words += ($n).next_multiple_of(16);
                part
            }};
        }
        let parts = Parts {
            d,
            q: part!(ROOM * d / 2).cast(),
            q_scales: part!(ROOM),
            q_products: part!(ROOM).cast(),
            k: part!(SPAN * d / 2),
            k_scales: part!(SPAN),
            k_products: part!(SPAN),
            v: part!(SPAN * d / 2),
            v_scales: part!(SPAN),
            v_inverses: part!(SPAN),
            v_products: part!(MAX_GROUPS * d),
            scores: part!(ROOM * SPAN),
            weights: part!(ROOM * SPAN / 2).cast(),
            w_products: part!(ROOM).cast(),
            corrections: part!(ROOM),
            w_scales: part!(ROOM),
            sums: part!(ROOM * d),
        };
        (parts, 4 * words)
    }
}

/// Pages to prefetch.
struct Soon<'a> {
    pages: &'a Pages<'a>,
    /// Indices of the sequence's pages.
    numbers: std::ops::Range<usize>,
    /// Bytes of a page of keys, and of one of values.
    bytes: [usize; 2],
    /// Bytes of the first of the pages that were prefetched already.
    asked: usize,
    /// Cache lines prefetched at a time: few, since many would hold up all other loads.
    lines: usize,
}

impl<'a> Soon<'a> {
    /// The first span of some positions, requested in `times` parts.
    #[inline(always)]
    fn new(pages: &'a Pages<'a>, positions: std::ops::Range<usize>, times: usize) -> Soon<'a> {
        let end = positions.end.min(positions.start + SPAN);
        let bytes = [pages.k, pages.v].map(|base| pages.head_dim * base.row_bytes);
        Soon {
            pages,
            numbers: positions.start / PAGE..end.div_ceil(PAGE),
            bytes,
            asked: 0,
            lines: (SPAN / PAGE * bytes[0].max(bytes[1]) / 64).div_ceil(times),
        }
    }

    /// Prefetches the next lines of keys and of values.
    ///
    /// # Safety
    /// Of the instruction set only: these are hints.
    #[inline(always)]
    unsafe fn ask<S: Simd>(&mut self) {
        for _ in 0..self.lines {
            if self.numbers.is_empty() {
                return;
            }
            let page = self.numbers.start;
            let starts = [self.pages.keys(page), self.pages.values(page)];
            for (start, bytes) in starts.into_iter().zip(self.bytes) {
                if self.asked < bytes {
                    // SAFETY: the caller's promise.
                    unsafe { S::prefetch_far(start.wrapping_add(self.asked)) }
                }
            }
            self.asked += 64;
            if self.asked >= self.bytes[0].max(self.bytes[1]) {
                self.asked = 0;
                self.numbers.start += 1;
            }
        }
    }
}

/// Rows that are multiplied by panels together.
#[derive(Clone, Copy)]
struct Tile {
    /// Number of rows, one of the kernels' widths; some may be beyond the last.
    width: usize,
    /// Positions of the span that any of them sees.
    visible: VisibleRange,
}

/// Whether products are Winograd's on this CPU: panels and tiles then hold the data that these
/// need.
#[inline(always)]
fn has_winograd<S: Simd>() -> bool {
    S::WINOGRAD && S::prefers_winograd()
}

/// Computes attention and writes the results, tiles of `NT` rows at a time.
///
/// # Safety
/// As the fields of [`Block`] say; `scratch` is [`scratch_bytes`], at a cache line; `pack` are
/// [`pack_keys`] and [`pack_values`], of the pages' types and this instruction set.
#[inline(always)]
pub unsafe fn attend<S: Simd, const NT: usize>(
    a: &Block<'_>,
    pack: [PackSpan; 2],
    scratch: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if has_winograd::<S>() {
            attend_by::<S, NT, true>(a, pack, scratch);
        } else {
            attend_by::<S, NT, false>(a, pack, scratch);
        }
    }
}

/// See [`PackSpan`]: keys.
///
/// # Safety
/// The pages of the visible positions are there; `scratch` is [`scratch_bytes`], at a cache line.
#[inline(always)]
pub unsafe fn pack_keys<S: Simd, K: Stored>(
    pages: &Pages<'_>,
    at: usize,
    visible: VisibleRange,
    scratch: *mut u8,
) {
    let (parts, _) = Parts::layout(scratch, pages.head_dim);
    // SAFETY: the caller's promise.
    unsafe {
        if has_winograd::<S>() {
            parts.pack_span_keys::<S, K, true>(pages, at, visible);
        } else {
            parts.pack_span_keys::<S, K, false>(pages, at, visible);
        }
    }
}

/// See [`PackSpan`]: values.
///
/// # Safety
/// As [`pack_keys`].
#[inline(always)]
pub unsafe fn pack_values<S: Simd, V: Stored>(
    pages: &Pages<'_>,
    at: usize,
    visible: VisibleRange,
    scratch: *mut u8,
) {
    let (parts, _) = Parts::layout(scratch, pages.head_dim);
    // SAFETY: the caller's promise.
    unsafe {
        if has_winograd::<S>() {
            parts.pack_span_values::<S, V, true>(pages, at, visible);
        } else {
            parts.pack_span_values::<S, V, false>(pages, at, visible);
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn attend_by<S: Simd, const NT: usize, const WINOGRAD: bool>(
    a: &Block<'_>,
    pack: [PackSpan; 2],
    scratch: *mut u8,
) {
    let d = a.pages.head_dim;
    let (parts, _) = Parts::layout(scratch, d);
    let mut states = [(f32::NEG_INFINITY, 0f32); ROWS];
    let none = Tile {
        width: 0,
        visible: VisibleRange { first: 0, end: 0 },
    };
    let mut tiles = [none; ROWS];
    let tiles = &mut tiles[..a.rows.len().div_ceil(NT)];
    let all = VisibleRange::of_all(a.rows.iter().map(|row| row.visible));
    // SAFETY: every part of the scratch has the room its loops use; pages of all visible positions
    // are in the table.
    unsafe {
        for (r, row) in a.rows.iter().enumerate() {
            parts.pack_query::<S, WINOGRAD>(r, row.q, a.scale);
        }
        std::ptr::write_bytes(parts.sums, 0, a.rows.len() * d);
        let mut at = all.first / SPAN * SPAN;
        while at < all.end {
            let visible = all.in_span(at, SPAN);
            for (tile, rows) in tiles.iter_mut().zip(a.rows.chunks(NT)) {
                let visible =
                    VisibleRange::of_all(rows.iter().map(|row| row.visible)).in_span(at, SPAN);
                *tile = Tile {
                    width: tile_width(rows.len(), NT),
                    visible,
                };
            }
            for pack in pack {
                pack(&a.pages, at, visible, scratch);
            }
            let times = tiles.len() * SPAN / (2 * S::R);
            let soon = Soon::new(&a.pages, at + SPAN..all.end, times);
            parts.score_tiles::<S, NT, WINOGRAD>(tiles, soon);
            let rows = a.rows.chunks(ABREAST).zip(states.chunks_mut(ABREAST));
            for (i, (rows, states)) in rows.enumerate() {
                let mut visible = [VisibleRange { first: 0, end: 0 }; ABREAST];
                for (visible, row) in visible.iter_mut().zip(rows) {
                    *visible = row.visible.in_span(at, SPAN);
                }
                parts.weigh::<S, WINOGRAD>(i * ABREAST, &visible[..rows.len()], a.cap, states);
            }
            parts.add_tiles::<S, NT, WINOGRAD>(tiles);
            at += SPAN;
        }
        for (r, row) in a.rows.iter().enumerate() {
            let (weight, total) = last_factors(states[r], row.sink);
            let inverse = S::set1(weight / total);
            for i in (0..d).step_by(S::R) {
                let sum = S::load(parts.sums.add(r * d + i));
                S::store(row.out.add(i), S::mul(sum, inverse));
            }
        }
    }
}

impl Parts {
    /// Converts the visible keys of the span at position `at` to integers.
    ///
    /// # Safety
    /// The pages of the visible positions are there.
    #[inline(always)]
    unsafe fn pack_span_keys<S: Simd, K: Stored, const WINOGRAD: bool>(
        &self,
        pages: &Pages<'_>,
        at: usize,
        visible: VisibleRange,
    ) {
        for p in visible.first / PAGE..visible.end.div_ceil(PAGE) {
            // SAFETY: the caller's promise.
            unsafe { self.pack_keys::<S, K, WINOGRAD>(pages.keys(at / PAGE + p), p) }
        }
    }

    /// Converts the values likewise.
    ///
    /// # Safety
    /// As [`Parts::pack_span_keys`].
    #[inline(always)]
    unsafe fn pack_span_values<S: Simd, V: Stored, const WINOGRAD: bool>(
        &self,
        pages: &Pages<'_>,
        at: usize,
        visible: VisibleRange,
    ) {
        let seen_pages = visible.first / PAGE..visible.end.div_ceil(PAGE);
        let groups = visible.first / (4 * S::R)..visible.end.div_ceil(4 * S::R);
        let values = |p: usize| {
            let is_seen = seen_pages.contains(&p);
            is_seen.then(|| pages.values(at / PAGE + p))
        };
        // SAFETY: the caller's promise.
        unsafe {
            for p in groups.start * 4 * S::R / PAGE..groups.end * 4 * S::R / PAGE {
                self.scale_values::<S, V>(values(p), p);
            }
            for group in groups {
                self.pack_values::<S, V, WINOGRAD>(values, group);
            }
        }
    }

    /// Computes the scores of all tiles; prefetches pages meanwhile.
    ///
    /// # Safety
    /// Queries and keys are packed.
    #[inline(always)]
    unsafe fn score_tiles<S: Simd, const NT: usize, const WINOGRAD: bool>(
        &self,
        tiles: &[Tile],
        mut soon: Soon<'_>,
    ) {
        for vectors in (0..SPAN / S::R).step_by(2) {
            let (first, end) = (vectors * S::R, (vectors + 2) * S::R);
            for (i, tile) in tiles.iter().enumerate() {
                if tile.visible.first >= end || tile.visible.end <= first {
                    continue;
                }
                // SAFETY: the caller's promise.
                unsafe {
                    soon.ask::<S>();
                    match tile.width {
                        1 => self.score::<S, 1, WINOGRAD>(i * NT, vectors),
                        4 => self.score::<S, 4, WINOGRAD>(i * NT, vectors),
                        _ => self.score::<S, NT, WINOGRAD>(i * NT, vectors),
                    }
                }
            }
        }
    }

    /// Adds weights times values to the sums of all tiles.
    ///
    /// # Safety
    /// Weights and values are packed.
    #[inline(always)]
    unsafe fn add_tiles<S: Simd, const NT: usize, const WINOGRAD: bool>(&self, tiles: &[Tile]) {
        for first in (0..self.d).step_by(2 * S::R) {
            for (i, tile) in tiles.iter().enumerate() {
                let (row, visible) = (i * NT, tile.visible);
                if visible.is_empty() {
                    continue;
                }
                // SAFETY: the caller's promise.
                unsafe {
                    match (tile.width, first + S::R < self.d) {
                        (1, true) => self.add_values::<S, 2, 1, WINOGRAD>(row, first, visible),
                        (4, true) => self.add_values::<S, 2, 4, WINOGRAD>(row, first, visible),
                        (_, true) => self.add_values::<S, 2, NT, WINOGRAD>(row, first, visible),
                        (1, false) => self.add_values::<S, 1, 1, WINOGRAD>(row, first, visible),
                        (4, false) => self.add_values::<S, 1, 4, WINOGRAD>(row, first, visible),
                        (_, false) => self.add_values::<S, 1, NT, WINOGRAD>(row, first, visible),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
pub mod tests;
