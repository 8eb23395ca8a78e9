//! MXFP4 and NVFP4: 4-bit floats E2M1 with shared 8-bit float scales.
//!
//! | type | values | fields in file order (bytes) | scale |
//! |---|---|---|---|
//! | MXFP4 | 32 | `e` 1, `qs` 16 | E8M0: `2^(e - 127)` |
//! | NVFP4 | 64 = 4 x 16 | `d` 4, `qs` 32 (8 per group) | E4M3 without its sign bit, bias 7 |
//!
//! In a group of 2n values byte `j` of `qs` has value `j` (low nibble) and value `j + n` (high
//! nibble). The tables hold E2M1 values doubled, which makes them integers, so the scales here are
//! halved; both are exact, except that the smallest MXFP4 scales become subnormal.

use crate::bits::{encode_blocks, nibble32};
use crate::format::{Format, block_format};

/// Values of E2M1 times two: bit 3 is the sign, bits 1..3 the exponent, bit 0 the mantissa.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns half of `2^(e - 127)`. 255, a NaN in the OCP format, is treated as another power of two,
/// as in ggml.
fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(if e < 2 {
        0x0020_0000 << e
    } else {
        u32::from(e - 1) << 23
    })
}

/// Returns half of an E4M3 float. The sign bit is ignored; 0x7f, a NaN, counts as zero, but 0xff as
/// 480, as in ggml.
fn half_e4m3(x: u8) -> f32 {
    if x == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (x >> 3 & 15, f32::from(x & 7));
    let value = if exponent == 0 {
        mantissa * 2f32.powi(-9)
    } else {
        (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 120) << 23)
    };
    value * 0.5
}

pub(crate) fn decode_mxfp4(b: &[u8; 17], y: &mut [f32; 32]) {
    let d = half_e8m0(b[0]);
    for (j, y) in y.iter_mut().enumerate() {
        *y = f32::from(E2M1_DOUBLED[usize::from(nibble32(&b[1..], j))]) * d;
    }
}

pub(crate) fn decode_nvfp4(b: &[u8; 36], y: &mut [f32; 64]) {
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = half_e4m3(b[g]);
        for (j, y) in y.iter_mut().enumerate() {
            let q = b[4 + 8 * g + j % 8] >> (4 * (j / 8)) & 15;
            *y = f32::from(E2M1_DOUBLED[usize::from(q)]) * d;
        }
    }
}

/// Returns the code nearest to `v` in units of `d`; the first one on ties.
fn nearest(v: f32, d: f32) -> u8 {
    let (mut best, mut error) = (0, f32::INFINITY);
    for (q, level) in (0..).zip(E2M1_DOUBLED) {
        let this = (f32::from(level) * d - v).abs();
        if this < error {
            (best, error) = (q, this);
        }
    }
    best
}

/// Returns the largest magnitude of a group.
fn magnitude(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0,
        |most: f32, v| if most < v.abs() { v.abs() } else { most },
    )
}

/// Stores values `j` and `j + n` of a group of 2n in byte `j`.
fn put_group(qs: &mut [u8], x: &[f32], d: f32) {
    let (low, high) = x.split_at(qs.len());
    for ((q, &low), &high) in qs.iter_mut().zip(low).zip(high) {
        *q = nearest(low, d) | nearest(high, d) << 4;
    }
}

/// Quantizes with the power of two as scale that brings the largest magnitude to 4 .. 8, though 6
/// is the largest value.
pub(crate) fn quantize_mxfp4(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 32], _| {
        let most = magnitude(x);
        let mut b = [0; 17];
        b[0] = if most > 0.0 {
            (most.log2().floor() - 2.0 + 127.0) as u8
        } else {
            0
        };
        let d = half_e8m0(b[0]);
        put_group(&mut b[1..], x, d);
        b
    });
}

/// Returns the nearest E4M3 float without a sign; ties go up. Everything from 248 on becomes 448,
/// the largest: ggml has no scales in between.
fn to_e4m3(v: f32) -> u8 {
    if v.is_nan() || v <= 0.0 {
        return 0;
    }
    let bits = v.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return ((v * 512.0 + 0.5) as u8).min(7);
    }
    // a mantissa that overflows carries into the exponent
    let rounded = ((exponent as u32) << 3 | (bits >> 20 & 7)) + (bits >> 19 & 1);
    if rounded < 0x78 { rounded as u8 } else { 0x7e }
}

/// Quantizes with a scale that maps each group's largest magnitude to 6, the largest value.
pub(crate) fn quantize_nvfp4(row: &[f32], importance: Option<&[f32]>, out: &mut Vec<u8>) {
    encode_blocks(row, importance, out, |x: &[f32; 64], _| {
        let mut b = [0; 36];
        for (g, x) in x.as_chunks::<16>().0.iter().enumerate() {
            b[g] = to_e4m3(magnitude(x) / 6.0);
            let d = half_e4m3(b[g]);
            put_group(&mut b[4 + 8 * g..12 + 8 * g], x, d);
        }
        b
    });
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(MXFP4, decode_mxfp4, good(|b| b[0] != 0xff), quantize_mxfp4),
    block_format!(NVFP4, decode_nvfp4, finite(), quantize_nvfp4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_half_of_their_float_formats() {
        for e in 0..=255u8 {
            assert_eq!(
                f64::from(half_e8m0(e)),
                2f64.powi(i32::from(e) - 128),
                "e8m0 {e}"
            );
        }
        for x in 0..0x7fu8 {
            let (e, m) = (i32::from(x >> 3), f64::from(x & 7));
            let want = if e == 0 {
                m * 2f64.powi(-9)
            } else {
                (1.0 + m / 8.0) * 2f64.powi(e - 7)
            };
            assert_eq!(f64::from(half_e4m3(x)), want / 2.0, "e4m3 {x:#x}");
        }
        assert_eq!(half_e4m3(0x7f), 0.0);
        assert_eq!(half_e4m3(0xff), 240.0);
    }

    #[test]
    fn e4m3_scales_are_read_back() {
        for x in 0..0x78_u8 {
            let v = 2.0 * half_e4m3(x);
            assert_eq!(to_e4m3(v), x, "{x:#x}");
            assert_eq!(to_e4m3(v.next_up()), x, "{x:#x}");
        }
        assert_eq!(
            [f32::NAN, -1.0, 1e-9, f32::INFINITY, 248.0, 247.9].map(to_e4m3),
            [0, 0, 0, 0x7e, 0x7e, 0x77]
        );
    }

    #[test]
    fn e2m1_table_is_the_float_format() {
        for q in 0..16u8 {
            let (e, m) = (i32::from(q >> 1 & 3), f64::from(q & 1));
            let want = if e == 0 {
                m / 2.0
            } else {
                (1.0 + m / 2.0) * 2f64.powi(e - 1)
            };
            let want = if q & 8 == 0 { want } else { -want };
            assert_eq!(f64::from(E2M1_DOUBLED[usize::from(q)]), 2.0 * want, "{q}");
        }
    }
}
