//! Q1_0, Q2_0 and the ternary TQ1_0, TQ2_0: values are small integers times one f16 scale.
//!
//! | type | values | fields in file order (bytes) | value |
//! |---|---|---|---|
//! | Q1_0 | 128 | `d` f16, `qs` 16: bit `j % 8` of byte `j / 8` | `d` if set, else `-d` |
//! | Q2_0 | 64 | `d` f16, `qs` 16: bits `2 * (j % 4)` up of byte `j / 4` | `(q - 1) * d` |
//! | TQ1_0 | 256 | `qs` 48, `qh` 4, `d` f16: base-3 digits, see below | `(q - 1) * d` |
//! | TQ2_0 | 256 | `qs` 64, `d` f16: as the 2 bits of Q2_K | `(q - 1) * d` |

use crate::bits::{encode_blocks, f16_at, put_f16, round_away};
use crate::format::{Format, block_format};

pub(crate) fn decode_q1_0(b: &[u8; 18], y: &mut [f32; 128]) {
    let d = f16_at(b, 0);
    for (j, y) in y.iter_mut().enumerate() {
        *y = if b[2 + j / 8] >> (j % 8) & 1 == 1 {
            d
        } else {
            -d
        };
    }
}

pub(crate) fn decode_q2_0(b: &[u8; 18], y: &mut [f32; 64]) {
    let d = f16_at(b, 0);
    for (j, y) in y.iter_mut().enumerate() {
        *y = (f32::from(b[2 + j / 4] >> (2 * (j % 4)) & 3) - 1.0) * d;
    }
}

/// Returns digit `n` of a byte. The byte is a fraction of 256 whose base-3 digits are the values,
/// first digit first: multiplying by 3^n modulo 256 drops the first n digits, and the next one is
/// the carry out of the byte of a further multiplication by 3.
fn trit(byte: u8, n: u32) -> u8 {
    let rest = byte.wrapping_mul(3u8.wrapping_pow(n));
    ((u16::from(rest) * 3) >> 8) as u8
}

/// Decodes TQ1_0. Values run digit by digit over the bytes of a part: 5 digits of 32 bytes, 5 of 16
/// bytes, 4 of the 4 bytes `qh`.
pub(crate) fn decode_tq1_0(b: &[u8; 54], y: &mut [f32; 256]) {
    let d = f16_at(b, 52);
    for (i, y) in y.iter_mut().enumerate() {
        let (byte, digit) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + i % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        };
        *y = (f32::from(trit(b[byte], digit as u32)) - 1.0) * d;
    }
}

pub(crate) fn decode_tq2_0(b: &[u8; 66], y: &mut [f32; 256]) {
    let d = f16_at(b, 64);
    for (i, y) in y.iter_mut().enumerate() {
        *y = (f32::from(b[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3) - 1.0) * d;
    }
}

/// Returns the largest magnitude of a block.
fn magnitude(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0,
        |most: f32, v| if v.abs() > most { v.abs() } else { most },
    )
}

/// Returns the largest magnitude and its inverse, 0 for a block of zeros.
fn scale(x: &[f32]) -> (f32, f32) {
    let d = magnitude(x);
    (d, if d != 0.0 { 1.0 / d } else { 0.0 })
}

/// Quantizes with the mean magnitude as scale.
pub(crate) fn quantize_q1_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 128], _| {
        let mut b = [0; 18];
        put_f16(
            &mut b,
            0,
            x.iter().fold(0.0, |sum: f32, v| sum + v.abs()) / 128.0,
        );
        for (j, &v) in x.iter().enumerate() {
            b[2 + j / 8] |= u8::from(v >= 0.0) << (j % 8);
        }
        b
    });
}

pub(crate) fn quantize_q2_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 64], _| {
        let (d, id) = scale(x);
        let mut b = [0; 18];
        put_f16(&mut b, 0, d);
        for (j, &v) in x.iter().enumerate() {
            b[2 + j / 4] |= ((round_away(v * id) + 1).clamp(0, 3) as u8) << (2 * (j % 4));
        }
        b
    });
}

/// Rounds to -1, 0 or 1, returned as 0, 1 or 2.
fn ternary(v: f32, id: f32) -> u8 {
    (round_away(v * id) + 1).clamp(0, 2) as u8
}

/// Packs digits, first digit first, into the fraction of 256 that [`trit`] reads: a division that
/// rounds up.
fn put_trits(digits: impl Iterator<Item = u8>) -> u8 {
    let (n, value) = digits.fold((0, 0u32), |(n, value), digit| {
        (n + 1, 3 * value + u32::from(digit))
    });
    let value = value * 3u32.pow(5 - n);
    (value * 256).div_ceil(243) as u8
}

pub(crate) fn quantize_tq1_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 256], _| {
        let (d, id) = scale(x);
        let mut b = [0; 54];
        // (first value, bytes, digits of each byte) of the parts
        let mut at = 0;
        for (start, bytes, digits) in [(0, 32, 5), (160, 16, 5), (240, 4, 4)] {
            for m in 0..bytes {
                b[at] = put_trits((0..digits).map(|n| ternary(x[start + m + n * bytes], id)));
                at += 1;
            }
        }
        put_f16(&mut b, 52, d);
        b
    });
}

pub(crate) fn quantize_tq2_0(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 256], _| {
        let (d, id) = scale(x);
        let mut b = [0; 66];
        for (i, &v) in x.iter().enumerate() {
            b[i / 128 * 32 + i % 32] |= ternary(v, id) << (2 * (i % 128 / 32));
        }
        put_f16(&mut b, 64, d);
        b
    });
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(TQ1_0, decode_tq1_0, finite(52), quantize_tq1_0),
    block_format!(TQ2_0, decode_tq2_0, finite(64), quantize_tq2_0),
    block_format!(Q1_0, decode_q1_0, finite(0), quantize_q1_0),
    block_format!(Q2_0, decode_q2_0, finite(0), quantize_q2_0),
];
