//! Matrix products of prompts in f32, over panels converted on the fly.
//!
//! ```text
//! for a pair of strips (2 R rows)               one task
//!   for a slice of KC along k                   panel [strip][KC][R] f32, 32 KiB: stays in L1/L2
//!     for every tile of NT tokens               2 x NT vectors of sums in registers
//!       for k in slice: w = panel[k]; sums[t] += w * x[k][t]
//! ```
//! The sum over k of one output runs in the same order whatever the number of tokens: slices of KC
//! in order, within a slice k in order. So a result does not depend on how a prompt is cut into
//! batches.

use crate::formats::Float;
use crate::simd::Simd;

/// Slice of k held as one panel; a multiple of every block length.
///
/// The panels of two strips and the activations they are multiplied by stay in the L1 cache: `KC *
/// 4 * (2 * R + NT)` bytes, 44 KiB with R = 16 and NT = 12 of AVX-512, of the 48 KiB of the Xeon
/// where this was measured. With half of it, sums are read and written twice as often.
pub const KC: usize = 256;

/// One panel to multiply by all tokens of a step.
pub struct Tiles<'a> {
    /// `[MS][kc][R]`
    pub panel: *const f32,
    /// k in this slice, at most [`KC`].
    pub kc: usize,
    /// First k of the slice.
    pub k0: usize,
    /// k of the whole product.
    pub k: usize,
    /// Subtracted from every code of the panel, if that is not done yet.
    pub offset: i32,
    /// Activations in tiles, see [`pack_tokens`].
    pub x: *const f32,
    /// Number of tokens.
    pub m: usize,
    /// Sums of the slices so far, `[m, whole tiles][MS][R]`: contiguous in the cache, while rows of
    /// `y` are far apart.
    pub sums: *mut f32,
    /// `[m][n]`, at this panel's first row, with its row stride `n`; written by the last slice.
    /// Without it the sums stay where they are.
    pub y: Option<(*mut f32, usize)>,
    /// Rows of this panel that exist: up to `MS * R`.
    pub rows: usize,
    /// Packed weights that will be read next: kernels prefetch them.
    pub prefetch_next: [&'a [u8]; 2],
}

impl Tiles<'_> {
    /// Whether no slice follows.
    #[inline(always)]
    pub fn is_last(&self) -> bool {
        self.k0 + self.kc == self.k
    }

    /// Prefetches the part of `prefetch_next` that falls to `n` tokens from `t` on: a few lines at
    /// a time, since many at once would hold up all other loads.
    ///
    /// # Safety
    /// Of the instruction set only: prefetches are hints.
    #[inline(always)]
    pub unsafe fn prefetch<S: Simd>(&self, t: usize, n: usize) {
        for next in self.prefetch_next {
            let lines = next.len().div_ceil(64);
            for line in lines * t / self.m..lines * (t + n).min(self.m) / self.m {
                // SAFETY: the caller's promise.
                unsafe { S::prefetch(next.as_ptr().wrapping_add(64 * line)) }
            }
        }
    }
}

/// Width of the tile that starts with `left` tokens to go: the widest, or the narrowest that holds
/// them all.
pub const fn tile_width(left: usize, nt: usize) -> usize {
    if left <= 1 {
        1
    } else if left <= 4 && nt > 4 {
        4
    } else {
        nt
    }
}

/// Copies tokens `t..t + width` of `x` (`[m][k]`) to a tile `[k][width]`, zeros where there is no
/// token.
///
/// # Safety
/// `x` is `m * k` floats; `tile` has room for `k * width`.
#[inline(always)]
pub unsafe fn pack_tokens(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    width: usize,
    tile: *mut f32,
) {
    // SAFETY: reads are at tokens below m, writes below k * width.
    unsafe {
        for j in 0..width {
            let token = t + j;
            for i in 0..k {
                tile.add(i * width + j).write(if token < m {
                    x.add(token * k + i).read()
                } else {
                    0.0
                });
            }
        }
    }
}

/// Multiplies `MS` strips by every tile of tokens.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else.
#[inline(always)]
pub unsafe fn tiles<S: Simd, const MS: usize, const NT: usize>(a: &Tiles<'_>) {
    let mut t = 0;
    while t < a.m {
        // SAFETY: tile `t` starts at `t * k` floats, because all tiles before it are full.
        unsafe {
            let x = a.x.add(t * a.k);
            a.prefetch::<S>(t, NT);
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
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn tile<S: Simd, const MS: usize, const W: usize>(a: &Tiles<'_>, x: *const f32, t: usize) {
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
        store::<S, MS, W>(a, t, sums);
    }
}

/// Adds a tile's sums, those of `W` tokens from `t` on, to the sums of the slices before, and after
/// the last slice writes the output.
///
/// # Safety
/// As the fields of [`Tiles`] say; `t < a.m`.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
pub unsafe fn store<S: Simd, const MS: usize, const W: usize>(
    a: &Tiles<'_>,
    t: usize,
    mut sums: [[S::F; W]; MS],
) {
    // SAFETY: there are sums for whole tiles, MS * R for each token; row t of y has `rows` values
    // from this strip's first on.
    unsafe {
        let so_far = a.sums.add(t * MS * S::R);
        if a.k0 > 0 {
            for j in 0..W {
                for s in 0..MS {
                    let before = S::load(so_far.add((j * MS + s) * S::R));
                    sums[s][j] = S::add(before, sums[s][j]);
                }
            }
        }
        let Some((y, n)) = a.y.filter(|_| a.is_last()) else {
            for j in 0..W {
                for s in 0..MS {
                    S::store(so_far.add((j * MS + s) * S::R), sums[s][j]);
                }
            }
            return;
        };
        for j in 0..W {
            if t + j == a.m {
                break;
            }
            for s in 0..MS {
                let rows = a.rows.saturating_sub(s * S::R).min(S::R);
                let y = y.add((t + j) * n + s * S::R);
                if rows == S::R {
                    S::store(y, sums[s][j]);
                } else {
                    let mut lanes = [0f32; 16];
                    S::store(lanes.as_mut_ptr(), sums[s][j]);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), y, rows);
                }
            }
        }
    }
}

/// Converts k in `k0..k1` of a strip of floats to `[k1 - k0][R]` floats.
///
/// # Safety
/// `strip` holds the weights up to `k1`; `k0` is a multiple of the slice; `out` has the room.
#[inline(always)]
pub unsafe fn panel_float<S: Simd, E: Float>(
    strip: *const u8,
    k0: usize,
    k1: usize,
    out: *mut f32,
) {
    // SAFETY: rows k0..k1 of [k][R] elements are in the strip.
    unsafe {
        for k in k0..k1 {
            S::store(
                out.add((k - k0) * S::R),
                E::load::<S>(strip.add(k * E::BYTES * S::R)),
            );
        }
    }
}
