//! Reading and writing the small fields that block layouts are made of.

use half::f16;

/// Reads the little-endian f16 at byte `at`, exact in f32 (NaNs become quiet).
pub(crate) fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(b, at)).to_f32()
}

/// Reads the little-endian u16 at byte `at`.
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// Reads the little-endian u32 at byte `at`.
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Rounds `v` to the nearest f16, ties to even. A NaN keeps only its sign, as in ggml.
pub(crate) fn to_f16(v: f32) -> f16 {
    if v.is_nan() {
        f16::from_bits(if v.is_sign_negative() { 0xfe00 } else { 0x7e00 })
    } else {
        f16::from_f32(v)
    }
}

/// Stores `v` as f16 at byte `at` and returns the value that a reader will see.
pub(crate) fn put_f16(b: &mut [u8], at: usize, v: f32) -> f32 {
    let h = to_f16(v);
    b[at..at + 2].copy_from_slice(&h.to_le_bytes());
    h.to_f32()
}

/// Returns the 4 bits of value `j` in a group of 32: bytes 0..16 hold values 0..16 in their low
/// bits and 16..32 in their high bits.
pub(crate) fn nibble32(qs: &[u8], j: usize) -> u8 {
    qs[j % 16] >> (4 * (j / 16)) & 15
}

/// Rounds to the nearest integer, ties to even, through the f32 adder: adding 1.5 * 2^23 leaves the
/// integer in the mantissa. Values beyond +-2^22 (and NaN) give some integer of 23 bits, the same
/// one as ggml's.
pub(crate) fn nearest_int(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Rounds to the nearest integer, ties away from zero, as C's `roundf`; for values below 2^22.
///
/// The adder rounds ties to even. The difference from its result is exact, so it reveals ties that
/// were rounded towards zero.
pub(crate) fn round_away(v: f32) -> i32 {
    let nearest = nearest_int(v);
    let diff = v - nearest as f32;
    nearest + i32::from(diff == 0.5 && v > 0.0) - i32::from(diff == -0.5 && v < 0.0)
}

/// Runs a block decoder over all blocks. The caller has checked the lengths.
pub(crate) fn decode_blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; B], &mut [f32; N]),
) {
    for (block, y) in bytes
        .as_chunks::<B>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<N>().0)
    {
        decode(block, y);
    }
}

/// Runs a block encoder over one row and its importance weights.
pub(crate) fn encode_blocks<const N: usize, const B: usize>(
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; N], Option<&[f32; N]>) -> [u8; B],
) {
    let weights = importance.map(|w| w.as_chunks::<N>().0);
    for (i, x) in row.as_chunks::<N>().0.iter().enumerate() {
        out.extend_from_slice(&encode(x, weights.and_then(|w| w.get(i))));
    }
}

/// Returns the sum of squares, added in order, in f32.
pub(crate) fn sum_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, v| sum + v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_int_rounds_ties_to_even() {
        for (v, want) in [
            (0.5, 0),
            (1.5, 2),
            (2.5, 2),
            (-0.5, 0),
            (-1.5, -2),
            (7.49, 7),
            (-7.51, -8),
            (4e6, 4_000_000),
        ] {
            assert_eq!(nearest_int(v), want, "{v}");
        }
        for v in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
        ] {
            assert!(nearest_int(v).abs() <= 0x0040_0000, "{v}");
        }
    }

    #[test]
    fn round_away_is_round() {
        for i in -4000..=4000 {
            let v = i as f32 / 8.0;
            for v in [v.next_down(), v, v.next_up()] {
                assert_eq!(round_away(v), v.round() as i32, "{v}");
            }
        }
    }

    /// Checks all 65536 f16 values against the definition, computed in f64.
    #[test]
    fn every_f16_decodes_to_its_definition() {
        for bits in 0..=u16::MAX {
            let (exp, man) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            let got = f16_at(&bits.to_le_bytes(), 0);
            if exp == 31 && man != 0.0 {
                assert!(got.is_nan(), "{bits:#06x}");
                continue;
            }
            let want = match exp {
                0 => man * 2f64.powi(-24),
                31 => f64::INFINITY,
                _ => (1024.0 + man) * 2f64.powi(exp - 25),
            };
            assert_eq!(
                (sign * want).to_bits(),
                f64::from(got).to_bits(),
                "{bits:#06x}"
            );
            let mut b = [0; 2];
            assert_eq!(put_f16(&mut b, 0, got).to_bits(), got.to_bits());
            assert_eq!(u16::from_le_bytes(b), bits);
        }
    }

    /// Rounds between every pair of f16 neighbours: the midpoint goes to the even one, values
    /// slightly to either side go to that side.
    #[test]
    fn f16_rounding_is_to_nearest_even() {
        for bits in 0..0x7c00u16 {
            let (lo, hi) = (
                f16::from_bits(bits).to_f32(),
                f16::from_bits(bits + 1).to_f32(),
            );
            let mid = if bits == 0x7bff {
                65520.0
            } else {
                (lo + hi) / 2.0
            };
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(to_f16(mid).to_bits(), even, "{bits:#06x}");
            assert_eq!(to_f16(mid.next_down()).to_bits(), bits);
            assert_eq!(to_f16(mid.next_up()).to_bits(), bits + 1);
            assert_eq!(to_f16(-mid).to_bits(), even | 0x8000);
        }
        assert_eq!(to_f16(f32::NAN).to_bits() & 0x7fff, 0x7e00);
    }
}
