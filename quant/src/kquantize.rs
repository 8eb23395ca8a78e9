//! Quantizers of Q2_K .. Q6_K (layouts: see `kquants`).
//!
//! All five work the same way: fit each sub-block alone, quantize the sub-blocks' scales against
//! one f16 super-block scale, then round the values again with the scales as stored. The formats,
//! with and without an importance matrix, differ in how the fits are weighted.

use crate::bits::{encode_blocks, nearest_int, put_f16, sum_squares};
use crate::fit::{self, Affine, Search, Symmetric, side_by_side};
use crate::kquants::{q3_k_scale, q4_k_scale_min};
use crate::legacy::WEIGHTED;

/// Returns the weights of a sub-block: importance times a value's magnitude, softened by the mean
/// square `sigma2`.
fn weights<const N: usize>(importance: &[f32; N], sigma2: f32, x: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|l| importance[l] * (sigma2 + x[l] * x[l]).sqrt())
}

fn sum(w: &[f32]) -> f32 {
    w.iter().fold(0.0, |sum, w| sum + w)
}

/// Returns the largest element if it is above zero, else zero.
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |a, &v| if v > a { v } else { a })
}

/// Rounds values to levels `0..=max` by `x ~ scale * level - min`; a zero scale leaves the levels
/// unchanged.
fn round_affine(levels: &mut [u8], x: &[f32], scale: f32, min: f32, max: u8) {
    if scale != 0.0 {
        for (l, v) in levels.iter_mut().zip(x) {
            *l = nearest_int((v + min) / scale).clamp(0, i32::from(max)) as u8;
        }
    }
}

/// Rounds values to levels `0..2 * half` by `x ~ scale * (level - half)`; a zero scale leaves the
/// levels unchanged.
fn round_symmetric(levels: &mut [u8], x: &[f32], scale: f32, half: i32) {
    if scale != 0.0 {
        for (l, v) in levels.iter_mut().zip(x) {
            *l = (nearest_int(v / scale).clamp(-half, half - 1) + half) as u8;
        }
    }
}

/// Stores the low 2 bits of each level.
fn put_crumbs(qs: &mut [u8], levels: &[u8]) {
    for (i, l) in levels.iter().enumerate() {
        qs[i / 128 * 32 + i % 32] |= (l & 3) << (2 * (i % 128 / 32));
    }
}

/// Fits of a block's sub-blocks of `N` values, and the sum of each one's weights.
struct Fits<const N: usize, const S: usize> {
    fit: Affine<N, S>,
    weights: [f32; S],
}

/// Fits every sub-block with the weights that `weigh(j, x)` returns.
fn fit_affine<const N: usize, const S: usize>(
    x: &[f32; 256],
    max: u8,
    search: &Search,
    weigh: impl Fn(usize, &[f32; N]) -> [f32; N],
) -> Fits<N, S> {
    let x = groups(x);
    let w: [[f32; N]; S] = std::array::from_fn(|j| weigh(j, &x[j]));
    let fit = fit::affine_groups(max, &side_by_side(x), &side_by_side(&w), search);
    Fits {
        fit,
        weights: w.map(|w| sum(&w)),
    }
}

/// Splits a block into sub-blocks.
fn groups<const N: usize, const S: usize>(x: &[f32; 256]) -> &[[f32; N]; S] {
    const { assert!(N * S == 256) };
    x.as_chunks::<N>()
        .0
        .as_array()
        .unwrap_or_else(|| unreachable!("256 values are S groups of N"))
}

/// Quantizes scales (or minima) to `0..=max`, the largest mapping to `max`. Returns the super-block
/// scale and the levels.
fn by_largest<const S: usize>(x: &[f32; S], max: u8) -> (f32, [u8; S]) {
    let top = largest(x);
    let inverse = if top > 0.0 { f32::from(max) / top } else { 0.0 };
    (
        top / f32::from(max),
        x.map(|v| (nearest_int(inverse * v) as u8).min(max)),
    )
}

/// Returns the levels of all scales and of all minima, each with its super-block scale.
fn quantize_scales<const N: usize, const S: usize>(
    fits: &Fits<N, S>,
    max: u8,
    weighted: bool,
) -> ((f32, [u8; S]), (f32, [u8; S])) {
    let (scales, mins) = (&fits.fit.scales, &fits.fit.mins);
    if weighted {
        (
            fit::positive(max, scales, &fits.weights),
            fit::positive(max, mins, &fits.weights),
        )
    } else {
        (by_largest(scales, max), by_largest(mins, max))
    }
}

pub(crate) fn quantize_q2_k(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    const PLAIN: Search = Search {
        start: -0.5,
        step: 0.1,
        steps: 15,
        absolute: true,
    };
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let mut fits: Fits<16, 16> = match importance {
                None => fit_affine(x, 3, &PLAIN, |_, x| x.map(f32::abs)),
                Some(importance) => {
                    let sigma2 = sum_squares(x) / 256.0;
                    let importance = importance.as_chunks::<16>().0;
                    fit_affine(x, 3, &WEIGHTED, |j, x| weights(&importance[j], sigma2, x))
                }
            };
            let ((d, sc), (dmin, m)) = quantize_scales(&fits, 15, importance.is_some());
            let mut b = [0; 84];
            let (d, dmin) = (put_f16(&mut b, 80, d), put_f16(&mut b, 82, dmin));
            for (j, x) in x.as_chunks::<16>().0.iter().enumerate() {
                b[j] = sc[j] | m[j] << 4;
                round_affine(
                    &mut fits.fit.levels[j],
                    x,
                    d * f32::from(sc[j]),
                    dmin * f32::from(m[j]),
                    3,
                );
            }
            put_crumbs(&mut b[16..80], fits.fit.levels.as_flattened());
            b
        },
    );
}

/// The fits of Q4_K and Q5_K, their scales packed into 12 bytes, and the final levels.
struct FourOrFive {
    /// `d`, `dmin` and `scales` as stored.
    head: [u8; 16],
    levels: [[u8; 32]; 8],
}

fn four_or_five_bits(
    x: &[f32; 256],
    importance: Option<&[f32; 256]>,
    max: u8,
    plain: &Search,
) -> FourOrFive {
    let mut fits: Fits<32, 8> = match importance {
        None => fit_affine(x, max, plain, |_, x| {
            let rms = (sum_squares(x) / 32.0).sqrt();
            x.map(|v| rms + v.abs())
        }),
        Some(importance) => {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let importance = importance.as_chunks::<32>().0;
            fit_affine(x, max, &WEIGHTED, |j, x| weights(&importance[j], sigma2, x))
        }
    };
    let ((d, sc), (dmin, m)) = quantize_scales(&fits, 63, importance.is_some());
    let mut head = [0; 16];
    let (d, dmin) = (put_f16(&mut head, 0, d), put_f16(&mut head, 2, dmin));
    let s = &mut head[4..];
    for j in 0..8 {
        if j < 4 {
            s[j] = sc[j] & 63;
            s[j + 4] = m[j] & 63;
        } else {
            s[j + 4] = sc[j] & 15 | m[j] << 4;
            s[j - 4] |= sc[j] >> 4 << 6;
            s[j] |= m[j] >> 4 << 6;
        }
    }
    for (j, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let (sc, m) = q4_k_scale_min(s, j);
        round_affine(
            &mut fits.fit.levels[j],
            x,
            d * f32::from(sc),
            dmin * f32::from(m),
            max,
        );
    }
    FourOrFive {
        head,
        levels: fits.fit.levels,
    }
}

/// Stores the low 4 bits of each level of Q4_K and Q5_K.
fn put_nibbles(qs: &mut [u8], levels: &[u8]) {
    for (i, l) in levels.iter().enumerate() {
        qs[i / 64 * 32 + i % 32] |= (l & 15) << (4 * (i % 64 / 32));
    }
}

pub(crate) fn quantize_q4_k(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    const PLAIN: Search = Search {
        start: -1.0,
        step: 0.1,
        steps: 20,
        absolute: false,
    };
    encode_blocks(row, importance, out, |x, importance| {
        let fits = four_or_five_bits(x, importance, 15, &PLAIN);
        let mut b = [0; 144];
        b[..16].copy_from_slice(&fits.head);
        put_nibbles(&mut b[16..], fits.levels.as_flattened());
        b
    });
}

pub(crate) fn quantize_q5_k(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    const PLAIN: Search = Search {
        start: -0.5,
        step: 0.1,
        steps: 15,
        absolute: false,
    };
    encode_blocks(row, importance, out, |x, importance| {
        let fits = four_or_five_bits(x, importance, 31, &PLAIN);
        let levels = fits.levels.as_flattened();
        let mut b = [0; 176];
        b[..16].copy_from_slice(&fits.head);
        for (i, l) in levels.iter().enumerate() {
            b[16 + i % 32] |= (l >> 4) << (i / 32);
        }
        put_nibbles(&mut b[48..], levels);
        b
    });
}

/// Quantizes the scales of Q3_K to 6-bit levels (32 means zero) with their super-block scale.
fn q3_k_scales(scales: &[f32; 16], weights: Option<&[f32; 16]>) -> (f32, [u8; 16]) {
    if let Some(weights) = weights {
        return fit::symmetric(32, scales, weights);
    }
    let max = fit::extreme(scales);
    if max == 0.0 {
        return (0.0, [0; 16]);
    }
    let iscale = -32.0 / max;
    (
        1.0 / iscale,
        scales.map(|s| ((nearest_int(iscale * s) as i8).clamp(-32, 31) + 32) as u8),
    )
}

pub(crate) fn quantize_q3_k(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let sigma2 = 2.0 * sum_squares(x) / 256.0;
            let groups: &[[f32; 16]; 16] = groups(x);
            let mut weight_sums = [0.0; 16];
            let Symmetric { scales, mut levels } = match importance {
                None => fit::symmetric_by_moves(4, &side_by_side(groups)),
                Some(importance) => {
                    let importance = importance.as_chunks::<16>().0;
                    let w = std::array::from_fn(|j| weights(&importance[j], sigma2, &groups[j]));
                    weight_sums = w.map(|w| sum(&w));
                    fit::symmetric_groups(4, &side_by_side(groups), &side_by_side(&w))
                }
            };
            let (d, sc) = q3_k_scales(&scales, importance.map(|_| &weight_sums));
            let mut b = [0; 110];
            let d = put_f16(&mut b, 108, d);
            for (j, s) in sc.iter().enumerate() {
                b[96 + j % 8] |= (s & 15) << (4 * (j / 8));
                b[104 + j % 4] |= (s >> 4) << (2 * (j / 4));
            }
            for (j, x) in groups.iter().enumerate() {
                let scale = d * (f32::from(q3_k_scale(&b[96..108], j)) - 32.0);
                round_symmetric(&mut levels[j], x, scale, 4);
            }
            for (i, l) in levels.as_flattened().iter().enumerate() {
                b[i % 32] |= (l >> 2) << (i / 32);
            }
            put_crumbs(&mut b[32..96], levels.as_flattened());
            b
        },
    );
}

pub(crate) fn quantize_q6_k(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(
        row,
        importance,
        out,
        |x: &[f32; 256], importance: Option<&[f32; 256]>| {
            let groups: &[[f32; 16]; 16] = groups(x);
            let w = importance.map(|w| fit::side_by_side::<16, 16>(self::groups(w)));
            let x = side_by_side(groups);
            // importance is used unmodified, without the factor of the other formats
            let w = w.unwrap_or_else(|| x.map(|x| x.map(|v| v * v)));
            let Symmetric { scales, mut levels } = fit::symmetric_groups(32, &x, &w);
            let mut b = [0; 210];
            let max = fit::extreme(&scales);
            if max.abs() < fit::NEGLIGIBLE {
                return b;
            }
            let iscale = -128.0 / max;
            let d = put_f16(&mut b, 208, 1.0 / iscale);
            for (j, x) in groups.iter().enumerate() {
                let scale = nearest_int(iscale * scales[j]).min(127) as i8;
                b[192 + j] = scale as u8;
                round_symmetric(&mut levels[j], x, d * f32::from(scale), 32);
            }
            for (i, l) in levels.as_flattened().iter().enumerate() {
                b[i / 128 * 64 + i % 64] |= (l & 15) << (4 * (i % 128 / 64));
            }
            let high = levels
                .as_flattened()
                .iter()
                .map(|l| l >> 4)
                .collect::<Vec<_>>();
            put_crumbs(&mut b[128..192], &high);
            b
        },
    );
}
