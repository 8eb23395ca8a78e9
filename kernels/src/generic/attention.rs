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
//! leaves its sums as they are, bit for bit. What no row sees is not read.

use super::elementwise::soft_cap;
use crate::ahead::Ahead;
use crate::formats::Float;
use crate::kv::Q8_GROUP;
pub(crate) use crate::kv::{MAX_HEAD_DIM, PAGE};
use crate::simd::{Simd, exp};

/// A sequence's pages of one layer and KV head.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    /// Page numbers of the sequence, from position 0; covers all that is visible.
    pub(crate) table: &'a [u32],
    /// The layer's K pages of this head: page `p` starts at `k + p * stride` bytes.
    pub(crate) k: *const u8,
    /// Likewise for V.
    pub(crate) v: *const u8,
    /// Bytes from one page to the next.
    pub(crate) stride: usize,
    /// Values of a head: a multiple of 2, and of what a matrix unit takes.
    pub(crate) head_dim: usize,
}

/// How keys and values lie in a page of one head; see [`crate::KvStore`].
pub(crate) trait Stored {
    /// Bytes of an element, scales left out.
    const BYTES: usize;
    /// Values of a position that share a scale, if elements are to be multiplied with one.
    const GROUP: Option<usize>;
    /// Element `d` of `S::R` keys from position `at` of the page on.
    ///
    /// # Safety
    /// `page` is a whole page of heads of `head_dim`, `d` is below that and `at + S::R` at most
    /// [`PAGE`].
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F;
    /// Elements from `d` on of the value at position `at`, `S::R` of them.
    ///
    /// # Safety
    /// As [`Stored::keys`]; `d` is a multiple of `S::R`, and a whole vector can be read.
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F;
    /// Scales at `d`, of keys or of values, of `S::R` positions from `at` on.
    ///
    /// # Safety
    /// As [`Stored::keys`]; there is a [`Stored::GROUP`].
    unsafe fn scales<S: Simd>(page: *const u8, head_dim: usize, d: usize, at: usize) -> S::F;
}

impl<E: Float> Stored for E {
    const BYTES: usize = E::BYTES;
    const GROUP: Option<usize> = None;
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { E::load::<S>(page.add((d * PAGE + at) * E::BYTES)) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { E::load::<S>(page.add((at * head_dim + d) * E::BYTES)) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(_: *const u8, _: usize, _: usize, _: usize) -> S::F {
        unreachable!("floats have none")
    }
}

/// Bytes with scales.
pub(crate) struct Q8;

impl Stored for Q8 {
    const BYTES: usize = 1;
    const GROUP: Option<usize> = Some(Q8_GROUP);
    #[inline(always)]
    unsafe fn keys<S: Simd>(page: *const u8, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::to_f(S::load_i8(page.add(d * PAGE + at))) }
    }
    #[inline(always)]
    unsafe fn values<S: Simd>(page: *const u8, head_dim: usize, at: usize, d: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::to_f(S::load_i8(page.add(at * head_dim + d))) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(page: *const u8, head_dim: usize, d: usize, at: usize) -> S::F {
        // SAFETY: the caller's promise; scales `[head_dim / 32][PAGE]` follow the codes.
        unsafe {
            S::load_f16(
                page.add(PAGE * head_dim)
                    .cast::<u16>()
                    .add(d / Q8_GROUP * PAGE + at),
            )
        }
    }
}

/// Positions that a row sees: from the first one up to `end`, which is beyond the last.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl Seen {
    /// All that any of some rows sees, and what is between.
    pub(crate) fn of_all(rows: impl Iterator<Item = Seen> + Clone) -> Seen {
        Seen {
            first: rows.clone().map(|seen| seen.first).min().unwrap_or(0),
            end: rows.map(|seen| seen.end).max().unwrap_or(0),
        }
    }

    /// Those among `len` positions from `at` on, counted from there; empty ones may begin behind
    /// their end.
    #[inline(always)]
    pub(crate) fn in_span(self, at: usize, len: usize) -> Seen {
        Seen {
            first: self.first.saturating_sub(at).min(len),
            end: self.end.saturating_sub(at).min(len),
        }
    }

    /// Whether there are none.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.first >= self.end
    }

    /// A vector of `v` where positions from `i` on are seen, and of `other` elsewhere.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`.
    #[inline(always)]
    pub(crate) unsafe fn choose<S: Simd>(self, i: usize, v: S::F, other: S::F) -> S::F {
        // almost all vectors are seen as a whole
        if self.first <= i && i + S::R <= self.end {
            return v;
        }
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            let v = S::first(self.end.saturating_sub(i), v, other);
            S::first(self.first.saturating_sub(i), other, v)
        }
    }
}

/// What a row's weighted sums are multiplied with in the end, and then divided by, out of the
/// softmax's maximum and sum, and the sink of the row's head: minus infinity where there is none,
/// which changes no bit.
pub(crate) fn last_factors((max, sum): (f32, f32), sink: f32) -> (f32, f32) {
    let top = max.max(sink);
    let weight = (max - top).exp();
    (weight, sum * weight + (sink - top).exp())
}

/// Query rows against a run of pages.
pub(crate) struct QueryRows<'a> {
    pub(crate) pages: Pages<'a>,
    /// Scaled query values, `[head_dim][NQ]`.
    pub(crate) q: *const f32,
    /// Positions that each row sees; those before `first` are not looked at.
    pub(crate) seen: &'a [Seen],
    /// See [`Scores::cap`](crate::Scores::cap).
    pub(crate) cap: Option<f32>,
    /// First position of the run; a multiple of 16.
    pub(crate) first: usize,
    /// Weighted sums, `[NQ][head_dim rounded up to 16]`, not divided yet.
    pub(crate) out: *mut f32,
    /// Maximum and sum of the softmax so far, per row.
    pub(crate) state: &'a mut [(f32, f32)],
}

/// Query rows of a [`Block`], at most.
pub(crate) const ROWS: usize = 128;

/// One query row: a head of a token.
#[derive(Clone, Copy)]
pub(crate) struct Query {
    /// head_dim floats.
    pub(crate) q: *const f32,
    /// Likewise, for the result.
    pub(crate) out: *mut f32,
    pub(crate) seen: Seen,
    /// See [`last_factors`].
    pub(crate) sink: f32,
}

/// Query rows of one sequence and KV head, for a matrix unit.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the matrix unit there is so far is of x86")
)]
pub(crate) struct Block<'a> {
    /// 1 to [`ROWS`].
    pub(crate) rows: &'a [Query],
    /// Multiplies the scores.
    pub(crate) scale: f32,
    /// See [`Scores::cap`](crate::Scores::cap).
    pub(crate) cap: Option<f32>,
    pub(crate) pages: Pages<'a>,
}

/// Room of one row of `out`.
pub(crate) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Pages whose scores are made together: one softmax for all of them.
const SPAN: usize = 8;

/// Scores, then weights, of a span for each row.
type Span<const NQ: usize> = [[f32; SPAN * PAGE]; NQ];

/// Runs `NQ` rows over the pages of positions that any of them sees, between `first` and `end`.
///
/// # Safety
/// As the fields of [`QueryRows`] say; `out` and `state` are initialised by [`start`] and
/// belong to the caller alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, E: Stored, const NQ: usize>(a: &mut QueryRows<'_>, end: usize) {
    let all = Seen::of_all(a.seen[..NQ].iter().copied());
    let last = all.end.min(end);
    let mut p = [[0f32; SPAN * PAGE]; NQ];
    // spans begin at fixed positions, wherever a window does
    let mut at = a.first.max(all.first / (SPAN * PAGE) * (SPAN * PAGE));
    while at < last {
        let span = all.in_span(at, (last - at).min(SPAN * PAGE));
        // SAFETY: the table covers every position that is seen, and pages are whole.
        unsafe {
            for i in span.first / PAGE..span.end.div_ceil(PAGE) {
                let (page, next) = (a.pages.at(at / PAGE + i), a.pages.at(at / PAGE + i + 1));
                // the values of this page are read when the span's scores are complete
                let soon = [a.pages.k.wrapping_add(next), a.pages.v.wrapping_add(page)];
                scores::<S, E, NQ>(a, a.pages.k.add(page), soon, i * PAGE, &mut p);
            }
            let correction = softmax::<S, NQ>(a, at, span, &mut p);
            let mut d = 0;
            // as many of the head's vectors at once as there are registers for
            if NQ <= 2 {
                d = weigh::<S, E, NQ, 4>(a, d, at, span, &p, &correction);
            } else if NQ <= 4 {
                d = weigh::<S, E, NQ, 2>(a, d, at, span, &p, &correction);
            }
            weigh::<S, E, NQ, 1>(a, d, at, span, &p, &correction);
        }
        at += SPAN * PAGE;
    }
}

impl Pages<'_> {
    /// Where the sequence's `i`th page starts; the last one there is, beyond it.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> usize {
        self.table[i.min(self.table.len() - 1)] as usize * self.stride
    }
}

/// Prepares sums and softmax state of `n` rows.
pub(crate) fn start(out: &mut [f32], state: &mut [(f32, f32)]) {
    out.fill(0.0);
    state.fill((f32::NEG_INFINITY, 0.0));
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn scores<S: Simd, E: Stored, const NQ: usize>(
    a: &QueryRows<'_>,
    k: *const u8,
    soon: [*const u8; 2],
    at: usize,
    p: &mut Span<NQ>,
) {
    let head_dim = a.pages.head_dim;
    let ahead = Ahead::here();
    // elements that share a scale are summed before it counts
    let group = E::GROUP.unwrap_or(head_dim);
    // SAFETY: a K page is head_dim * 16 elements, `q` head_dim * NQ floats.
    unsafe {
        for half in 0..PAGE / S::R {
            let mut scaled = [S::zero(); NQ];
            for g in (0..head_dim).step_by(group) {
                // even and odd positions of the head apart: one chain of sums would wait for each
                // multiply-add
                let mut sums = [[S::zero(); NQ]; 2];
                for d in (g..g + group).step_by(2) {
                    if half == 0 {
                        // two rows of a page at a time, never many at once: those that wait would
                        // hold up everything else
                        for line in (0..2 * PAGE * E::BYTES).step_by(64) {
                            ahead.ask::<S>(soon[0].wrapping_add(d * PAGE * E::BYTES + line));
                            ahead.ask::<S>(soon[1].wrapping_add(d * PAGE * E::BYTES + line));
                        }
                    }
                    for odd in 0..2 {
                        let kv = E::keys::<S>(k, d + odd, half * S::R);
                        for (r, sum) in sums[odd].iter_mut().enumerate() {
                            *sum = S::fma(kv, S::set1(a.q.add((d + odd) * NQ + r).read()), *sum);
                        }
                    }
                }
                for (r, scaled) in scaled.iter_mut().enumerate() {
                    let sum = S::add(sums[0][r], sums[1][r]);
                    *scaled = match E::GROUP {
                        Some(_) => {
                            S::fma(E::scales::<S>(k, head_dim, g, half * S::R), sum, *scaled)
                        }
                        None => sum,
                    };
                }
            }
            for (r, p) in p.iter_mut().enumerate() {
                S::store(p.as_mut_ptr().add(at + half * S::R), scaled[r]);
            }
        }
    }
}

/// Scores of the positions `span` from `at` on to weights in place; returns what each row's earlier
/// sums are multiplied with.
#[inline(always)]
unsafe fn softmax<S: Simd, const NQ: usize>(
    a: &mut QueryRows<'_>,
    at: usize,
    span: Seen,
    p: &mut Span<NQ>,
) -> [f32; NQ] {
    let mut correction = [1.0; NQ];
    // SAFETY: every pointer is to one of the rows of `p`, which are whole vectors, or a local
    // array.
    unsafe {
        for (r, p) in p.iter_mut().enumerate() {
            let seen = a.seen[r].in_span(at, span.end);
            if seen.is_empty() {
                p[span.first..span.end].fill(0.0);
                continue;
            }
            // whole vectors; what lies before them is not seen
            let from = seen.first / S::R * S::R;
            p[..from].fill(0.0);
            if let Some(cap) = a.cap {
                for i in (from..seen.end).step_by(S::R) {
                    let v = soft_cap::<S>(cap, S::load(p.as_ptr().add(i)));
                    S::store(p.as_mut_ptr().add(i), v);
                }
            }
            let (max, sum) = a.state[r];
            let mut top = S::set1(max);
            for i in (from..seen.end).step_by(S::R) {
                let v = S::load(p.as_ptr().add(i));
                top = S::max(top, seen.choose::<S>(i, v, S::set1(f32::NEG_INFINITY)));
            }
            let new = S::largest(top);
            let mut total = S::zero();
            for i in (from..span.end).step_by(S::R) {
                let v = exp::<S>(S::sub(S::load(p.as_ptr().add(i)), S::set1(new)));
                let v = seen.choose::<S>(i, v, S::zero());
                S::store(p.as_mut_ptr().add(i), v);
                total = S::add(total, v);
            }
            if new > max {
                let mut e = [0f32; 16];
                S::store(e.as_mut_ptr(), exp::<S>(S::set1(max - new)));
                correction[r] = if max == f32::NEG_INFINITY { 0.0 } else { e[0] };
            }
            a.state[r] = (new, sum * correction[r] + S::sum(total));
        }
    }
    correction
}

/// Adds the weighted values of a span, `DV` vectors of the head at once from value `d` on; returns
/// where it ended.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // one position of every row at a time
unsafe fn weigh<S: Simd, E: Stored, const NQ: usize, const DV: usize>(
    a: &QueryRows<'_>,
    mut d: usize,
    at: usize,
    span: Seen,
    p: &Span<NQ>,
    correction: &[f32; NQ],
) -> usize {
    let stride = padded(a.pages.head_dim);
    // SAFETY: a V page is 16 rows of head_dim elements, padded at the end of the store so that a
    // whole vector can be read; rows of `out` are padded to a multiple of 16.
    unsafe {
        while d + (DV - 1) * S::R < a.pages.head_dim {
            // not `from_fn`: for wide arrays it is a call, compiled without the caller's target
            // features
            let mut sums = [[S::zero(); DV]; NQ];
            for r in 0..NQ {
                for i in 0..DV {
                    let so_far = S::load(a.out.add(r * stride + d + i * S::R));
                    sums[r][i] = S::mul(so_far, S::set1(correction[r]));
                }
            }
            for page in span.first / PAGE..span.end.div_ceil(PAGE) {
                let v = a.pages.v.add(a.pages.at(at / PAGE + page));
                let mut scales = [[1f32; PAGE]; DV];
                if E::GROUP.is_some() {
                    for i in 0..DV {
                        for half in (0..PAGE).step_by(S::R) {
                            let scale = E::scales::<S>(v, a.pages.head_dim, d + i * S::R, half);
                            S::store(scales[i].as_mut_ptr().add(half), scale);
                        }
                    }
                }
                let seen = span.in_span(page * PAGE, PAGE);
                for j in seen.first..seen.end {
                    for i in 0..DV {
                        let mut value = E::values::<S>(v, a.pages.head_dim, j, d + i * S::R);
                        if E::GROUP.is_some() {
                            value = S::mul(value, S::set1(scales[i][j]));
                        }
                        for r in 0..NQ {
                            sums[r][i] = S::fma(value, S::set1(p[r][page * PAGE + j]), sums[r][i]);
                        }
                    }
                }
            }
            for r in 0..NQ {
                for i in 0..DV {
                    S::store(a.out.add(r * stride + d + i * S::R), sums[r][i]);
                }
            }
            d += DV * S::R;
        }
    }
    d
}
