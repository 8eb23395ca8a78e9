//! Attention over pages: 16 positions of one KV head at a time, an online softmax in f32.
//!
//! ```text
//! K page [head_dim][16 positions]   scores of 16 positions sit in lanes: no horizontal sums
//! V page [16 positions][head_dim]   the weighted sum runs along head_dim
//! ```
//! `NQ` query rows share every load of K and V: the heads of a group, and for prompts several tokens. A row's result
//! does not depend on its neighbours: pages beyond a row's last position leave its sums as they are, bit for bit.

use crate::formats::Float;
use crate::simd::{Simd, exp};

/// Positions in a page.
pub(crate) const PAGE: usize = 16;
/// Longest head: the scratch below is sized by it.
pub(crate) const MAX_HEAD_DIM: usize = 1024;

/// Query rows against a run of pages of one layer and KV head.
pub(crate) struct Rows<'a> {
    /// Scaled query values, `[head_dim][NQ]`.
    pub(crate) q: *const f32,
    /// Positions visible to each row, counted from position 0; at least one more than `first`.
    pub(crate) visible: &'a [usize],
    /// First position of the run; a multiple of 16.
    pub(crate) first: usize,
    /// Page numbers of the sequence, from position 0.
    pub(crate) table: &'a [u32],
    /// The layer's K pages of this head: page `p` starts at `k + p * page_stride` elements.
    pub(crate) k: *const u8,
    /// Likewise for V.
    pub(crate) v: *const u8,
    /// Bytes from one page to the next.
    pub(crate) page_stride: usize,
    /// A multiple of 2.
    pub(crate) head_dim: usize,
    /// Weighted sums, `[NQ][head_dim rounded up to 16]`, not divided yet.
    pub(crate) out: *mut f32,
    /// Maximum and sum of the softmax so far, per row.
    pub(crate) state: &'a mut [(f32, f32)],
}

/// Room of one row of `out`.
pub(crate) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Runs `NQ` rows over the pages from `first` to the last one visible, or to `end` positions.
///
/// # Safety
/// As the fields of [`Rows`] say; `out` and `state` are initialised by [`start`] and belong to the caller alone.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, E: Float, const NQ: usize>(a: &mut Rows<'_>, end: usize) {
    let last = a.visible[..NQ].iter().copied().max().unwrap_or(0).min(end);
    let mut p = [[0f32; PAGE]; NQ];
    let mut at = a.first;
    while at < last {
        // SAFETY: the table covers every visible position, and pages are whole.
        unsafe {
            let page = a.table[at / PAGE] as usize * a.page_stride;
            scores::<S, E, NQ>(a, a.k.add(page), &mut p);
            let correction = softmax::<S, NQ>(a, at, &mut p);
            weigh::<S, E, NQ>(a, a.v.add(page), PAGE.min(last - at), &p, &correction);
        }
        at += PAGE;
    }
}

/// Prepares sums and softmax state of `n` rows.
pub(crate) fn start(out: &mut [f32], state: &mut [(f32, f32)]) {
    out.fill(0.0);
    state.fill((f32::NEG_INFINITY, 0.0));
}

#[inline(always)]
unsafe fn scores<S: Simd, E: Float, const NQ: usize>(a: &Rows<'_>, k: *const u8, p: &mut [[f32; PAGE]; NQ]) {
    // SAFETY: a K page is head_dim * 16 elements, `q` head_dim * NQ floats.
    unsafe {
        for half in 0..PAGE / S::R {
            let mut sums = [S::zero(); NQ];
            for d in 0..a.head_dim {
                let kv = E::load::<S>(k.add((d * PAGE + half * S::R) * E::BYTES));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(kv, S::set1(a.q.add(d * NQ + r).read()), *sum);
                }
            }
            for (p, sum) in p.iter_mut().zip(sums) {
                S::store(p.as_mut_ptr().add(half * S::R), sum);
            }
        }
    }
}

/// Scores to weights in place; returns what each row's earlier sums are multiplied with.
#[inline(always)]
unsafe fn softmax<S: Simd, const NQ: usize>(a: &mut Rows<'_>, at: usize, p: &mut [[f32; PAGE]; NQ]) -> [f32; NQ] {
    let mut correction = [1.0; NQ];
    // SAFETY: every pointer is to one of the 16-float rows of `p` or a local array.
    unsafe {
        for (r, p) in p.iter_mut().enumerate() {
            let seen = a.visible[r].saturating_sub(at).min(PAGE);
            if seen == 0 {
                *p = [0.0; PAGE];
                continue;
            }
            let (max, sum) = a.state[r];
            let mut top = S::set1(max);
            for half in 0..PAGE / S::R {
                let n = seen.saturating_sub(half * S::R).min(S::R);
                let v = S::load(p.as_ptr().add(half * S::R));
                top = S::max(top, S::first(n, v, S::set1(f32::NEG_INFINITY)));
            }
            let new = S::largest(top);
            let mut total = S::zero();
            for half in 0..PAGE / S::R {
                let n = seen.saturating_sub(half * S::R).min(S::R);
                let v = exp::<S>(S::sub(S::load(p.as_ptr().add(half * S::R)), S::set1(new)));
                let v = S::first(n, v, S::zero());
                S::store(p.as_mut_ptr().add(half * S::R), v);
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

#[inline(always)]
#[allow(clippy::needless_range_loop)] // one position of every row at a time
unsafe fn weigh<S: Simd, E: Float, const NQ: usize>(
    a: &Rows<'_>,
    v: *const u8,
    n: usize,
    p: &[[f32; PAGE]; NQ],
    correction: &[f32; NQ],
) {
    let stride = padded(a.head_dim);
    // SAFETY: a V page is 16 rows of head_dim elements, padded at the end of the store so that a whole vector can be
    // read; rows of `out` are padded to a multiple of 16.
    unsafe {
        let mut d = 0;
        while d < a.head_dim {
            let mut sums: [S::F; NQ] = std::array::from_fn(
                #[inline(always)]
                |r| S::mul(S::load(a.out.add(r * stride + d)), S::set1(correction[r])),
            );
            for j in 0..n {
                let value = E::load::<S>(v.add((j * a.head_dim + d) * E::BYTES));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(value, S::set1(p[r][j]), *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                S::store(a.out.add(r * stride + d), sum);
            }
            d += S::R;
        }
    }
}
