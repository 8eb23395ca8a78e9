//! MXFP4 and NVFP4: 4-bit floats E2M1 with shared 8-bit float scales.
//!
//! | type | values | fields in file order (bytes) | scale |
//! |---|---|---|---|
//! | MXFP4 | 32 | `e` 1, `qs` 16 | E8M0: `2^(e - 127)` |
//! | NVFP4 | 64 = 4 x 16 | `d` 4, `qs` 32 (8 per group) | E4M3 without its sign bit, bias 7 |
//!
//! In a group of 2n values byte `j` of `qs` has value `j` (low half) and value `j + n` (high half). The tables hold
//! E2M1 values doubled, which makes them integers, so the scales here are halved; both are exact, except that the
//! smallest MXFP4 scales become subnormal.

use crate::bits::nibble32;

/// The values of E2M1 times two: bit 3 is the sign, bits 1..3 the exponent, bit 0 the mantissa.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of `2^(e - 127)`. 255, a NaN in the OCP format, is one more power of two, as in ggml.
fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Half of an E4M3 float. The sign bit is not looked at; 0x7f, a NaN, counts as zero, but 0xff as 480, as in ggml.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_half_of_their_float_formats() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(half_e8m0(e)), 2f64.powi(i32::from(e) - 128), "e8m0 {e}");
        }
        for x in 0..0x7fu8 {
            let (e, m) = (i32::from(x >> 3), f64::from(x & 7));
            let want = if e == 0 { m * 2f64.powi(-9) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
            assert_eq!(f64::from(half_e4m3(x)), want / 2.0, "e4m3 {x:#x}");
        }
        assert_eq!(half_e4m3(0x7f), 0.0);
        assert_eq!(half_e4m3(0xff), 240.0);
    }

    #[test]
    fn e2m1_table_is_the_float_format() {
        for q in 0..16u8 {
            let (e, m) = (i32::from(q >> 1 & 3), f64::from(q & 1));
            let want = if e == 0 { m / 2.0 } else { (1.0 + m / 2.0) * 2f64.powi(e - 1) };
            let want = if q & 8 == 0 { want } else { -want };
            assert_eq!(f64::from(E2M1_DOUBLED[usize::from(q)]), 2.0 * want, "{q}");
        }
    }
}
