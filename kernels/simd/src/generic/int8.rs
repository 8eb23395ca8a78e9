//! Products of prompts with quantized weights in 8-bit integers: twice the multiply-adds per
//! instruction of 16-bit ones.
//!
//! Codes stay bytes, activations become signed bytes with a scale for every 32, which depends on
//! the token alone. Four neighbouring k fill a 32-bit lane. All sums of integers are exact; each
//! group of 16 or 32 leaves them once, with the product of both scales, and is added in f32 in the
//! order of k.
//!
//! ```text
//! panel   per strip: codes [kc / 4][R], then per group scales [R] and, if the format has them,
//!         minima [R]
//! tile    per slice: bytes [kc / 4][W], scales [kc / 32][W], negated sums of integers over 16
//!         [kc / 16][W] and over 32 [kc / 32][W], the same of what they stand for
//! ```
//! No product or sum of the integers overflows: activations are at most 127 in magnitude, so that
//! a pair of products with codes up to `c` is at most `2 * 127 * c`, and [`pairs_at_once`] adds no
//! more of them than [`ByteDots::MAX_SUM`] holds. In 32 bits a group is far from the end:
//! `32 * 127 * 255` is about 2^20.

use super::gemm::{KC, Tiles, store, tile_width};
use super::gemv::integers;
use crate::act::ACT_GROUP;
use crate::formats::Format;
use crate::simd::ByteDots;

/// Largest integer that an activation becomes; -128 does not occur.
pub const BYTE_MAX: f32 = 127.0;

/// Words of a tile's slice of `kc`, for each token.
const fn slice_words(kc: usize) -> usize {
    sums_at(kc, 32, true) + kc / 32
}

/// Offset of the negated sums of `group` integers, or of their values, in a tile's slice, in words
/// for each token.
const fn sums_at(kc: usize, group: usize, of_values: bool) -> usize {
    let integers = kc / 4 + kc / 32;
    let all = kc / 16 + kc / 32;
    integers + if of_values { all } else { 0 } + if group == 32 { kc / 16 } else { 0 }
}

/// Number of dot products of four codes, up to `largest`, that are added before sums must be
/// widened: 0 if not even one may be.
pub const fn pairs_at_once<S: ByteDots>(largest: u8, group: usize) -> usize {
    let fit = S::MAX_SUM / (2 * 127 * largest as i32);
    let mut n = group / 4;
    while n as i32 > fit {
        n /= 2;
    }
    n
}

/// Writes tokens `t..t + width` of `x` (`[m][k]`) as a tile, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats with k a multiple of 32; `tile` has room for `k * width / 2` words.
#[inline(always)]
pub unsafe fn pack_tokens<S: ByteDots>(
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
        for j in 0..width {
            for g in 0..kc / ACT_GROUP {
                let mut q = [0i32; ACT_GROUP];
                let mut scale = 0.0;
                // SAFETY: tokens below m are read; each slice writes `slice_words(kc) * width`
                // words, and those of all slices are at most half of k * width.
                unsafe {
                    if t + j < m {
                        let x = x.add((t + j) * k + k0 + g * ACT_GROUP);
                        scale = integers::<S>(x, &mut q, BYTE_MAX);
                    }
                    for (i, q) in q.chunks_exact(4).enumerate() {
                        let bytes = [q[0] as i8, q[1] as i8, q[2] as i8, q[3] as i8];
                        let word = i32::from_le_bytes(bytes.map(|b| b as u8));
                        let at = (g * ACT_GROUP / 4 + i) * width + j;
                        tile.cast::<i32>().add(at).write(word);
                    }
                    tile.add((kc / 4 + g) * width + j).write(scale);
                    for group in [16, 32] {
                        for (i, q) in q.chunks_exact(group).enumerate() {
                            let sum = -q.iter().sum::<i32>();
                            let at = (g * (ACT_GROUP / group) + i) * width + j;
                            let integers = tile.add(sums_at(kc, group, false) * width + at);
                            integers.cast::<i32>().write(sum);
                            let values = tile.add(sums_at(kc, group, true) * width + at);
                            values.write(scale * sum as f32);
                        }
                    }
                }
            }
        }
        tile = tile.wrapping_add(slice_words(kc) * width);
        k0 += kc;
    }
}

/// Converts k in `k0..k1` of a packed strip to a panel of bytes.
///
/// # Safety
/// `strip` holds the blocks up to `k1`; `k0` and `k1` are multiples of the block length; `out` has
/// the room.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the vectors in registers
pub unsafe fn panel<S: ByteDots, F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let vector = 4 * S::R;
    let mut scales = out.wrapping_add((k1 - k0) / 4 * S::R);
    let mut out = out.cast::<u8>();
    // SAFETY: blocks k0 / K .. k1 / K are in the strip; each writes K / 4 vectors of codes and K /
    // GROUP of scales and minima, together less than K / 2 vectors.
    unsafe {
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let block_scales = F::block_scales::<S>(block);
            for g in 0..F::K / 32 {
                let halves = [F::codes::<S, 0>(block, g), F::codes::<S, 1>(block, g)];
                for half in 0..2 {
                    for j in 0..4 {
                        S::store_bytes(out.add((4 * half + j) * vector), halves[half][j]);
                    }
                }
                out = out.add(8 * vector);
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

/// Runs every tile of tokens over `MS` strips of a format with scales for every `GROUP`, adding
/// `DOTS` dot products before sums are widened.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else.
#[inline(always)]
pub unsafe fn tiles<
    S: ByteDots,
    const GROUP: usize,
    const MIN: bool,
    const DOTS: usize,
    const MS: usize,
    const NT: usize,
>(
    a: &Tiles<'_>,
) {
    let mut t = 0;
    while t < a.m {
        // SAFETY: tile `t` starts at `t * k / 2` words, because all tiles before it are full.
        unsafe {
            let x = a.x.add(t * a.k / 2);
            a.prefetch::<S>(t, NT);
            match tile_width(a.m - t, NT) {
                1 => tile::<S, GROUP, MIN, DOTS, MS, 1>(a, x, t),
                4 => tile::<S, GROUP, MIN, DOTS, MS, 4>(a, x, t),
                _ => tile::<S, GROUP, MIN, DOTS, MS, NT>(a, x, t),
            }
        }
        t += NT;
    }
}

#[inline(always)]
unsafe fn tile<
    S: ByteDots,
    const GROUP: usize,
    const MIN: bool,
    const DOTS: usize,
    const MS: usize,
    const W: usize,
>(
    a: &Tiles<'_>,
    x: *const f32,
    t: usize,
) {
    // SAFETY: panel, tile and output cover the indices used, by the promises of `Tiles`.
    unsafe {
        let mut sums = [[S::zero(); W]; MS];
        // slices before this one are whole
        let x = x.add(a.k0 / KC * slice_words(KC) * W);
        for g in 0..a.kc / GROUP {
            if DOTS == GROUP / 4 {
                group::<S, GROUP, MIN, DOTS, MS, W, W>(a, x, g, 0, &mut sums);
            } else {
                // each has two sums, the narrow and the wide one, for which registers are too few
                let mut from = 0;
                while from + 2 <= W {
                    group::<S, GROUP, MIN, DOTS, MS, W, 2>(a, x, g, from, &mut sums);
                    from += 2;
                }
                if from < W {
                    group::<S, GROUP, MIN, DOTS, MS, W, 1>(a, x, g, from, &mut sums);
                }
            }
        }
        store::<S, MS, W>(a, t, sums);
    }
}

/// `turns`, hidden from the compiler for longer loops, which it would unroll until registers run
/// out.
#[inline(always)]
fn not_unrolled(turns: usize) -> usize {
    if turns > 2 {
        std::hint::black_box(turns)
    } else {
        turns
    }
}

/// Adds a group's products with tokens `from..from + N` of a tile.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn group<
    S: ByteDots,
    const GROUP: usize,
    const MIN: bool,
    const DOTS: usize,
    const MS: usize,
    const W: usize,
    const N: usize,
>(
    a: &Tiles<'_>,
    x: *const f32,
    g: usize,
    from: usize,
    sums: &mut [[S::F; W]; MS],
) {
    // vectors of one group's scale and minimum, and stride from one strip's panel to the next
    let per_group = 1 + MIN as usize;
    let strip = a.kc / 2;
    let dots = not_unrolled(DOTS);
    // SAFETY: as `tile`.
    unsafe {
        let (at, values) = (sums_at(a.kc, GROUP, false), sums_at(a.kc, GROUP, true));
        let isums = x.add((at + g) * W + from).cast::<i32>();
        // the format's offset times the negated sum of the group's activations
        let offset = |j: usize| {
            if MIN {
                S::iset1(0)
            } else {
                S::iset1(a.offset * isums.add(j).read())
            }
        };
        let mut wide = [[S::iset1(0); N]; MS];
        for part in 0..GROUP / 4 / DOTS {
            let first = g * (GROUP / 4) + part * DOTS;
            let mut narrow = [[S::begin(S::iset1(0)); N]; MS];
            for j in 0..N {
                for s in 0..MS {
                    narrow[s][j] = S::begin(if part == 0 { offset(j) } else { wide[s][j] });
                }
            }
            for p in first..first + dots {
                let w: [S::I; MS] = std::array::from_fn(
                    #[inline(always)]
                    |s| S::load_bytes(a.panel.add((s * strip + p) * S::R).cast()),
                );
                for j in 0..N {
                    let xv = x.add(p * W + from + j).cast::<i32>();
                    for s in 0..MS {
                        narrow[s][j] = S::dot_bytes(narrow[s][j], w[s], xv);
                    }
                }
            }
            for j in 0..N {
                for s in 0..MS {
                    let so_far = if part == 0 { offset(j) } else { wide[s][j] };
                    wide[s][j] = S::end(so_far, narrow[s][j]);
                }
            }
        }
        let xs = x.add((a.kc / 4 + g * GROUP / ACT_GROUP) * W + from);
        let fsums = x.add((values + g) * W + from);
        for s in 0..MS {
            let scales = a.panel.add((s * strip + a.kc / 4 + g * per_group) * S::R);
            let scale = S::load(scales);
            for j in 0..N {
                let both = S::mul(scale, S::set1(xs.add(j).read()));
                sums[s][from + j] = S::fma(both, S::to_f(wide[s][j]), sums[s][from + j]);
            }
            if MIN {
                let min = S::load(scales.add(S::R));
                for j in 0..N {
                    let sum = S::set1(fsums.add(j).read());
                    sums[s][from + j] = S::fma(min, sum, sums[s][from + j]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portable::Portable;

    /// Checks the sums added at once, for the largest codes and activations.
    fn hold<S: ByteDots>() {
        for largest in [3, 7, 15, 24, 31, 63, 241, 255u8] {
            for (group, x) in [(16, 127i8), (16, -127), (32, 127), (32, -127)] {
                let n = pairs_at_once::<S>(largest, group);
                let word = i32::from_le_bytes([x as u8; 4]);
                let mut sums = [0i32; 16];
                // SAFETY: the caller's instruction set is there; 16 lanes have room.
                unsafe {
                    let so_far = S::iset1(5);
                    let codes = S::iset1(i32::from_le_bytes([largest; 4]));
                    let mut narrow = S::begin(so_far);
                    for _ in 0..n {
                        narrow = S::dot_bytes(narrow, codes, &word);
                    }
                    S::store_bytes(sums.as_mut_ptr().cast(), S::end(so_far, narrow));
                }
                let expected = 5 + 4 * n as i32 * i32::from(largest) * i32::from(x);
                assert_eq!(sums[..S::R], [expected; 16][..S::R], "codes to {largest}");
            }
        }
    }

    #[test]
    fn no_sum_overflows() {
        hold::<Portable>();
        #[cfg(target_arch = "x86_64")]
        {
            use crate::simd::tests::{has_avx2, has_avx512};
            use crate::x86::avx2::Avx2;
            use crate::x86::avx512::Avx512;
            if has_avx2() {
                hold::<Avx2<false>>();
            }
            if has_avx2() && is_x86_feature_detected!("avxvnni") {
                hold::<Avx2<true>>();
            }
            if has_avx512() {
                hold::<Avx512>();
            }
            let at_once = pairs_at_once::<Avx2<false>>;
            assert_eq!([15, 31, 63, 241].map(|c| at_once(c, 32)), [8, 4, 2, 0]);
        }
    }
}
