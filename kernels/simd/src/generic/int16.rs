//! Products of prompts with quantized weights in 16-bit integers: twice the multiply-adds per
//! instruction of f32, at 15 bits.
//!
//! Codes are widened to 16 bits once a panel, activations once a step, with one scale for each
//! token and slice of k. A pair of neighbouring k fills a 32-bit lane, and one instruction adds
//! both products of every lane. Each group of 16 or 32 is converted to float once, with its own
//! scale (and minimum); the activations' scale follows at the end of the slice.
//!
//! ```text
//! panel   per strip: pairs [kc / 2][R], then per group scales [R], if the format has them minima
//!         [R], and for Winograd's products [R] of pairs
//! tile    per slice: pairs [kc / 2][W], sums of 16 values [kc / 16][W], sums of 32 [kc / 32][W],
//!         scales [W], and for Winograd's products of pairs, [kc / 16][W] and [kc / 32][W]
//! ```
//! Of four k the first pair holds 0 and 2, the second 1 and 3: the order that masking packed bytes
//! yields.
//!
//! Where additions are cheaper than products, some tokens of a tile take half as many products by
//! Winograd's inner products (see [`dots`]). Differences fit 16 bits because codes stay within a
//! byte: [`ACT_MAX`] and 128 are 32,767.
//!
//! Formats whose scales are whole numbers times a unit can have them multiplied into the codes (see
//! [`folded`]).

pub mod dots;
pub mod folded;

use super::batch::{Decoded, Panel};
use super::gemm::{KC, Tiles, store, tile_width};
use super::gemv::integers;
use crate::act::ACT_MAX;
use crate::formats::Format;
use crate::simd::Simd;
use dots::{NEIGHBOURS, Rows, add_by_winograd, add_dots, winograd_rows};

/// Words of a tile's slice of `kc`, for each token.
const fn slice_words<S: Simd>(kc: usize) -> usize {
    let sums = kc / 16 + kc / 32;
    kc / 2 + sums + 1 + if S::WINOGRAD { sums } else { 0 }
}

/// Offset of the scales in a tile's slice, in words for each token.
const fn scales_at(kc: usize) -> usize {
    kc / 2 + kc / 16 + kc / 32
}

/// Offset of the negated sums of groups of `group` values in a tile's slice, in words for each
/// token.
const fn sums_at(kc: usize, group: usize) -> usize {
    if group == 16 {
        kc / 2
    } else {
        kc / 2 + kc / 16
    }
}

/// Offset of the products of pairs of groups of `group` values in a tile's slice, in words for each
/// token.
const fn products_at(kc: usize, group: usize) -> usize {
    scales_at(kc) + 1 + sums_at(kc, group) - kc / 2
}

/// Vectors of a panel for one group, beside the codes.
const fn per_group<S: Simd>(min: bool) -> usize {
    1 + min as usize + S::WINOGRAD as usize
}

/// Writes tokens `t..t + width` of `x` (`[m][k]`) as a tile, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats with k a multiple of 32; `tile` has room for `k * width` words.
#[inline(always)]
pub unsafe fn pack_tokens<S: Simd>(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    width: usize,
    tile: *mut f32,
) {
    // SAFETY: passed on.
    unsafe { pack_up_to::<S>(ACT_MAX, (x, m, k), t, width, tile) }
}

/// As [`pack_tokens`], in integers up to `most`.
///
/// # Safety
/// As [`pack_tokens`].
#[inline(always)]
unsafe fn pack_up_to<S: Simd>(
    most: f32,
    (x, m, k): (*const f32, usize, usize),
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
                    scale = integers::<S>(x.add((t + j) * k + k0), &mut q[..kc], most);
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
                    let products = pairs.add(products_at(kc, group) * width);
                    for (i, q) in q[..kc].chunks_exact(group).enumerate() {
                        sums.add(i * width + j).write(-q.iter().sum::<i32>() as f32);
                        if S::WINOGRAD {
                            products.add(i * width + j).write(products_of_pairs(q));
                        }
                    }
                }
                tile.add(scales_at(kc) * width + j).write(scale);
            }
        }
        tile = tile.wrapping_add(slice_words::<S>(kc) * width);
        k0 += kc;
    }
}

/// The sum of the products of neighbours.
#[inline(always)]
fn products_of_pairs(q: &[i32]) -> i32 {
    let products = q.chunks_exact(2).map(|pair| pair[0] * pair[1]);
    products.fold(0, i32::wrapping_add)
}

/// Converts k in `k0..k1` of a packed strip to a panel of pairs.
///
/// # Safety
/// `strip` holds the blocks up to `k1`; `k0` and `k1` are multiples of the block length; `out` has
/// the room.
#[inline(always)]
pub unsafe fn panel<S: Simd, F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    // differences of codes and activations fit 16 bits
    const { assert!(F::OFFSET <= 128 && F::LARGEST as i32 - F::OFFSET <= 128) };
    let mut scales = out.wrapping_add((k1 - k0) / 2 * S::R);
    let mut out = out.cast::<u8>();
    // SAFETY: blocks k0 / K .. k1 / K are in the strip; each writes K / 2 vectors of pairs and K /
    // GROUP of scales, minima and products, together at most K vectors.
    unsafe {
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let block_scales = F::block_scales::<S>(block);
            for g in 0..F::K / 32 {
                let halves = [
                    widen::<S>(F::codes::<S, 0>(block, g), F::OFFSET, None, out),
                    widen::<S>(
                        F::codes::<S, 1>(block, g),
                        F::OFFSET,
                        None,
                        out.add(32 * S::R),
                    ),
                ];
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
                    if S::WINOGRAD {
                        let products = if F::GROUP == 16 {
                            halves[part]
                        } else {
                            S::iadd(halves[0], halves[1])
                        };
                        S::store_bytes(scales.cast(), products);
                        scales = scales.add(S::R);
                    }
                }
            }
        }
    }
}

/// Converts a decoded panel, of a format without minima and with scales for every `group`, to a
/// panel of pairs of `k` weights a row, less `offset`.
///
/// # Safety
/// The first strip of `from` has them; `out` has the room.
#[inline(always)]
pub unsafe fn panel_of_codes<S: Simd>(
    from: *const Panel,
    k: usize,
    group: usize,
    offset: i32,
    out: *mut f32,
) {
    let mut scales = out.wrapping_add(k / 2 * S::R);
    let mut out = out.cast::<u8>();
    // SAFETY: as `panel`.
    unsafe {
        let mut decoded = Decoded::<S>::of(from);
        for _ in 0..k / group {
            let mut products = S::iset1(0);
            for _ in 0..group / 16 {
                products = S::iadd(products, widen::<S>(decoded.codes(), offset, None, out));
                out = out.add(32 * S::R);
            }
            S::store(scales, decoded.scale());
            scales = scales.add(S::R);
            if S::WINOGRAD {
                S::store_bytes(scales.cast(), products);
                scales = scales.add(S::R);
            }
        }
    }
}

/// Widens four vectors of codes to eight vectors of pairs, times `scale` in both halves of lanes if
/// it is given, and returns the products of neighbouring pairs if Winograd's inner products need
/// them.
#[inline(always)]
// an index keeps the vectors in registers, an iterator passes them by memory
#[allow(clippy::needless_range_loop)]
unsafe fn widen<S: Simd>(codes: [S::I; 4], offset: i32, scale: Option<S::I>, out: *mut u8) -> S::I {
    // SAFETY: `out` has room for eight vectors by the caller's promise.
    unsafe {
        let (mask, offset) = (S::iset1(0x00ff_00ff), S::iset1(offset * 0x0001_0001));
        let mut products = S::iset1(0);
        for j in 0..4 {
            let (even, odd) = (S::and(codes[j], mask), S::and(S::shr(codes[j], 8), mask));
            let (mut even, mut odd) = (S::sub16(even, offset), S::sub16(odd, offset));
            if let Some(scale) = scale {
                (even, odd) = (S::mul16(even, scale), S::mul16(odd, scale));
            }
            S::store_bytes(out.add(2 * j * 4 * S::R), even);
            S::store_bytes(out.add((2 * j + 1) * 4 * S::R), odd);
            if S::WINOGRAD {
                products = S::dot2(products, even, odd);
            }
        }
        products
    }
}

/// Multiplies `MS` strips of a format with scales for every `GROUP` by every tile of tokens.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else.
#[inline(always)]
pub unsafe fn tiles<
    S: Simd,
    const GROUP: usize,
    const MIN: bool,
    const MS: usize,
    const NT: usize,
>(
    a: &Tiles<'_>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if S::WINOGRAD && S::prefers_winograd() {
            all_tiles::<S, GROUP, MIN, false, MS, NT, true>(a, GROUP);
        } else {
            all_tiles::<S, GROUP, MIN, false, MS, NT, false>(a, GROUP);
        }
    }
}

/// Multiplies by every tile: panels that are `FOLDED` have a scale for every `len` weights, others
/// for every `GROUP`, which is `len`.
///
/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn all_tiles<
    S: Simd,
    const GROUP: usize,
    const MIN: bool,
    const FOLDED: bool,
    const MS: usize,
    const NT: usize,
    const WINOGRAD: bool,
>(
    a: &Tiles<'_>,
    len: usize,
) {
    let mut t = 0;
    while t < a.m {
        // SAFETY: tile `t` starts at `t * k` words, because all tiles before it are full.
        unsafe {
            let x = a.x.add(t * a.k);
            a.prefetch::<S>(t, NT);
            match tile_width(a.m - t, NT) {
                1 => tile::<S, GROUP, MIN, FOLDED, MS, 1, WINOGRAD>(a, x, t, len),
                4 => tile::<S, GROUP, MIN, FOLDED, MS, 4, WINOGRAD>(a, x, t, len),
                _ => tile::<S, GROUP, MIN, FOLDED, MS, NT, WINOGRAD>(a, x, t, len),
            }
        }
        t += NT;
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // see widen
unsafe fn tile<
    S: Simd,
    const GROUP: usize,
    const MIN: bool,
    const FOLDED: bool,
    const MS: usize,
    const W: usize,
    const WINOGRAD: bool,
>(
    a: &Tiles<'_>,
    x: *const f32,
    t: usize,
    len: usize,
) {
    let len = if FOLDED { len } else { GROUP };
    let per_group = per_group::<S>(MIN && !FOLDED);
    // SAFETY: panel, tile and output cover the indices used, by the promises of `Tiles`.
    unsafe {
        let mut sums = [[S::zero(); W]; MS];
        // slices before this one are whole
        let x = x.add(a.k0 / KC * slice_words::<S>(KC) * W);
        // hidden from the compiler, which would unroll the loops over a group until registers run
        // out
        let pairs = std::hint::black_box(len / 2);
        for g in 0..a.kc / len {
            let scales: [*const f32; MS] = std::array::from_fn(
                #[inline(always)]
                |s| a.panel.add((s * a.kc + a.kc / 2 + g * per_group) * S::R),
            );
            let mut dots = [[S::iset1(0); W]; MS];
            let panels: [*const f32; MS] = std::array::from_fn(
                #[inline(always)]
                |s| a.panel.add((s * a.kc + g * pairs) * S::R),
            );
            let of_group = Rows::of_tile(x.add(g * pairs * W).cast(), W);
            if WINOGRAD {
                let group = if FOLDED { 32 } else { GROUP };
                let tokens = x.add((products_at(a.kc, group) + g * len / group) * W);
                let rows = scales.map(
                    #[inline(always)]
                    |scales| scales.wrapping_add((per_group - 1) * S::R),
                );
                begin_winograd::<S, MS, W>(&mut dots, rows, tokens, len / group);
                add_by_winograd::<S, MS, W>(&mut dots, panels, of_group, NEIGHBOURS, pairs / 2);
            } else {
                add_dots::<S, MS, W>(&mut dots, panels, of_group, pairs);
            }
            for s in 0..MS {
                let scale = S::load(scales[s]);
                for j in 0..W {
                    sums[s][j] = S::fma(scale, S::to_f(dots[s][j]), sums[s][j]);
                }
            }
            if MIN && !FOLDED {
                let mins = scales.map(
                    #[inline(always)]
                    |scales| scales.wrapping_add(S::R),
                );
                subtract_mins::<S, GROUP, MS, W>(a, x, g, mins, &mut sums);
            }
        }
        if MIN && FOLDED {
            let first = a.kc / 2 + a.kc / len * per_group;
            for g in 0..a.kc / GROUP {
                let mins: [*const f32; MS] = std::array::from_fn(
                    #[inline(always)]
                    |s| a.panel.add((s * a.kc + first + g) * S::R),
                );
                subtract_mins::<S, GROUP, MS, W>(a, x, g, mins, &mut sums);
            }
        }
        for j in 0..W {
            let scale = S::set1(x.add(scales_at(a.kc) * W + j).read());
            for s in 0..MS {
                sums[s][j] = S::mul(sums[s][j], scale);
            }
        }
        store::<S, MS, W>(a, t, sums);
    }
}

/// Begins sums of Winograd's inner products with the products of pairs of rows, and of tokens in so
/// many `groups`.
///
/// # Safety
/// As [`tile`]; `rows` are `R` products of each strip, `tokens` `W` of each group.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // see widen
unsafe fn begin_winograd<S: Simd, const MS: usize, const W: usize>(
    dots: &mut [[S::I; W]; MS],
    rows: [*const f32; MS],
    tokens: *const f32,
    groups: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for s in 0..MS {
            let rows = S::load_bytes(rows[s].cast());
            for j in 0..winograd_rows(W) {
                dots[s][j] = rows;
                for i in 0..groups {
                    let products = tokens.add(i * W + j).cast::<i32>().read();
                    dots[s][j] = S::iadd(dots[s][j], S::iset1(products));
                }
            }
        }
    }
}

/// Subtracts the minima of group `g` of every strip, times the sums of its values.
///
/// # Safety
/// As [`tile`]; `mins` are `R` minima of each strip.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // see widen
unsafe fn subtract_mins<S: Simd, const GROUP: usize, const MS: usize, const W: usize>(
    a: &Tiles<'_>,
    x: *const f32,
    g: usize,
    mins: [*const f32; MS],
    sums: &mut [[S::F; W]; MS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let negated = x.add((sums_at(a.kc, GROUP) + g) * W);
        for s in 0..MS {
            let min = S::load(mins[s]);
            for j in 0..W {
                sums[s][j] = S::fma(min, S::set1(negated.add(j).read()), sums[s][j]);
            }
        }
    }
}

#[cfg(test)]
pub mod tests;
