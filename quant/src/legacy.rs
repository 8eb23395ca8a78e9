//! Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1: blocks of 32 values with their own f16 scale.
//!
//! | type | bytes | value `j` |
//! |---|---|---|
//! | Q4_0 | `d` f16, `qs` 16 | `(q - 8) * d` |
//! | Q4_1 | `d` f16, `m` f16, `qs` 16 | `q * d + m` |
//! | Q5_0 | `d` f16, `qh` u32, `qs` 16 | `(q - 16) * d` |
//! | Q5_1 | `d` f16, `m` f16, `qh` u32, `qs` 16 | `q * d + m` |
//! | Q8_0 | `d` f16, `qs` i8 x 32 | `q * d` |
//! | Q8_1 | `d` f16, `s` f16 = `d * sum(q)`, `qs` i8 x 32 | `q * d` |
//!
//! `qs[j % 16]` has the low 4 bits of value `j`: bits 0..4 for `j < 16`, bits 4..8 otherwise. Bit
//! `j` of `qh` is the fifth bit of value `j`.

use crate::bits::{encode_blocks, f16_at, nibble32, put_f16, round_away, sum_squares, u32_at};
use crate::fit;
use crate::format::{Format, block_format};

/// Returns the 5 bits of value `j`: `qh` starts at byte `at`, `qs` follows it.
fn five_bits(b: &[u8], at: usize, j: usize) -> u8 {
    nibble32(&b[at + 4..], j) | ((u32_at(b, at) >> j & 1) as u8) << 4
}

pub(crate) fn decode_q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (j, y) in y.iter_mut().enumerate() {
        *y = (f32::from(nibble32(&b[2..], j)) - 8.0) * d;
    }
}

pub(crate) fn decode_q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for (j, y) in y.iter_mut().enumerate() {
        *y = f32::from(nibble32(&b[4..], j)) * d + m;
    }
}

pub(crate) fn decode_q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (j, y) in y.iter_mut().enumerate() {
        *y = (f32::from(five_bits(b, 2, j)) - 16.0) * d;
    }
}

pub(crate) fn decode_q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for (j, y) in y.iter_mut().enumerate() {
        *y = f32::from(five_bits(b, 4, j)) * d + m;
    }
}

pub(crate) fn decode_q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

/// Decodes Q8_1; `s` is for dot products only.
pub(crate) fn decode_q8_1(b: &[u8; 36], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[4..]) {
        *y = f32::from(q as i8) * d;
    }
}

/// Encodes the blocks of a row; with an importance matrix a value's weight is
/// `importance * sqrt(mean(row^2) + x^2)`.
fn encode_weighted<const B: usize>(
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; 32], Option<&[f32; 32]>) -> [u8; B],
) {
    let sigma2 = sum_squares(row) / row.len() as f32;
    encode_blocks(row, importance, out, |x, importance: Option<&[f32; 32]>| {
        let weights =
            importance.map(|w| std::array::from_fn(|j| w[j] * (sigma2 + x[j] * x[j]).sqrt()));
        encode(x, weights.as_ref())
    });
}

/// The search grid for a scale and minimum under importance weights, shared with the K-quants.
pub(crate) const WEIGHTED: fit::Search = fit::Search {
    start: -0.9,
    step: 0.05,
    steps: 36,
    absolute: false,
};

/// Rounds to levels `0..2 * half` around `half`, scaled so that the value of largest magnitude
/// becomes exactly level 0.
fn symmetric_levels(x: &[f32; 32], half: u8) -> (f32, [u8; 32]) {
    let d = fit::extreme(x) / -f32::from(half);
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    let bias = f32::from(half) + 0.5;
    // for finite input the conversions wrap and truncate as in C
    (
        d,
        x.map(|v| ((v * id + bias) as i32 as i8).min(2 * half as i8 - 1) as u8),
    )
}

/// Rounds to levels `0..=max` from the block's minimum to its maximum.
fn affine_levels(x: &[f32; 32], max: u8) -> (f32, f32, [u8; 32]) {
    let (mut lo, mut hi) = (f32::MAX, -f32::MAX);
    for &v in x {
        lo = if v < lo { v } else { lo };
        hi = if v > hi { v } else { hi };
    }
    let d = (hi - lo) / f32::from(max);
    let id = if d != 0.0 { 1.0 / d } else { 0.0 };
    (
        d,
        lo,
        x.map(|v| (((v - lo) * id + 0.5) as i32 as i8).min(max as i8) as u8),
    )
}

/// Stores the low four bits of each level in 16 bytes.
fn put_nibbles(qs: &mut [u8], levels: &[u8; 32]) {
    for (j, q) in qs.iter_mut().enumerate() {
        *q = levels[j] & 15 | levels[j + 16] << 4;
    }
}

/// Stores the fifth bit of each level in 4 bytes.
fn put_fifth_bits(qh: &mut [u8], levels: &[u8; 32]) {
    let bits = levels
        .iter()
        .enumerate()
        .fold(0u32, |bits, (j, &l)| bits | u32::from(l >> 4 & 1) << j);
    qh.copy_from_slice(&bits.to_le_bytes());
}

pub(crate) fn quantize_q4_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_weighted(row, importance, out, |x, weights| {
        let (d, levels) =
            weights.map_or_else(|| symmetric_levels(x, 8), |w| fit::symmetric(8, x, w));
        let mut b = [0; 18];
        put_f16(&mut b, 0, d);
        put_nibbles(&mut b[2..], &levels);
        b
    });
}

pub(crate) fn quantize_q4_1(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_weighted(row, importance, out, |x, weights| {
        let (d, m, levels) =
            weights.map_or_else(|| affine_levels(x, 15), |w| weighted_affine(15, x, w));
        let mut b = [0; 20];
        put_f16(&mut b, 0, d);
        put_f16(&mut b, 2, m);
        put_nibbles(&mut b[4..], &levels);
        b
    });
}

pub(crate) fn quantize_q5_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_weighted(row, importance, out, |x, weights| {
        let (d, levels) =
            weights.map_or_else(|| symmetric_levels(x, 16), |w| fit::symmetric(16, x, w));
        let mut b = [0; 22];
        put_f16(&mut b, 0, d);
        put_fifth_bits(&mut b[2..6], &levels);
        put_nibbles(&mut b[6..], &levels);
        b
    });
}

pub(crate) fn quantize_q5_1(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_weighted(row, importance, out, |x, weights| {
        let (d, m, levels) =
            weights.map_or_else(|| affine_levels(x, 31), |w| weighted_affine(31, x, w));
        let mut b = [0; 24];
        put_f16(&mut b, 0, d);
        put_f16(&mut b, 2, m);
        put_fifth_bits(&mut b[4..8], &levels);
        put_nibbles(&mut b[8..], &levels);
        b
    });
}

/// Fits with [`fit::affine`], and returns the minimum with its own sign, which these formats store.
fn weighted_affine(max: u8, x: &[f32; 32], w: &[f32; 32]) -> (f32, f32, [u8; 32]) {
    let (d, minus_min, levels) = fit::affine(max, x, w, &WEIGHTED);
    (d, -minus_min, levels)
}

/// Returns the largest magnitude, ignoring NaNs. The eighths of a block are processed side by side:
/// for magnitudes the order does not matter.
fn magnitude(x: &[f32; 32]) -> f32 {
    let mut most = [0.0f32; 8];
    for x in x.as_chunks::<8>().0 {
        for (most, v) in most.iter_mut().zip(x) {
            *most = if v.abs() > *most { v.abs() } else { *most };
        }
    }
    most.into_iter().fold(0.0, f32::max)
}

pub(crate) fn quantize_q8_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 32], _| {
        let d = magnitude(x) / 127.0;
        let id = if d != 0.0 { 1.0 / d } else { 0.0 };
        let mut b = [0; 34];
        put_f16(&mut b, 0, d);
        for (q, v) in b[2..].iter_mut().zip(x) {
            *q = round_away(v * id) as u8;
        }
        b
    });
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(Q4_0, decode_q4_0, finite(0), quantize_q4_0),
    block_format!(Q4_1, decode_q4_1, finite(0, 2), quantize_q4_1),
    block_format!(Q5_0, decode_q5_0, finite(0), quantize_q5_0),
    block_format!(Q5_1, decode_q5_1, finite(0, 2), quantize_q5_1),
    block_format!(Q8_0, decode_q8_0, finite(0), quantize_q8_0),
    block_format!(Q8_1, decode_q8_1, finite(0, 2)),
];
