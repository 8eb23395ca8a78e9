//! AWQ: 4-bit codes with one f16 scale and one 4-bit zero point for a group of a row (Lin et al.
//! 2023).
//!
//! Checkpoints store a weight as three matrices, input features first: codes and zero points eight
//! to a 32-bit word ([`unpack`]), scales as f16. Here a group becomes a block of a row like in GGUF
//! formats, as kernels expect:
//!
//! | bytes | |
//! |---|---|
//! | `d` f16 | the scale |
//! | `z` u8 | the zero point, in its lower four bits |
//! | `qs` | codes, 16 bytes for 32 |
//!
//! Code `j` is in byte `j % 16` of group `j / 32` of `qs`, in bits 0..4 for `j % 32 < 16` and in
//! bits 4..8 otherwise. Value `j` is `q * d - z * d`: `(q - z) * d`, which f32 holds exactly. No
//! GGUF file has such blocks.

use crate::bits::{encode_blocks, f16_at, nibble32, put_f16};
use crate::format::{Format, block_format};

/// Index among eight neighbouring features of the code at bits `4 i` of a word.
pub const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Unpacks the eight codes of a word, in the order of features.
#[must_use]
pub fn unpack(word: u32) -> [u8; 8] {
    let mut codes = [0; 8];
    for (i, feature) in ORDER.into_iter().enumerate() {
        codes[feature] = (word >> (4 * i) & 15) as u8;
    }
    codes
}

/// Packs eight codes into a word; only their lowest four bits are used.
#[must_use]
pub fn pack(codes: [u8; 8]) -> u32 {
    ORDER.into_iter().enumerate().fold(0, |word, (i, feature)| {
        word | u32::from(codes[feature] & 15) << (4 * i)
    })
}

/// Writes a group of a row as a block: the bits of its f16 scale, its zero point, and its codes (a
/// multiple of 32).
///
/// # Panics
/// If `block` is not 3 bytes and half a byte for each code.
pub fn block(scale: u16, zero: u8, codes: &[u8], block: &mut [u8]) {
    let (head, qs) = block.split_at_mut(3);
    head[..2].copy_from_slice(&scale.to_le_bytes());
    head[2] = zero;
    assert_eq!(qs.len() * 2, codes.len());
    for (q, c) in qs.chunks_exact_mut(16).zip(codes.chunks_exact(32)) {
        for (j, q) in q.iter_mut().enumerate() {
            *q = c[j] & 15 | c[j + 16] << 4;
        }
    }
}

/// Reads the codes of a block.
pub fn codes(block: &[u8], codes: &mut [u8]) {
    for (c, q) in codes.chunks_exact_mut(32).zip(block[3..].chunks_exact(16)) {
        for (j, c) in c.iter_mut().enumerate() {
            *c = nibble32(q, j);
        }
    }
}

/// Quantizes a group to nearest: returns the bits of the f16 scale, the zero point and the codes.
/// The range is widened to include 0, as AutoAWQ does with zero points.
#[must_use]
pub fn round<const N: usize>(x: &[f32; N]) -> (u16, u8, [u8; N]) {
    let (lo, hi) = x
        .iter()
        .fold((0f32, 0f32), |(lo, hi), &v| (lo.min(v), hi.max(v)));
    let mut scale = [0; 2];
    put_f16(&mut scale, 0, ((hi - lo) / 15.0).max(1e-8));
    let d = f16_at(&scale, 0);
    // a range below f16's smallest number makes a group of zeros
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let zero = (-lo * inverse).round_ties_even().clamp(0.0, 15.0);
    let codes = x.map(|v| ((v * inverse).round_ties_even() + zero).clamp(0.0, 15.0) as u8);
    (u16::from_le_bytes(scale), zero as u8, codes)
}

pub(crate) fn decode<const B: usize, const N: usize>(b: &[u8; B], y: &mut [f32; N]) {
    let d = f16_at(b, 0);
    let min = f32::from(b[2] & 15) * d;
    for (j, y) in y.iter_mut().enumerate() {
        *y = f32::from(nibble32(&b[3 + j / 32 * 16..], j % 32)) * d - min;
    }
}

/// Quantizes a row. Importance is ignored: AWQ applies it to the weights beforehand ([`round`] only
/// rounds).
pub(crate) fn quantize<const B: usize, const N: usize>(
    row: &[f32],
    _importance: Option<&[f32]>,
    out: &mut Vec<u8>,
) {
    encode_blocks(row, None, out, |x: &[f32; N], _| {
        let (scale, zero, codes) = round(x);
        let mut bytes = [0; B];
        block(scale, zero, &codes, &mut bytes);
        bytes
    });
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(AWQ_G32, decode::<19, 32>, finite(0), quantize::<19, 32>),
    block_format!(AWQ_G64, decode::<35, 64>, finite(0), quantize::<35, 64>),
    block_format!(AWQ_G128, decode::<67, 128>, finite(0), quantize::<67, 128>),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_autoawq() {
        // the packing loop of AutoAWQ's WQLinear_GEMM: word |= code[order[i]] << (4 * i)
        assert_eq!(pack([0, 1, 2, 3, 4, 5, 6, 7]), 0x7531_6420);
        assert_eq!(unpack(0x7531_6420), [0, 1, 2, 3, 4, 5, 6, 7]);
        for word in [0, u32::MAX, 0x0123_4567, 0xfedc_ba98] {
            assert_eq!(pack(unpack(word)), word);
        }
    }

    #[test]
    fn blocks_hold_their_numbers() {
        let codes: [u8; 64] = std::array::from_fn(|j| (j * 7 % 16) as u8);
        let mut bytes = [0; 35];
        block(0x3800, 5, &codes, &mut bytes); // 0.5
        let mut y = [0.0; 64];
        decode::<35, 64>(&bytes, &mut y);
        for (y, q) in y.into_iter().zip(codes) {
            assert_eq!(y, (f32::from(q) - 5.0) * 0.5);
        }
    }

    #[test]
    fn rounding_keeps_within_half_a_step_and_zero_exactly() {
        let x: [f32; 128] = std::array::from_fn(|j| ((j * 37 % 128) as f32 - 50.0) * 0.01);
        let (scale, zero, codes) = round(&x);
        let mut d = [0; 2];
        d.copy_from_slice(&scale.to_le_bytes());
        let d = f16_at(&d, 0);
        for (x, q) in x.into_iter().zip(codes) {
            let y = (f32::from(q) - f32::from(zero)) * d;
            // the ends of the range may be half a step beyond the codes, because the zero point is
            // rounded
            assert!(
                (x - y).abs() <= d * 1.001,
                "{x} became {y} with steps of {d}"
            );
            assert!(x != 0.0 || y == 0.0);
        }
        let none = round(&[0.0f32; 32]);
        assert!(none.2.iter().all(|q| *q == none.1), "zeros stay zero");
    }
}
