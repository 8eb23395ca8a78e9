//! Prompts: a matrix product in f32 over panels converted on the fly.
//!
//! ```text
//! for a pair of strips (2 R rows)               one task
//!   for a slice of KC along k                   panel [strip][KC][R] f32, 32 KiB: stays in L1/L2
//!     for every tile of NT tokens               2 x NT vectors of sums in registers
//!       for k in slice: w = panel[k]; sums[t] += w * x[k][t]
//! ```
//! The sum over k of one output runs in the same order whatever the number of tokens: slices of KC in order, within
//! a slice k in order. So a result does not depend on how a prompt is cut into batches.

use crate::formats::{Float, Format};
use crate::simd::Simd;

/// Slice of k held as one panel; a multiple of every block length.
pub(crate) const KC: usize = 256;

/// One panel against all tokens of a step.
pub(crate) struct Tiles {
    /// `[MS][kc][R]`
    pub(crate) panel: *const f32,
    /// k in this slice, at most [`KC`].
    pub(crate) kc: usize,
    /// First k of the slice.
    pub(crate) k0: usize,
    /// All k.
    pub(crate) k: usize,
    /// Activations in tiles, see [`pack_tokens`].
    pub(crate) x: *const f32,
    /// Tokens.
    pub(crate) m: usize,
    /// `[m][n]`, at this panel's first row.
    pub(crate) y: *mut f32,
    /// Row stride of `y`.
    pub(crate) n: usize,
    /// Rows of this panel that exist: up to `MS * R`.
    pub(crate) rows: usize,
}

/// Tokens in the tile that starts with `left` tokens to go: the widest, or the narrowest that holds them all.
pub(crate) const fn tile_width(left: usize, nt: usize) -> usize {
    if left <= 1 {
        1
    } else if left <= 4 && nt > 4 {
        4
    } else {
        nt
    }
}

/// Floats needed for `m` tokens of `k` values in tiles.
pub(crate) const fn packed_len(m: usize, k: usize, nt: usize) -> usize {
    m.div_ceil(nt) * nt * k
}

/// Copies tokens `t..t + width` of `x` (`[m][k]`) to a tile `[k][width]`, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats; `tile` has room for `k * width`.
#[inline(always)]
pub(crate) unsafe fn pack_tokens(x: *const f32, m: usize, k: usize, t: usize, width: usize, tile: *mut f32) {
    // SAFETY: reads are at tokens below m, writes below k * width.
    unsafe {
        for j in 0..width {
            let token = t + j;
            for i in 0..k {
                tile.add(i * width + j).write(if token < m { x.add(token * k + i).read() } else { 0.0 });
            }
        }
    }
}

/// Runs every tile of tokens over `MS` strips.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else.
#[inline(always)]
pub(crate) unsafe fn tiles<S: Simd, const MS: usize, const NT: usize>(a: &Tiles) {
    let mut t = 0;
    while t < a.m {
        // SAFETY: tile `t` starts at `t * k` floats, because all tiles before it are full.
        unsafe {
            let x = a.x.add(t * a.k);
            match tile_width(a.m - t, NT) {
                1 => tile::<S, MS, 1>(a, x, t),
                4 => tile::<S, MS, 4>(a, x, t),
                _ => tile::<S, MS, NT>(a, x, t),
            }
        }
        t += NT;
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // see unpack
unsafe fn tile<S: Simd, const MS: usize, const W: usize>(a: &Tiles, x: *const f32, t: usize) {
    // SAFETY: panel, tile and output cover the indices used, by the promises of `Tiles`.
    unsafe {
        let mut sums = [[S::zero(); W]; MS];
        let x = x.add(a.k0 * W);
        for k in 0..a.kc {
            let w: [S::F; MS] = std::array::from_fn(
                #[inline(always)]
                |s| S::load(a.panel.add((s * a.kc + k) * S::R)),
            );
            for j in 0..W {
                let xv = S::set1(x.add(k * W + j).read());
                for s in 0..MS {
                    sums[s][j] = S::fma(w[s], xv, sums[s][j]);
                }
            }
        }
        for j in 0..W.min(a.m - t) {
            for (s, sums) in sums.iter().enumerate() {
                let rows = a.rows.saturating_sub(s * S::R).min(S::R);
                let y = a.y.add((t + j) * a.n + s * S::R);
                if rows == S::R {
                    let sum = if a.k0 == 0 { sums[j] } else { S::add(S::load(y), sums[j]) };
                    S::store(y, sum);
                } else {
                    let mut lanes = [0f32; 16];
                    S::store(lanes.as_mut_ptr(), sums[j]);
                    for (r, lane) in lanes.iter().enumerate().take(rows) {
                        let y = y.add(r);
                        y.write(if a.k0 == 0 { *lane } else { y.read() + lane });
                    }
                }
            }
        }
    }
}

/// Converts k in `k0..k1` of a packed strip to `[k1 - k0][R]` floats.
///
/// # Safety
/// `strip` holds the blocks up to `k1`; `k0` and `k1` are multiples of the block length; `out` has the room.
#[inline(always)]
pub(crate) unsafe fn panel<S: Simd, F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    // SAFETY: blocks k0 / K .. k1 / K are in the strip, and each writes K * R floats.
    unsafe {
        let mut out = out;
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let head = F::head::<S>(block);
            for g in 0..F::K / 32 {
                let first = F::scales::<S>(head, block, if F::GROUP == 32 { g } else { 2 * g });
                unpack::<S, F>(F::codes::<S, 0>(block, g), first, out);
                let second = if F::GROUP == 32 { first } else { F::scales::<S>(head, block, 2 * g + 1) };
                unpack::<S, F>(F::codes::<S, 1>(block, g), second, out.add(16 * S::R));
                out = out.add(32 * S::R);
            }
        }
    }
}

/// Four vectors of codes to sixteen vectors of floats.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the vectors in registers, an iterator passes them by memory
unsafe fn unpack<S: Simd, F: Format>(codes: [S::I; 4], (scale, min): (S::F, S::F), out: *mut f32) {
    // SAFETY: `out` has room for 16 R floats by the caller's promise.
    unsafe {
        let (byte, offset) = (S::iset1(255), S::iset1(F::OFFSET));
        for j in 0..4 {
            for b in 0..4 {
                let mut code = S::and(S::shr(codes[j], 8 * b as u32), byte);
                if F::OFFSET != 0 {
                    code = S::isub(code, offset);
                }
                let w = S::mul(scale, S::to_f(code));
                let w = if F::MIN { S::sub(w, min) } else { w };
                S::store(out.add((4 * j + b) * S::R), w);
            }
        }
    }
}

/// As [`panel`], for float weights.
///
/// # Safety
/// As [`panel`].
#[inline(always)]
pub(crate) unsafe fn panel_float<S: Simd, E: Float>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    // SAFETY: rows k0..k1 of [k][R] elements are in the strip.
    unsafe {
        for k in k0..k1 {
            S::store(out.add((k - k0) * S::R), E::load::<S>(strip.add(k * E::BYTES * S::R)));
        }
    }
}
