//! What goes from token to token: short convolutions, and matrices that are written to and read
//! from. Each value has one fixed order of sums, so that any cut into steps gives the same bits.

use crate::op::STATE_LANES;
use crate::simd::Simd;

/// Neighbouring values of some rows of a sequence, and what a convolution makes of them.
pub(crate) struct Columns {
    /// The first row's, and floats from one row to the next.
    pub(crate) x: (*const f32, usize),
    /// As many rows before these as count beside a row's own, likewise; null for zeros.
    pub(crate) before: (*const f32, usize),
    /// A row for each that counts, likewise.
    pub(crate) weight: (*const f32, usize),
    /// Rows that count.
    pub(crate) kernel: usize,
    pub(crate) y: (*mut f32, usize),
    pub(crate) rows: usize,
    /// Values of a row.
    pub(crate) n: usize,
}

impl Columns {
    /// Values from `i` on of the row so many after the first of those before; `None` for zeros.
    ///
    /// # Safety
    /// The row exists, and has so many values.
    unsafe fn row(&self, row: usize, i: usize) -> Option<*const f32> {
        let own = row.checked_sub(self.kernel - 1);
        // SAFETY: the caller's promise.
        unsafe {
            match own {
                Some(own) => Some(self.x.0.add(own * self.x.1 + i)),
                None if self.before.0.is_null() => None,
                None => Some(self.before.0.add(row * self.before.1 + i)),
            }
        }
    }
}

impl Columns {
    /// Copies the rows that count for the one after so many rows, from the second on, to where the
    /// next step finds them, so many floats from one to the next.
    ///
    /// # Safety
    /// As [`convolve`]; there are so many rows, and room where they go.
    pub(crate) unsafe fn keep(&self, after: usize, to: *mut f32, stride: usize) {
        for j in 0..self.kernel - 1 {
            // SAFETY: the caller's promise.
            unsafe {
                let to = to.add(j * stride);
                match self.row(after + j, 0) {
                    Some(from) => std::ptr::copy_nonoverlapping(from, to, self.n),
                    None => std::ptr::write_bytes(to, 0, self.n),
                }
            }
        }
    }
}

/// Every value with those above it, weighed and added, the oldest first.
///
/// # Safety
/// The fields' addresses hold what they say; `y` overlaps none of the others.
#[inline(always)]
pub(crate) unsafe fn convolve<S: Simd>(c: &Columns) {
    // SAFETY: all values are of rows and columns that exist; the last ones of a row go through
    // whole local vectors.
    unsafe {
        for r in 0..c.rows {
            for i in (0..c.n).step_by(S::R) {
                let values = S::R.min(c.n - i);
                let mut sum = S::zero();
                for j in 0..c.kernel {
                    if let Some(x) = c.row(r + j, i) {
                        let weight = some::<S>(c.weight.0.add(j * c.weight.1 + i), values);
                        sum = S::fma(some::<S>(x, values), weight, sum);
                    }
                }
                put::<S>(sum, c.y.0.add(r * c.y.1 + i), values);
            }
        }
    }
}

/// `STATE_LANES` neighbouring values of a head, or fewer, of some tokens of a sequence.
pub(crate) struct Lanes {
    /// The first token's query, and floats to the next token's.
    pub(crate) q: (*const f32, usize),
    pub(crate) k: (*const f32, usize),
    pub(crate) v: (*const f32, usize),
    /// One float a token.
    pub(crate) decay: (*const f32, usize),
    pub(crate) rate: (*const f32, usize),
    pub(crate) y: (*mut f32, usize),
    pub(crate) tokens: usize,
    pub(crate) key_dim: usize,
    /// Values, at most [`STATE_LANES`].
    pub(crate) lanes: usize,
    pub(crate) delta: bool,
    pub(crate) scale: f32,
    /// `[key_dim][STATE_LANES]`: what the tokens before have left, then what these leave.
    pub(crate) state: *mut f32,
}

/// See [`Op::LinearAttention`](crate::Op::LinearAttention).
///
/// # Safety
/// The fields' addresses hold what they say; `y` and `state` overlap none of the others.
#[inline(always)]
pub(crate) unsafe fn linear_attention<S: Simd>(a: &Lanes) {
    const { assert!(STATE_LANES.is_multiple_of(S::R)) };
    for first in (0..a.lanes).step_by(S::R) {
        for t in 0..a.tokens {
            // SAFETY: these lanes of this token.
            unsafe { token::<S>(a, first, t) }
        }
    }
}

/// Sums that run beside each other.
const SUMS: usize = 4;

/// # Safety
/// As [`linear_attention`]; there are lanes from `first` on, and the token exists.
#[inline(always)]
unsafe fn token<S: Simd>(a: &Lanes, first: usize, t: usize) {
    // SAFETY: all indices are of tokens, keys and lanes that exist.
    unsafe {
        let lanes = S::R.min(a.lanes - first);
        let (q, k) = (a.q.0.add(t * a.q.1), a.k.0.add(t * a.k.1));
        let state = a.state.add(first);
        let decay = S::set1(a.decay.0.add(t * a.decay.1).read());
        let rate = S::set1(a.rate.0.add(t * a.rate.1).read());
        let mut value = some::<S>(a.v.0.add(t * a.v.1 + first), lanes);
        if a.delta {
            let mut sums = [S::zero(); SUMS];
            for j in 0..a.key_dim {
                let m = S::load(state.add(j * STATE_LANES));
                sums[j % SUMS] = S::fma(m, S::set1(k.add(j).read()), sums[j % SUMS]);
            }
            value = S::sub(value, S::mul(decay, total::<S>(sums)));
        }
        let change = S::mul(rate, value);
        let mut sums = [S::zero(); SUMS];
        for j in 0..a.key_dim {
            let at = state.add(j * STATE_LANES);
            let faded = S::mul(decay, S::load(at));
            let m = S::fma(change, S::set1(k.add(j).read()), faded);
            S::store(at, m);
            sums[j % SUMS] = S::fma(m, S::set1(q.add(j).read()), sums[j % SUMS]);
        }
        let result = S::mul(S::set1(a.scale), total::<S>(sums));
        put::<S>(result, a.y.0.add(t * a.y.1 + first), lanes);
    }
}

#[inline(always)]
unsafe fn total<S: Simd>([a, b, c, d]: [S::F; SUMS]) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::add(S::add(a, b), S::add(c, d)) }
}

/// `n` floats, and zeros in the lanes behind them.
///
/// # Safety
/// There are so many, at most as many as lanes.
#[inline(always)]
unsafe fn some<S: Simd>(p: *const f32, n: usize) -> S::F {
    // SAFETY: the caller's promise; a part goes through a whole local vector.
    unsafe {
        if n == S::R {
            return S::load(p);
        }
        let mut all = [0f32; STATE_LANES];
        std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
        S::load(all.as_ptr())
    }
}

/// The first `n` lanes.
///
/// # Safety
/// As [`some`], to be written.
#[inline(always)]
unsafe fn put<S: Simd>(v: S::F, p: *mut f32, n: usize) {
    // SAFETY: as in `some`.
    unsafe {
        if n == S::R {
            return S::store(p, v);
        }
        let mut all = [0f32; STATE_LANES];
        S::store(all.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
    }
}
