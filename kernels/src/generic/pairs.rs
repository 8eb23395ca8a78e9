//! Prompts against quantized weights, in 16-bit integers: twice the products an f32 multiply-add
//! makes, at 15 bits.
//!
//! Codes are widened to 16 bits once a panel, activations once a step, with one scale for each
//! token and slice of k. A pair of neighbouring k fills a 32-bit lane, and one instruction adds
//! both products of every lane. Each group of 16 or 32 leaves the integers once, with its own scale
//! (and minimum); the activations' scale follows at the end of the slice.
//!
//! ```text
//! panel   per strip: pairs [kc / 2][R], then per group scales [R] and, if the format has them,
//!         minima [R]
//! tile    per slice: pairs [kc / 2][W], sums of 16 values [kc / 16][W], sums of 32 [kc / 32][W],
//!         scales [W]
//! ```
//! Of four k the first pair holds 0 and 2, the second 1 and 3: what masking packed bytes yields.

use super::gemm::{KC, Tiles, store, tile_width};
use super::gemv::integers;
use crate::act::ACT_MAX;
use crate::formats::Format;
use crate::simd::Simd;

/// Words of a tile's slice of `kc`, for each token.
const fn slice_words(kc: usize) -> usize {
    kc / 2 + kc / 16 + kc / 32 + 1
}

/// Where a tile's slice has the negated sums of groups of `group` values, in words for each token.
const fn sums_at(kc: usize, group: usize) -> usize {
    if group == 16 {
        kc / 2
    } else {
        kc / 2 + kc / 16
    }
}

/// Writes tokens `t..t + width` of `x` (`[m][k]`) as a tile, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats with k a multiple of 32; `tile` has room for `k * width` words.
#[inline(always)]
pub(crate) unsafe fn pack_tokens<S: Simd>(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    width: usize,
    tile: *mut f32,
) {
    let mut k0 = 0;
    let mut tile = tile;
    while k0 < k {
        let kc = KC.min(k - k0);
        let pairs = tile.cast::<i32>();
        for j in 0..width {
            // SAFETY: tokens below m are read; each slice writes `slice_words(kc) * width` words,
            // and those of all slices are at most k * width.
            unsafe {
                let mut q = [0i32; KC];
                let mut scale = 0.0;
                if t + j < m {
                    scale = integers::<S>(x.add((t + j) * k + k0), &mut q[..kc], ACT_MAX);
                }
                for (i, q) in q[..kc].chunks_exact(4).enumerate() {
                    pairs
                        .add(2 * i * width + j)
                        .write((q[0] & 0xffff) | q[2] << 16);
                    pairs
                        .add((2 * i + 1) * width + j)
                        .write((q[1] & 0xffff) | q[3] << 16);
                }
                for group in [16, 32] {
                    let sums = tile.add(sums_at(kc, group) * width);
                    for (i, q) in q[..kc].chunks_exact(group).enumerate() {
                        sums.add(i * width + j).write(-q.iter().sum::<i32>() as f32);
                    }
                }
                tile.add((slice_words(kc) - 1) * width + j).write(scale);
            }
        }
        tile = tile.wrapping_add(slice_words(kc) * width);
        k0 += kc;
    }
}

/// Converts k in `k0..k1` of a packed strip to a panel of pairs.
///
/// # Safety
/// `strip` holds the blocks up to `k1`; `k0` and `k1` are multiples of the block length; `out` has
/// the room.
#[inline(always)]
pub(crate) unsafe fn panel<S: Simd, F: Format>(
    strip: *const u8,
    k0: usize,
    k1: usize,
    out: *mut f32,
) {
    let mut scales = out.wrapping_add((k1 - k0) / 2 * S::R);
    let mut out = out.cast::<u8>();
    // SAFETY: blocks k0 / K .. k1 / K are in the strip; each writes K / 2 vectors of pairs and K /
    // GROUP of scales and minima, together at most K vectors.
    unsafe {
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let block_scales = F::block_scales::<S>(block);
            for g in 0..F::K / 32 {
                widen::<S, F>(F::codes::<S, 0>(block, g), out);
                widen::<S, F>(F::codes::<S, 1>(block, g), out.add(32 * S::R));
                out = out.add(64 * S::R);
                for part in 0..32 / F::GROUP {
                    let (scale, min) =
                        F::scales::<S>(block_scales, block, g * (32 / F::GROUP) + part);
                    S::store(scales, scale);
                    scales = scales.add(S::R);
                    if F::MIN {
                        S::store(scales, min);
                        scales = scales.add(S::R);
                    }
                }
            }
        }
    }
}

/// Four vectors of codes to eight vectors of pairs.
#[inline(always)]
// an index keeps the vectors in registers, an iterator passes them by memory
#[allow(clippy::needless_range_loop)]
unsafe fn widen<S: Simd, F: Format>(codes: [S::I; 4], out: *mut u8) {
    // SAFETY: `out` has room for eight vectors by the caller's promise.
    unsafe {
        let (mask, offset) = (S::iset1(0x00ff_00ff), S::iset1(F::OFFSET * 0x0001_0001));
        for j in 0..4 {
            let (even, odd) = (S::and(codes[j], mask), S::and(S::shr(codes[j], 8), mask));
            S::store_bytes(out.add(2 * j * 4 * S::R), S::sub16(even, offset));
            S::store_bytes(out.add((2 * j + 1) * 4 * S::R), S::sub16(odd, offset));
        }
    }
}

/// Runs every tile of tokens over `MS` strips of a format with scales for every `GROUP`.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else.
#[inline(always)]
pub(crate) unsafe fn tiles<
    S: Simd,
    const GROUP: usize,
    const MIN: bool,
    const MS: usize,
    const NT: usize,
>(
    a: &Tiles<'_>,
) {
    let mut t = 0;
    while t < a.m {
        // SAFETY: tile `t` starts at `t * k` words, because all tiles before it are full.
        unsafe {
            let x = a.x.add(t * a.k);
            a.prefetch::<S>(t, NT);
            match tile_width(a.m - t, NT) {
                1 => tile::<S, GROUP, MIN, MS, 1>(a, x, t),
                4 => tile::<S, GROUP, MIN, MS, 4>(a, x, t),
                _ => tile::<S, GROUP, MIN, MS, NT>(a, x, t),
            }
        }
        t += NT;
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // see widen
unsafe fn tile<S: Simd, const GROUP: usize, const MIN: bool, const MS: usize, const W: usize>(
    a: &Tiles<'_>,
    x: *const f32,
    t: usize,
) {
    // vectors of one group's scale and minimum
    let per_group = 1 + MIN as usize;
    // SAFETY: panel, tile and output cover the indices used, by the promises of `Tiles`.
    unsafe {
        let mut sums = [[S::zero(); W]; MS];
        // slices before this one are whole
        let x = x.add(a.k0 / KC * slice_words(KC) * W);
        let fsums = x.add(sums_at(a.kc, GROUP) * W);
        // known to the processor, not to the compiler, which would unroll the loop until registers
        // run out
        let pairs = std::hint::black_box(GROUP / 2);
        for g in 0..a.kc / GROUP {
            let mut dots = [[S::iset1(0); W]; MS];
            for p in g * pairs..(g + 1) * pairs {
                let w: [S::I; MS] = std::array::from_fn(
                    #[inline(always)]
                    |s| S::load_bytes(a.panel.add((s * a.kc + p) * S::R).cast()),
                );
                for j in 0..W {
                    let xv = x.add(p * W + j).cast::<i32>();
                    for s in 0..MS {
                        dots[s][j] = S::dot2(dots[s][j], w[s], xv);
                    }
                }
            }
            for s in 0..MS {
                let scales = a.panel.add((s * a.kc + a.kc / 2 + g * per_group) * S::R);
                let scale = S::load(scales);
                for j in 0..W {
                    sums[s][j] = S::fma(scale, S::to_f(dots[s][j]), sums[s][j]);
                }
                if MIN {
                    let min = S::load(scales.add(S::R));
                    for j in 0..W {
                        sums[s][j] = S::fma(min, S::set1(fsums.add(g * W + j).read()), sums[s][j]);
                    }
                }
            }
        }
        for j in 0..W.min(a.m - t) {
            let scale = S::set1(x.add((slice_words(a.kc) - 1) * W + j).read());
            for s in 0..MS {
                store::<S, MS>(a, s, t + j, S::mul(sums[s][j], scale));
            }
        }
    }
}
