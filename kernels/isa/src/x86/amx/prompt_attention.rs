//! AMX: attention of a prompt, scores and weighted sums both as bf16 tiles.
//!
//! ```text
//! for every 128 positions                        K and V pages become B tiles, shared by all rows
//!   scores  = Q K^T                              A: 16 query rows x 32 of head_dim, B: a page
//!   softmax of every row, running                f32; rescaled where the maximum rises
//!   sums   += P V                                A: 16 query rows x 32 positions
//! ```
//! Pages of K lie as `[head_dim][16 positions]` and pages of V as `[16 positions][head_dim]`:
//! neighbouring rows of either become one row of a B tile. A row's result does not depend on its
//! neighbours: positions it does not see, beyond its own or before its window, have weight zero,
//! and spans of 128 are counted from position 0. Positions that no row sees are not read.

use super::tile::{K, ONE_PRODUCT, Sums, TILE, TileBlock, TileRows, multiply, pair};
use octavo_simd::generic::attention::{
    Block, PAGE, PackSpan, Pages, Stored, VisibleRange, last_factors,
};
use octavo_simd::generic::elementwise::soft_cap;
use octavo_simd::kv_layout::KvShape;
use octavo_simd::simd::{Simd, exp};
use octavo_simd::x86::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Query rows of a block, at most.
pub(crate) const ROWS: usize = 128;
/// Positions of a span. Their keys in three terms and their values are `SPAN * 4 * 2 d` bytes of B
/// tiles, 128 KiB for heads of 128; with the scores (64 KiB) and the queries (96 KiB for 128 rows)
/// that must stay below the 2 MiB of L2 cache of the Xeon with AMX on which this was measured.
const SPAN: usize = 128;
/// Number of products that make a score: queries and keys are each the sum of two bf16, and the
/// product of the lower ones is left out. Rounded to one bf16, a score of 20 would be off by a
/// twentieth, and its weight by as much.
const TERMS: usize = 3;

/// Bytes of scratch for a head of `d`: queries, keys, values, scores, weights, sums.
pub(crate) const fn scratch_bytes(d: usize) -> usize {
    TERMS * (2 * ROWS * d + 2 * SPAN * d)
        + 2 * SPAN * d
        + 4 * ROWS * SPAN
        + 2 * ROWS * SPAN
        + 4 * ROWS * d
}

/// Whether a head divides into whole tiles.
pub(crate) fn takes(kv: &KvShape) -> bool {
    kv.head_dim.is_multiple_of(32)
}

/// The parts of the scratch.
#[derive(Clone, Copy)]
struct Parts {
    /// Values of a head.
    d: usize,
    /// Queries as A tiles, keys and values of a span as B tiles.
    q: *mut u8,
    k: *mut u8,
    v: *mut u8,
    /// `[ROWS][SPAN]`
    scores: *mut f32,
    /// As A tiles.
    weights: *mut u8,
    /// `[ROWS][d]`
    sums: *mut f32,
}

impl Parts {
    fn new(scratch: *mut u8, d: usize) -> Parts {
        let q = scratch;
        let k = q.wrapping_add(TERMS * 2 * ROWS * d);
        let v = k.wrapping_add(TERMS * 2 * SPAN * d);
        let scores = v.wrapping_add(2 * SPAN * d).cast::<f32>();
        let weights = scores.wrapping_add(ROWS * SPAN).cast::<u8>();
        let sums = weights.wrapping_add(2 * ROWS * SPAN).cast::<f32>();
        Parts {
            d,
            q,
            k,
            v,
            scores,
            weights,
            sums,
        }
    }

    /// Computes scores of `blocks` blocks of rows (1 or 2) from block `i` on, at the positions of
    /// `steps` tiles of 32.
    ///
    /// # Safety
    /// Queries and keys are packed.
    #[inline(always)]
    unsafe fn score(&self, i: usize, blocks: usize, steps: Range<usize>) {
        // every term of every 32 values of a head
        let tiles = TERMS * self.d / K;
        for page in (2 * steps.start..2 * steps.end).step_by(2) {
            // SAFETY: blocks and pages have `tiles` tiles each.
            unsafe {
                multiply(&TileBlock {
                    blocks,
                    strips: 2,
                    x: TileRows {
                        at: self.q.add(i * tiles * TILE),
                        stride: tiles * TILE,
                    },
                    panel: TileRows {
                        at: self.k.add(page * tiles * TILE),
                        stride: tiles * TILE,
                    },
                    products: &ONE_PRODUCT,
                    steps: tiles,
                    from: None,
                    to: Sums {
                        at: self.scores.add(i * 16 * SPAN + page * 16),
                        stride: SPAN,
                    },
                });
            }
        }
    }

    /// Adds weights times values to the sums of these blocks, over `seen` of a span's `steps`.
    ///
    /// # Safety
    /// Weights and values are packed.
    #[inline(always)]
    unsafe fn add_values(&self, i: usize, blocks: usize, visible: Range<usize>, steps: usize) {
        for n in (0..self.d / 16).step_by(2) {
            // SAFETY: blocks and columns have `steps` tiles each.
            unsafe {
                let sums = Sums {
                    at: self.sums.add(i * 16 * self.d + n * 16),
                    stride: self.d,
                };
                multiply(&TileBlock {
                    blocks,
                    strips: 2,
                    x: TileRows {
                        at: self.weights.add((i * steps + visible.start) * TILE),
                        stride: steps * TILE,
                    },
                    panel: TileRows {
                        at: self.v.add((n * steps + visible.start) * TILE),
                        stride: steps * TILE,
                    },
                    products: &ONE_PRODUCT,
                    steps: visible.len(),
                    from: Some(sums),
                    to: sums,
                });
            }
        }
    }
}

/// Computes attention and writes the results.
///
/// # Safety
/// As the fields of [`Block`] say; `scratch` is [`scratch_bytes`], at a cache line; tiles are
/// configured; `pack` are [`pack_keys`] and [`pack_values`] of the pages' types.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn attend(a: &Block<'_>, pack: [PackSpan; 2], scratch: *mut u8) {
    let d = a.pages.head_dim;
    let blocks = a.rows.len().div_ceil(16);
    let parts = Parts::new(scratch, d);
    let mut states = [(f32::NEG_INFINITY, 0f32); ROWS];
    let all = VisibleRange::of_all(a.rows.iter().map(|row| row.visible));
    // SAFETY: every part of the scratch has the room its loops use; pages of all visible positions
    // are in the table.
    unsafe {
        pack_queries(a, blocks, parts.q);
        std::ptr::write_bytes(parts.sums, 0, blocks * 16 * d);
        let mut at = all.first / SPAN * SPAN;
        while at < all.end {
            let span = all.in_span(at, SPAN);
            let steps = span_steps(span);
            for pack in pack {
                pack(&a.pages, at, span, scratch);
            }
            // steps of positions that any row of a pair of blocks sees: others would add zeros
            let visible = |i: usize| {
                let rows = &a.rows[i * 16..a.rows.len().min((i + 2) * 16)];
                let visible =
                    VisibleRange::of_all(rows.iter().map(|row| row.visible)).in_span(at, SPAN);
                if visible.is_empty() {
                    0..0
                } else {
                    visible.first / K..visible.end.div_ceil(K)
                }
            };
            for i in (0..blocks).step_by(2) {
                parts.score(i, (blocks - i).min(2), visible(i));
            }
            for (r, row) in a.rows.iter().enumerate() {
                let visible = row.visible.in_span(at, SPAN);
                let tile = parts.weights.add((r / 16 * steps) * TILE + r % 16 * 64);
                let (scores, sums) = (parts.scores.add(r * SPAN), parts.sums.add(r * d));
                let state = &mut states[r];
                softmax(scores, a.cap, visible, steps, tile, state, sums, d);
            }
            for r in a.rows.len()..blocks * 16 {
                let tile = parts.weights.add((r / 16 * steps) * TILE + r % 16 * 64);
                clear(tile, steps);
            }
            for i in (0..blocks).step_by(2).filter(|i| !visible(*i).is_empty()) {
                parts.add_values(i, (blocks - i).min(2), visible(i), steps);
            }
            at += SPAN;
        }
        for (r, row) in a.rows.iter().enumerate() {
            let (weight, total) = last_factors(states[r], row.sink);
            let inverse = _mm512_set1_ps(weight / total);
            for i in (0..d).step_by(16) {
                let sum = _mm512_loadu_ps(parts.sums.add(r * d + i));
                _mm512_storeu_ps(row.out.add(i), _mm512_mul_ps(sum, inverse));
            }
        }
    }
}

/// Zeroes a row of each of `steps` A tiles.
///
/// # Safety
/// A row of tile `step` is at `row + step * TILE`.
#[inline(always)]
unsafe fn clear(row: *mut u8, steps: usize) {
    for step in 0..steps {
        // SAFETY: the caller's promise: a row is 64 bytes.
        unsafe {
            row.add(step * TILE)
                .cast::<__m512i>()
                .write_unaligned(_mm512_setzero_si512());
        }
    }
}

/// Packs scaled queries as A tiles `[blocks][TERMS][head_dim / 32]`, zeros where there is no row.
#[inline(always)]
unsafe fn pack_queries(a: &Block<'_>, blocks: usize, q: *mut u8) {
    let steps = a.pages.head_dim / K;
    for r in 0..blocks * 16 {
        for step in 0..steps {
            // SAFETY: row r % 16 of tile `step` of its block; queries are head_dim floats.
            unsafe {
                let to = q.add((r / 16 * TERMS * steps + step) * TILE + r % 16 * 64);
                let mut rows = [_mm512_setzero_si512(); 2];
                if let Some(query) = a.rows.get(r) {
                    let from = query.q.add(step * K);
                    let scale = _mm512_set1_ps(a.scale);
                    let x = [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16))];
                    let x = [_mm512_mul_ps(x[0], scale), _mm512_mul_ps(x[1], scale)];
                    let high = [bf16_part(x[0]), bf16_part(x[1])];
                    rows[0] = narrow(high[0], high[1]);
                    rows[1] = narrow(_mm512_sub_ps(x[0], high[0]), _mm512_sub_ps(x[1], high[1]));
                }
                // high with high, low with high, high with low
                for (term, row) in [rows[0], rows[1], rows[0]].into_iter().enumerate() {
                    to.add(term * steps * TILE)
                        .cast::<__m512i>()
                        .write_unaligned(row);
                }
            }
        }
    }
}

/// Rounds to bf16, returned as floats.
#[inline(always)]
unsafe fn bf16_part(x: __m512) -> __m512 {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
        _mm512_castsi512_ps(_mm512_and_si512(
            rounded,
            _mm512_set1_epi32(0xffff_0000_u32 as i32),
        ))
    }
}

/// Converts 32 floats in order to bf16.
#[inline(always)]
unsafe fn narrow(low: __m512, high: __m512) -> __m512i {
    // SAFETY: no pointers; the instruction set is the caller's promise. Both types are 64 bytes.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Number of tiles of 32 positions up to the end of the visible positions of a span.
#[inline(always)]
fn span_steps(visible: VisibleRange) -> usize {
    visible.end.div_ceil(PAGE).div_ceil(2)
}

/// The pages of a span that are packed, and those of them with visible positions: positions come in
/// tiles of 32.
#[inline(always)]
fn span_pages(visible: VisibleRange) -> (Range<usize>, Range<usize>) {
    let pages = visible.first / PAGE..visible.end.div_ceil(PAGE);
    (pages.start / 2 * 2..2 * span_steps(visible), pages)
}

/// Packs keys of a span as B tiles `[page][TERMS][head_dim / 32]`.
///
/// # Safety
/// The pages of the visible positions are there; `scratch` is [`scratch_bytes`], at a cache line.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn pack_keys<E: Stored>(
    pages: &Pages<'_>,
    at: usize,
    visible: VisibleRange,
    scratch: *mut u8,
) {
    let parts = Parts::new(scratch, pages.head_dim);
    let (packed, with_keys) = span_pages(visible);
    for p in packed {
        let page = with_keys.contains(&p).then(|| pages.keys(at / PAGE + p));
        // SAFETY: the caller's promise.
        unsafe { pack_key_page::<E>(page, pages.head_dim, p, parts.k) }
    }
}

/// Packs values of a span as B tiles `[head_dim / 16][step of 32 positions]`.
///
/// # Safety
/// As [`pack_keys`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn pack_values<E: Stored>(
    pages: &Pages<'_>,
    at: usize,
    visible: VisibleRange,
    scratch: *mut u8,
) {
    let parts = Parts::new(scratch, pages.head_dim);
    let (packed, with_values) = span_pages(visible);
    let steps = span_steps(visible);
    for p in packed {
        let page = with_values
            .contains(&p)
            .then(|| pages.values(at / PAGE + p));
        // SAFETY: the caller's promise.
        unsafe { pack_value_page::<E>(page, pages.head_dim, (p, steps), parts.v) }
    }
}

/// Packs keys of page `p` of a span, or zeros.
///
/// # Safety
/// `k` has room for it.
#[inline(always)]
unsafe fn pack_key_page<E: Stored>(page: Option<*const u8>, d: usize, p: usize, k: *mut u8) {
    type S = Avx512;
    // SAFETY: pages are 16 * head_dim elements; places are those the products read.
    unsafe {
        let keys = k.add(p * TERMS * d / K * TILE).cast::<__m512i>();
        for i in 0..d / 2 {
            let mut rows = [_mm512_setzero_si512(); 2];
            if let Some(k) = page {
                let mut x = [E::keys::<S>(k, 2 * i, 0), E::keys::<S>(k, 2 * i + 1, 0)];
                let lines = E::lines::<S>(k, d, 2 * i, 0);
                x = [
                    E::stands_for::<S>(x[0], lines),
                    E::stands_for::<S>(x[1], lines),
                ];
                let high = [bf16_part(x[0]), bf16_part(x[1])];
                rows[0] = pair(high[0], high[1]);
                rows[1] = pair(_mm512_sub_ps(x[0], high[0]), _mm512_sub_ps(x[1], high[1]));
            }
            for (term, row) in [rows[0], rows[0], rows[1]].into_iter().enumerate() {
                keys.add(term * d / 2 + i).write_unaligned(row);
            }
        }
    }
}

/// Packs the values of page `p` of a span of `steps` steps, or zeros.
///
/// # Safety
/// `v` has room for it.
#[inline(always)]
unsafe fn pack_value_page<E: Stored>(
    page: Option<*const u8>,
    d: usize,
    (p, steps): (usize, usize),
    v: *mut u8,
) {
    type S = Avx512;
    // SAFETY: as `pack_key_page`.
    unsafe {
        for n in 0..d / 16 {
            let values = v
                .add((n * steps + p / 2) * TILE)
                .cast::<__m512i>()
                .add(p % 2 * (PAGE / 2));
            let mut lines = [[0f32; PAGE]; 2];
            if let Some(v) = page {
                for (line, of_page) in lines.iter_mut().zip(E::lines::<S>(v, d, n * 16, 0)) {
                    S::store(line.as_mut_ptr(), of_page);
                }
            }
            for i in 0..PAGE / 2 {
                let mut row = _mm512_setzero_si512();
                if let Some(v) = page {
                    let mut x = [
                        E::values::<S>(v, d, 2 * i, n * 16),
                        E::values::<S>(v, d, 2 * i + 1, n * 16),
                    ];
                    for (j, x) in x.iter_mut().enumerate() {
                        let [scales, minima] = &lines;
                        let line = [S::set1(scales[2 * i + j]), S::set1(minima[2 * i + j])];
                        *x = E::stands_for::<S>(*x, line);
                    }
                    row = pair(x[0], x[1]);
                }
                values.add(i).write_unaligned(row);
            }
        }
    }
}

/// Turns a row of scores into weights, a row of each of `steps` A tiles, and rescales the row's
/// sums where its maximum rose. Scores of tiles without visible positions are not read.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // a row of everything
unsafe fn softmax(
    scores: *mut f32,
    cap: Option<f32>,
    visible: VisibleRange,
    steps: usize,
    tile: *mut u8,
    state: &mut (f32, f32),
    sums: *mut f32,
    d: usize,
) {
    type S = Avx512;
    let (max, sum) = *state;
    // SAFETY: scores are `32 * steps` floats, sums `d`; row of tile `step` at `tile + step * TILE`.
    unsafe {
        if visible.is_empty() {
            return clear(tile, steps);
        }
        let vectors = visible.first / 16..visible.end.div_ceil(16);
        if let Some(cap) = cap {
            for i in vectors.clone() {
                let v = soft_cap::<S>(cap, S::load(scores.add(16 * i)));
                S::store(scores.add(16 * i), v);
            }
        }
        let mut top = S::set1(max);
        for i in vectors.clone() {
            let v = S::load(scores.add(16 * i));
            top = S::max(
                top,
                visible.choose::<S, false>(16 * i, v, S::set1(f32::NEG_INFINITY)),
            );
        }
        let new = S::largest(top);
        let minus = S::set1(new);
        let mut total = S::zero();
        for step in 0..steps {
            let at = 32 * step;
            let mut parts = [S::zero(); 2];
            for (half, part) in parts.iter_mut().enumerate() {
                if vectors.contains(&(2 * step + half)) {
                    let i = at + 16 * half;
                    let e = exp::<S>(S::sub(S::load(scores.add(i)), minus));
                    *part = visible.choose::<S, false>(i, e, S::zero());
                    total = S::add(total, *part);
                }
            }
            tile.add(step * TILE)
                .cast::<__m512i>()
                .write_unaligned(narrow(parts[0], parts[1]));
        }
        let mut correction = 1.0;
        if new > max {
            let mut e = [0f32; 16];
            S::store(e.as_mut_ptr(), exp::<S>(S::set1(max - new)));
            correction = if max == f32::NEG_INFINITY { 0.0 } else { e[0] };
            for i in (0..d).step_by(16) {
                S::store(
                    sums.add(i),
                    S::mul(S::load(sums.add(i)), S::set1(correction)),
                );
            }
        }
        *state = (new, sum * correction + S::sum(total));
    }
}
