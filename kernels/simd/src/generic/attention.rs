//! Attention over pages of 16 positions of one KV head, an online softmax in f32 over 8 pages at a
//! time.
//!
//! ```text
//! K page [head_dim][16 positions]   scores of 16 positions sit in lanes: no horizontal sums
//! V page [16 positions][head_dim]   the weighted sum runs along head_dim
//! ```
//! `NQ` query rows share every load of K and V: the heads of a group, and for prompts several
//! tokens. A row's result does not depend on its neighbours: spans are counted from position 0, and
//! positions that a row does not see, beyond its own or before its window, have weight zero, which
//! leaves its sums as they are, bit for bit. Positions that no row sees are not read.

pub mod int16;
mod query_rows;
mod softmax;
mod stored;
mod visible_range;

pub use crate::kv_layout::{MAX_HEAD_DIM, PAGE};
use crate::prefetch::Prefetch;
use crate::simd::Simd;
pub use query_rows::QueryRows;
pub use softmax::{Slope, last_factors};
use softmax::{fall, largest_score, weights, weights_below, weights_of};
use stored::row_bytes;
#[cfg(test)]
pub use stored::tests;
pub use stored::{F8E4M3, Iq4, Pages, Q4, Q5, Q5Min, Q8, Stored};
pub use visible_range::VisibleRange;

/// Query rows that share each load of a page, at most. Their scores of a span, `512 * QUERY_ROWS`
/// bytes, stay in the L1 cache (32 KiB) with a page, or with some values of all of a span.
pub const QUERY_ROWS: usize = 32;

/// One query row: a head of a token.
#[derive(Clone, Copy)]
pub struct Query {
    /// head_dim floats.
    pub q: *const f32,
    /// Destination of the result, head_dim floats.
    pub out: *mut f32,
    pub visible: VisibleRange,
    /// See [`last_factors`].
    pub sink: f32,
}

/// Query rows of one sequence and KV head, for
/// [`PromptAttention`](crate::table::PromptAttention).
pub struct Block<'a> {
    /// Up to [`rows`](crate::table::PromptAttention::rows) of its kernels.
    pub rows: &'a [Query],
    /// Multiplies the scores.
    pub scale: f32,
    /// See `Scores::cap`.
    pub cap: Option<f32>,
    pub pages: Pages<'a>,
}

/// Converts the visible positions of the span at a position, keys or values of one cache type, to
/// the form of a prompt kernel, in its scratch.
pub type PackSpan = unsafe fn(&Pages<'_>, usize, VisibleRange, *mut u8);

/// Floats of one row of `out`.
pub const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Pages whose scores are computed together: one softmax step for all of them.
const SPAN: usize = 8;

/// Positions of a span. Runs of pages begin at a multiple of them, so that spans are those of the
/// whole sequence.
pub const SPAN_POSITIONS: usize = SPAN * PAGE;

/// Positions that are attended to together, and the visible ones among them.
#[derive(Clone, Copy)]
pub struct Span {
    /// The first one; a multiple of [`SPAN_POSITIONS`].
    at: usize,
    /// At most [`SPAN_POSITIONS`].
    len: usize,
    /// Positions that any row sees, counted from there.
    visible: VisibleRange,
}

/// Kernel that processes a span for some query rows, `NQ` at a time.
pub type SpanKernel = unsafe fn(&mut QueryRows<'_>, Span);

/// The kernels for a number of query rows at a time: one for keys and one for values, each of its
/// cache type, so that a pair of types needs no kernel of its own.
#[derive(Clone, Copy)]
pub struct SpanKernels {
    /// See [`score`].
    pub keys: SpanKernel,
    /// See [`weigh_span`].
    pub values: SpanKernel,
}

/// Runs rows over the pages of positions that any of them sees, between `first` and `end`.
///
/// # Safety
/// As the fields of [`QueryRows`] say; `out` and `state` are initialised by [`start`] and
/// belong to the caller alone. The kernels are of the pages' types, of a number of rows that these
/// are a multiple of, and of an instruction set that the CPU has.
pub unsafe fn run(kernels: SpanKernels, a: &mut QueryRows<'_>, end: usize) {
    let all = a.visible_to(0, a.visible.len());
    let last = all.end.min(end);
    // spans begin at fixed positions, wherever a window does
    let mut at = a.first.max(all.first / SPAN_POSITIONS * SPAN_POSITIONS);
    while at < last {
        if a.passes_over(at) {
            at += SPAN_POSITIONS;
            continue;
        }
        let len = (last - at).min(SPAN_POSITIONS);
        let visible = all.in_span(at, len);
        let span = Span { at, len, visible };
        // SAFETY: the caller's promise; the table covers every position that is seen, and pages are
        // whole. Scores are there before values are weighed by them.
        unsafe {
            (kernels.keys)(a, span);
            (kernels.values)(a, span);
        }
        at += SPAN_POSITIONS;
    }
}

/// Leaves the scores of the positions from `at` on, the first of a span, in the room for them: of
/// those before `end`, as many as a span has.
///
/// # Safety
/// As [`run`], but for the sums and the state; all rows see these positions.
pub unsafe fn score_span(kernels: SpanKernels, a: &mut QueryRows<'_>, at: usize, end: usize) {
    let len = (end - at).min(SPAN_POSITIONS);
    let visible = VisibleRange { first: 0, end: len };
    // SAFETY: the caller's promise.
    unsafe { (kernels.keys)(a, Span { at, len, visible }) }
}

/// Computes the scores of a span: each page of keys is used by all rows before the next one.
///
/// # Safety
/// As [`run`].
#[inline(always)]
pub unsafe fn score<S: Simd, K: Stored, const NQ: usize>(a: &mut QueryRows<'_>, span: Span) {
    for i in span.visible.first / PAGE..span.visible.end.div_ceil(PAGE) {
        // SAFETY: the caller's promise: the page is one that is seen.
        unsafe { span_page::<S, K, NQ>(a, span.at / PAGE + i, i * PAGE) }
    }
}

/// Turns the scores of a span into weights, and adds the weighted values to the sums: some values
/// of a span are used by all rows before the next ones.
///
/// # Safety
/// As [`run`]; the scores are there.
#[inline(always)]
pub unsafe fn weigh_span<S: Simd, V: Stored, const NQ: usize>(a: &mut QueryRows<'_>, span: Span) {
    let rows = a.visible.len();
    let Span { at, len, .. } = span;
    let mut corrections = [1.0; QUERY_ROWS];
    // SAFETY: the caller's promise.
    unsafe {
        for row in (0..rows).step_by(NQ) {
            let span = a.visible_to(row, NQ).in_span(at, len);
            let correction = softmax::<S, NQ>(a, row, at, span);
            corrections[row..row + NQ].copy_from_slice(&correction);
        }
        let head_dim = a.pages.head_dim;
        // as many of the head's vectors at once as there are registers for
        let vectors = if NQ <= 2 { 4 } else { 2 };
        let mut d = 0;
        while d < head_dim {
            let many = d + (vectors - 1) * S::R < head_dim;
            for row in (0..rows).step_by(NQ) {
                let span = a.visible_to(row, NQ).in_span(at, len);
                let correction = &corrections[row..row + NQ];
                match (many, vectors) {
                    (true, 4) => weigh::<S, V, NQ, 4>(a, row, d, at, span, correction),
                    (true, _) => weigh::<S, V, NQ, 2>(a, row, d, at, span, correction),
                    (false, _) => weigh::<S, V, NQ, 1>(a, row, d, at, span, correction),
                }
            }
            d += if many { vectors * S::R } else { S::R };
        }
    }
}

/// Computes scores of the `i`th page of the sequence, whose first position is `at` in the span.
#[inline(always)]
unsafe fn span_page<S: Simd, E: Stored, const NQ: usize>(a: &QueryRows<'_>, i: usize, at: usize) {
    // the values of this page are read when the span's scores are complete
    let mut soon = Some([a.pages.keys(i + 1), a.pages.values(i)]);
    for row in (0..a.visible.len()).step_by(NQ) {
        let visible = a.visible_to(row, NQ);
        if visible.in_span(i * PAGE, PAGE).is_empty() {
            continue;
        }
        // SAFETY: the page is one that is seen.
        unsafe {
            let k = a.pages.keys(i);
            // a query's value is loaded once for several vectors of positions, if there are several
            match S::R < PAGE {
                true => scores::<S, E, NQ, 2>(a, row, k, soon.take(), at),
                false => scores::<S, E, NQ, 1>(a, row, k, soon.take(), at),
            }
        }
    }
}

/// Prepares sums and softmax state of `n` rows.
pub fn start(out: &mut [f32], state: &mut [(f32, f32)]) {
    out.fill(0.0);
    state.fill((f32::NEG_INFINITY, 0.0));
}

/// Prefetches two rows, from `d` on, of a page of keys and of a page of values, whose rows have
/// `of_values` bytes: never many rows at once, as waiting prefetches would hold up all other loads.
///
/// # Safety
/// As the head of `simd.rs` says.
#[inline(always)]
unsafe fn prefetch_rows<S: Simd, K: Stored>(
    prefetch: Prefetch,
    pages: [*const u8; 2],
    d: usize,
    of_values: usize,
) {
    // SAFETY: prefetches are hints; the instruction set is the caller's promise.
    unsafe {
        for line in 0..(2 * row_bytes::<K>()).div_ceil(64) {
            let at = d * row_bytes::<K>() + 64 * line;
            prefetch.line::<S>(pages[0].wrapping_add(at));
            // values of the type of the keys have as many lines, a number known to the compiler
            if of_values == row_bytes::<K>() {
                prefetch.line::<S>(pages[1].wrapping_add(at));
            }
        }
        if of_values != row_bytes::<K>() {
            for line in 0..(2 * of_values).div_ceil(64) {
                prefetch.line::<S>(pages[1].wrapping_add(d * of_values + 64 * line));
            }
        }
    }
}

/// Computes scores of a page's positions for the rows from `row` on, `H` vectors of positions at a
/// time; prefetches the data that is read soon.
#[inline(always)]
unsafe fn scores<S: Simd, E: Stored, const NQ: usize, const H: usize>(
    a: &QueryRows<'_>,
    row: usize,
    k: *const u8,
    soon: Option<[*const u8; 2]>,
    at: usize,
) {
    let head_dim = a.pages.head_dim;
    let prefetch = Prefetch::here();
    // elements that share a scale are summed before the scale is applied
    let group = E::GROUP.unwrap_or(head_dim);
    // SAFETY: a K page is head_dim * 16 elements, `q` head_dim floats for each row.
    unsafe {
        let q = a.q.add(row * head_dim);
        let of_values = a.pages.v.row_bytes;
        let ask = |soon, d| prefetch_rows::<S, E>(prefetch, soon, d, of_values);
        for first in (0..PAGE).step_by(H * S::R) {
            let mut scaled = [[S::zero(); NQ]; H];
            for g in (0..head_dim).step_by(group) {
                let mut lines = [[S::zero(); 2]; H];
                for (h, lines) in lines.iter_mut().enumerate() {
                    *lines = E::lines::<S>(k, head_dim, g, first + h * S::R);
                }
                // sums of even and odd positions of the head are separate: one chain of sums would
                // wait for each multiply-add
                let mut sums = [[[S::zero(); NQ]; H]; 2];
                // a page is prefetched along with its first vectors
                let soon = soon.filter(|_| first == 0);
                if NQ * H >= 8 && H > 1 {
                    // one after the other: there are registers for one of them
                    for pair in 0..group / 2 {
                        let d = g + 2 * pair;
                        if let Some(soon) = soon {
                            ask(soon, d);
                        }
                        add_products::<S, E, NQ, H>(q, k, d, first, &lines, &mut sums[0]);
                    }
                    for pair in 0..group / 2 {
                        add_products::<S, E, NQ, H>(
                            q,
                            k,
                            g + 2 * pair + 1,
                            first,
                            &lines,
                            &mut sums[1],
                        );
                    }
                } else {
                    for pair in 0..group / 2 {
                        let d = g + 2 * pair;
                        if let Some(soon) = soon {
                            ask(soon, d);
                        }
                        for (odd, sums) in sums.iter_mut().enumerate() {
                            add_products::<S, E, NQ, H>(q, k, d + odd, first, &lines, sums);
                        }
                    }
                }
                add_scaled::<S, E, NQ, H>(&sums, &lines, &mut scaled);
            }
            for (h, scaled) in scaled.iter().enumerate() {
                for (r, scaled) in scaled.iter().enumerate() {
                    S::store(a.scores(row + r).add(at + first + h * S::R), *scaled);
                }
            }
        }
    }
}

/// Adds the products of queries' and keys' value `d`, for `H` vectors of positions of a page from
/// `first` on.
///
/// # Safety
/// As [`scores`]; `q` are the queries, `k` is the page, `lines` are its scales and minima at `d`:
/// a minimum counts here, as the sums of a group's queries are not at hand where scales do.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn add_products<S: Simd, E: Stored, const NQ: usize, const H: usize>(
    q: *const f32,
    k: *const u8,
    d: usize,
    first: usize,
    lines: &[[S::F; 2]; H],
    sums: &mut [[S::F; NQ]; H],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut keys = [S::zero(); H];
        for h in 0..H {
            keys[h] = E::keys::<S>(k, d, first + h * S::R);
            if E::MIN {
                keys[h] = E::stands_for::<S>(keys[h], lines[h]);
            }
        }
        for r in 0..NQ {
            let q = S::set1(q.add(d * NQ + r).read());
            for h in 0..H {
                sums[h][r] = S::fma(keys[h], q, sums[h][r]);
            }
        }
    }
}

/// Adds sums of the even and of the odd values of a group, which have these scales and minima, to
/// the scores.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn add_scaled<S: Simd, E: Stored, const NQ: usize, const H: usize>(
    sums: &[[[S::F; NQ]; H]; 2],
    lines: &[[S::F; 2]; H],
    scaled: &mut [[S::F; NQ]; H],
) {
    for (h, scaled) in scaled.iter_mut().enumerate() {
        for (r, scaled) in scaled.iter_mut().enumerate() {
            // SAFETY: no pointers; the instruction set is the caller's promise.
            unsafe {
                let sum = S::add(sums[0][h][r], sums[1][h][r]);
                *scaled = match (E::GROUP, E::MIN) {
                    (None, _) => sum,
                    (Some(_), false) => S::fma(lines[h][0], sum, *scaled),
                    // the products are of decoded codes
                    (Some(_), true) => S::add(sum, *scaled),
                };
            }
        }
    }
}

/// Turns the scores of positions `span` from `at` on into weights in place, for the rows from `row`
/// on; returns the factor of each row's earlier sums.
#[inline(always)]
unsafe fn softmax<S: Simd, const NQ: usize>(
    a: &mut QueryRows<'_>,
    row: usize,
    at: usize,
    span: VisibleRange,
) -> [f32; NQ] {
    let mut corrections = [1.0; NQ];
    if span.is_empty() {
        return corrections;
    }
    for (r, correction) in corrections.iter_mut().enumerate() {
        // SAFETY: the scores of a row are whole vectors.
        unsafe {
            let p = std::slice::from_raw_parts_mut(a.scores(row + r), SPAN_POSITIONS);
            let visible = a.visible[row + r].in_span(at, span.end);
            if visible.is_empty() {
                p[span.first..span.end].fill(0.0);
                continue;
            }
            let cap = fall::<S>(p, a.cap, visible, a.slopes.get(row + r), at);
            let state = &mut a.state[row + r];
            *correction = match a.chosen.get(row + r) {
                Some(chosen) => weights_of::<S>(p, cap, (chosen, at), span, state),
                None => weights::<S>(p, cap, visible, span.end, state),
            };
        }
    }
    corrections
}

/// Adds the weighted values of a span, `DV` vectors of the head from value `d` on, to the sums of
/// the rows from `row` on.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one position of every row at a time
unsafe fn weigh<S: Simd, E: Stored, const NQ: usize, const DV: usize>(
    a: &QueryRows<'_>,
    row: usize,
    d: usize,
    at: usize,
    span: VisibleRange,
    correction: &[f32],
) {
    if span.is_empty() {
        return;
    }
    let stride = padded(a.pages.head_dim);
    // SAFETY: a V page is 16 rows of head_dim elements, padded at the end of the store so that a
    // whole vector can be read; rows of `out` are padded to a multiple of 16.
    unsafe {
        let out = a.out.add(row * stride + d);
        let p = a.scores(row);
        // not `from_fn`: for wide arrays it is a call, compiled without the caller's target
        // features
        let mut sums = [[S::zero(); DV]; NQ];
        for (r, correction) in correction.iter().enumerate() {
            for i in 0..DV {
                let so_far = S::load(out.add(r * stride + i * S::R));
                sums[r][i] = S::mul(so_far, S::set1(*correction));
            }
        }
        for page in span.first / PAGE..span.end.div_ceil(PAGE) {
            let v = a.pages.values(at / PAGE + page);
            let mut scales = [[1f32; PAGE]; DV];
            let mut minima = [[0f32; PAGE]; DV];
            if E::GROUP.is_some() {
                for i in 0..DV {
                    for half in (0..PAGE).step_by(S::R) {
                        let [scale, minimum] =
                            E::lines::<S>(v, a.pages.head_dim, d + i * S::R, half);
                        S::store(scales[i].as_mut_ptr().add(half), scale);
                        if E::MIN {
                            S::store(minima[i].as_mut_ptr().add(half), minimum);
                        }
                    }
                }
            }
            let visible = span.in_span(page * PAGE, PAGE);
            for j in visible.first..visible.end {
                let mut values = [S::zero(); DV];
                for i in 0..DV {
                    values[i] = E::values::<S>(v, a.pages.head_dim, j, d + i * S::R);
                    let line = [S::set1(scales[i][j]), S::set1(minima[i][j])];
                    values[i] = E::stands_for::<S>(values[i], line);
                }
                for r in 0..NQ {
                    let weight = S::set1(p.add(r * SPAN_POSITIONS + page * PAGE + j).read());
                    for i in 0..DV {
                        sums[r][i] = S::fma(values[i], weight, sums[r][i]);
                    }
                }
            }
        }
        for r in 0..NQ {
            for i in 0..DV {
                S::store(out.add(r * stride + i * S::R), sums[r][i]);
            }
        }
    }
}
