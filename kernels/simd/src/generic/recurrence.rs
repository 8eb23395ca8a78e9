//! Recurrent state updates: short convolutions, and matrices that are written to and read from.
//! Each value has one fixed order of sums, so that any cut into steps gives the same bits.

use crate::simd::{Simd, exp};

/// Values of a head that are adjacent in the state of linear attention, which is
/// `[head][values / 16][key_dim][16]`.
pub const STATE_LANES: usize = 16;

/// Neighbouring values of some rows of a sequence, and the results of their convolution.
pub struct Columns {
    /// Address of the first row, and stride between rows in floats.
    pub x: (*const f32, usize),
    /// The `kernel - 1` rows before these, likewise; null for zeros.
    pub before: (*const f32, usize),
    /// A row of weights for each convolved row, likewise.
    pub weight: (*const f32, usize),
    /// Rows convolved, the value's own included.
    pub kernel: usize,
    pub y: (*mut f32, usize),
    pub rows: usize,
    /// Values of a row.
    pub n: usize,
}

impl Columns {
    /// Values from `i` on of row `row`, counted from the first of the rows before; `None` for
    /// zeros.
    ///
    /// # Safety
    /// The row exists, and has more than `i` values.
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
    /// Copies the `kernel - 1` rows before row `after` to where the next step finds them, `stride`
    /// floats apart.
    ///
    /// # Safety
    /// As [`convolve`]; there are `after` rows, and room at the destination.
    pub unsafe fn keep(&self, after: usize, to: *mut f32, stride: usize) {
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

/// Convolves every value with those above it, the oldest first.
///
/// # Safety
/// The fields' addresses hold what they say; `y` overlaps none of the others.
#[inline(always)]
pub unsafe fn convolve<S: Simd>(c: &Columns) {
    // SAFETY: all values are in rows and columns that exist; the last ones of a row go through
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
pub struct Lanes {
    /// The first token's query, and the stride between tokens in floats.
    pub q: (*const f32, usize),
    pub k: (*const f32, usize),
    pub v: (*const f32, usize),
    /// One float a token, or `key_dim` if `decay_by_key`.
    pub decay: (*const f32, usize),
    /// One float a token.
    pub rate: (*const f32, usize),
    pub y: (*mut f32, usize),
    pub tokens: usize,
    pub key_dim: usize,
    /// Values, at most [`STATE_LANES`].
    pub lanes: usize,
    pub delta: bool,
    pub decay_by_key: bool,
    pub scale: f32,
    /// `[key_dim][STATE_LANES]`: the state before these tokens, then the state after them.
    pub state: *mut f32,
}

/// See `Op::LinearAttention`.
///
/// # Safety
/// The fields' addresses hold what they say; `y` and `state` overlap none of the others.
#[inline(always)]
pub unsafe fn linear_attention<S: Simd>(a: &Lanes) {
    const { assert!(STATE_LANES.is_multiple_of(S::R)) };
    for first in (0..a.lanes).step_by(S::R) {
        // SAFETY: these lanes of tokens that exist.
        unsafe {
            match a.decay_by_key {
                false => lanes::<S, false>(a, first),
                true => lanes::<S, true>(a, first),
            }
        }
    }
}

/// Computes all tokens of the lanes from `first` on.
///
/// # Safety
/// As [`linear_attention`]; there are lanes from `first` on, and decays are `BY_KEY` as `a` says.
#[inline(always)]
unsafe fn lanes<S: Simd, const BY_KEY: bool>(a: &Lanes, first: usize) {
    // SAFETY: the caller's promise; the tokens exist.
    unsafe {
        if !a.delta {
            for t in 0..a.tokens {
                token::<S, false, BY_KEY>(a, first, t, S::zero());
            }
        } else if let Some(last) = a.tokens.checked_sub(1) {
            let mut held = recall::<S, BY_KEY>(a, first);
            for t in 0..last {
                held = token::<S, true, BY_KEY>(a, first, t, held);
            }
            token::<S, false, BY_KEY>(a, first, last, held);
        }
    }
}

/// Independent partial sums: one for every fourth key.
const SUMS: usize = 4;

/// Calls `each` with each key, and the sum that it belongs to.
#[inline(always)]
fn by_sums(keys: usize, mut each: impl FnMut(usize, usize)) {
    for j in (0..keys).step_by(SUMS) {
        // constant indices keep the sums in registers
        for i in 0..SUMS {
            if j + i < keys {
                each(j + i, i);
            }
        }
    }
}

/// Value that the state recalls for the first token's key: before it decays or, where decays are
/// `BY_KEY`, afterwards.
///
/// # Safety
/// As [`linear_attention`]; there are lanes from `first` on, and a token.
#[inline(always)]
unsafe fn recall<S: Simd, const BY_KEY: bool>(a: &Lanes, first: usize) -> S::F {
    // SAFETY: all indices are of keys and lanes that exist.
    unsafe {
        let (k, state) = (a.k.0, a.state.add(first));
        let mut sums = [S::zero(); SUMS];
        by_sums(
            a.key_dim,
            #[inline(always)]
            |j, i| {
                let m = S::load(state.add(j * STATE_LANES));
                let mut key = k.add(j).read();
                if BY_KEY {
                    key *= a.decay.0.add(j).read();
                }
                sums[i] = S::fma(m, S::set1(key), sums[i]);
            },
        );
        total::<S>(sums)
    }
}

/// Updates the state by one token, for whose key it holds `held`, if that counts. With `RECALL`
/// returns the value it then holds for the next token's key, as [`recall`] does: the state is read
/// and written once a token.
///
/// # Safety
/// As [`linear_attention`]; there are lanes from `first` on, and the token exists, with `RECALL`
/// also the next one.
#[inline(always)]
unsafe fn token<S: Simd, const RECALL: bool, const BY_KEY: bool>(
    a: &Lanes,
    first: usize,
    t: usize,
    held: S::F,
) -> S::F {
    // SAFETY: all indices are of tokens, keys and lanes that exist.
    unsafe {
        let lanes = S::R.min(a.lanes - first);
        let (q, k) = (a.q.0.add(t * a.q.1), a.k.0.add(t * a.k.1));
        let next_k = k.wrapping_add(a.k.1);
        let state = a.state.add(first);
        let decays = a.decay.0.add(t * a.decay.1);
        let next_decays = decays.wrapping_add(a.decay.1);
        let decay = S::set1(decays.read());
        let rate = S::set1(a.rate.0.add(t * a.rate.1).read());
        let mut value = some::<S>(a.v.0.add(t * a.v.1 + first), lanes);
        if a.delta {
            let held = if BY_KEY { held } else { S::mul(decay, held) };
            value = S::sub(value, held);
        }
        let change = S::mul(rate, value);
        let (mut sums, mut next) = ([S::zero(); SUMS], [S::zero(); SUMS]);
        by_sums(
            a.key_dim,
            #[inline(always)]
            |j, i| {
                let at = state.add(j * STATE_LANES);
                let decay = match BY_KEY {
                    false => decay,
                    true => S::set1(decays.add(j).read()),
                };
                let faded = S::mul(decay, S::load(at));
                let m = S::fma(change, S::set1(k.add(j).read()), faded);
                S::store(at, m);
                sums[i] = S::fma(m, S::set1(q.add(j).read()), sums[i]);
                if RECALL {
                    let mut key = next_k.add(j).read();
                    if BY_KEY {
                        key *= next_decays.add(j).read();
                    }
                    next[i] = S::fma(m, S::set1(key), next[i]);
                }
            },
        );
        let result = S::mul(S::set1(a.scale), total::<S>(sums));
        put::<S>(result, a.y.0.add(t * a.y.1 + first), lanes);
        total::<S>(next)
    }
}

/// `STATE_LANES` neighbouring values, or fewer, of some tokens of a sequence; see
/// `Op::SelectiveScan`.
pub struct ScanLanes {
    /// The first token's values, and the stride between tokens in floats.
    pub x: (*const f32, usize),
    pub steps: (*const f32, usize),
    pub b: (*const f32, usize),
    pub c: (*const f32, usize),
    /// The values' rates at the first number of the state, and the stride to those at the next.
    pub a: (*const f32, usize),
    pub y: (*mut f32, usize),
    pub tokens: usize,
    /// Numbers of the state of a value.
    pub size: usize,
    /// Values, at most [`STATE_LANES`].
    pub lanes: usize,
    /// `[size][STATE_LANES]`: the state before these tokens, then the state after them.
    pub state: *mut f32,
}

/// See `Op::SelectiveScan`.
///
/// # Safety
/// The fields' addresses hold what they say; `y` and `state` overlap none of the others.
#[inline(always)]
pub unsafe fn selective_scan<S: Simd>(s: &ScanLanes) {
    for first in (0..s.lanes).step_by(S::R) {
        let lanes = S::R.min(s.lanes - first);
        for t in 0..s.tokens {
            // SAFETY: all indices are of tokens, numbers and lanes that exist.
            unsafe {
                let step = some::<S>(s.steps.0.add(t * s.steps.1 + first), lanes);
                let x = some::<S>(s.x.0.add(t * s.x.1 + first), lanes);
                let change = S::mul(step, x);
                let (b, c) = (s.b.0.add(t * s.b.1), s.c.0.add(t * s.c.1));
                let mut sums = [S::zero(); SUMS];
                by_sums(
                    s.size,
                    #[inline(always)]
                    |j, i| {
                        let at = s.state.add(j * STATE_LANES + first);
                        let rate = some::<S>(s.a.0.add(j * s.a.1 + first), lanes);
                        let faded = S::mul(exp::<S>(S::mul(step, rate)), S::load(at));
                        let h = S::fma(change, S::set1(b.add(j).read()), faded);
                        S::store(at, h);
                        sums[i] = S::fma(h, S::set1(c.add(j).read()), sums[i]);
                    },
                );
                put::<S>(total::<S>(sums), s.y.0.add(t * s.y.1 + first), lanes);
            }
        }
    }
}

/// `STATE_LANES` neighbouring values of a head, or fewer, of some tokens of a sequence; see
/// `Op::Wkv7`.
pub struct WkvLanes {
    /// The first token's, and the stride between tokens in floats.
    pub r: (*const f32, usize),
    pub decay: (*const f32, usize),
    pub k: (*const f32, usize),
    pub v: (*const f32, usize),
    pub removed: (*const f32, usize),
    pub replaced: (*const f32, usize),
    pub y: (*mut f32, usize),
    pub tokens: usize,
    pub key_dim: usize,
    /// Values, at most [`STATE_LANES`].
    pub lanes: usize,
    /// `[key_dim][STATE_LANES]`: the state before these tokens, then the state after them.
    pub state: *mut f32,
}

/// See `Op::Wkv7`.
///
/// # Safety
/// The fields' addresses hold what they say; `y` and `state` overlap none of the others.
#[inline(always)]
pub unsafe fn wkv7<S: Simd>(w: &WkvLanes) {
    for first in (0..w.lanes).step_by(S::R) {
        let lanes = S::R.min(w.lanes - first);
        for t in 0..w.tokens {
            // SAFETY: all indices are of tokens, keys and lanes that exist.
            unsafe {
                let row = |(from, stride): (*const f32, usize)| from.add(t * stride);
                let (r, decay, k) = (row(w.r), row(w.decay), row(w.k));
                let (removed, replaced) = (row(w.removed), row(w.replaced));
                let v = some::<S>(row(w.v).add(first), lanes);
                let state = w.state.add(first);
                let mut held = [S::zero(); SUMS];
                by_sums(
                    w.key_dim,
                    #[inline(always)]
                    |j, i| {
                        let m = S::load(state.add(j * STATE_LANES));
                        held[i] = S::fma(m, S::set1(removed.add(j).read()), held[i]);
                    },
                );
                let held = total::<S>(held);
                let mut sums = [S::zero(); SUMS];
                by_sums(
                    w.key_dim,
                    #[inline(always)]
                    |j, i| {
                        let at = state.add(j * STATE_LANES);
                        let faded = S::mul(S::set1(decay.add(j).read()), S::load(at));
                        let lost = S::mul(held, S::set1(replaced.add(j).read()));
                        let kept = S::sub(faded, lost);
                        let m = S::fma(v, S::set1(k.add(j).read()), kept);
                        S::store(at, m);
                        sums[i] = S::fma(m, S::set1(r.add(j).read()), sums[i]);
                    },
                );
                put::<S>(total::<S>(sums), w.y.0.add(t * w.y.1 + first), lanes);
            }
        }
    }
}

#[inline(always)]
unsafe fn total<S: Simd>([a, b, c, d]: [S::F; SUMS]) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::add(S::add(a, b), S::add(c, d)) }
}

/// Loads `n` floats, and zeros in the remaining lanes.
///
/// # Safety
/// `n` floats can be read; `n` is at most the number of lanes.
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

/// Stores the first `n` lanes.
///
/// # Safety
/// As [`some`], for writing.
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
