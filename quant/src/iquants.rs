//! IQ1_S .. IQ4_XS: groups of 8 (or 4) values are points of a fixed grid, with separate signs;
//! IQ4_* are single values of a fixed list. All but IQ4_NL (32 values) are super-blocks of 256
//! values in 8 groups of 32.
//!
//! | type | fields in file order (bytes) |
//! |---|---|
//! | IQ1_S | `d` f16, `qs` 32, `qh` u16 x 8 |
//! | IQ1_M | `qs` 32, `qh` 16, `scales` u16 x 4 |
//! | IQ2_XXS | `d` f16, 8 x (`index` u8 x 4, `signs` u32) |
//! | IQ2_XS | `d` f16, `qs` u16 x 32, `scales` 8 |
//! | IQ2_S | `d` f16, `qs` 32, `signs` 32, `qh` 8, `scales` 8 |
//! | IQ3_XXS | `d` f16, `qs` 64, `signs` u32 x 8 |
//! | IQ3_S | `d` f16, `qs` 64, `qh` 8, `signs` 32, `scales` 4 |
//! | IQ4_NL | `d` f16, `qs` 16 |
//! | IQ4_XS | `d` f16, `scales_h` u16, `scales_l` 4, `qs` 128 |
//!
//! A `signs` u32 is four 7-bit sign patterns (bits `7 * l` up) under a 4-bit scale (bits 28..32).
//! Seven sign bits encode eight signs: the number of minus signs is even, so the eighth is their
//! parity. `g` is the group of 32, `l` the part of 8 in it, `k` the part of 4.

use crate::bits::{f16_at, nibble32, u16_at, u32_at};
use crate::format::{Format, block_format};
use crate::grids;
use crate::{iq1, iq4, iq23};

/// The 16 levels of IQ4_NL and IQ4_XS, in units of the scale.
pub const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Shift that IQ1_S and IQ1_M add to (or subtract from) every grid value.
const IQ1_SHIFT: f32 = 0.125;

/// Returns the 8 sign bits of pattern `l` in a word of 7-bit patterns.
fn eight_signs(word: u32, l: usize) -> u8 {
    let seven = (word >> (7 * l) & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Writes `scale * grid value`, negated where the value's bit in `signs` is set.
fn put_signed(y: &mut [f32], scale: f32, point: &[i8], signs: u8) {
    for (j, (y, &p)) in y.iter_mut().zip(point).enumerate() {
        let v = scale * f32::from(p);
        *y = if signs >> j & 1 == 1 { -v } else { v };
    }
}

pub(crate) fn decode_iq2_xxs(b: &[u8; 66], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (at, l) = (2 + i / 4 * 8, i % 4);
        let word = u32_at(b, at + 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        put_signed(
            y,
            scale,
            &grids::IQ2_XXS[usize::from(b[at + l])],
            eight_signs(word, l),
        );
    }
}

/// Returns the scale of part `i` (8 values) where each half of a group has 4 bits in the group's
/// byte.
fn half_group_scale(d: f32, scales: &[u8], i: usize) -> f32 {
    d * (0.5 + f32::from(scales[i / 4] >> (4 * (i % 4 / 2)) & 15)) * 0.25
}

pub(crate) fn decode_iq2_xs(b: &[u8; 74], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // bits 0..9 index, bits 9..16 signs
        let q = u16_at(b, 2 + 2 * i);
        let scale = half_group_scale(d, &b[66..], i);
        put_signed(
            y,
            scale,
            &grids::IQ2_XS[usize::from(q & 511)],
            eight_signs(u32::from(q >> 9), 0),
        );
    }
}

pub(crate) fn decode_iq2_s(b: &[u8; 82], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    let (qs, signs, qh, scales) = (&b[2..34], &b[34..66], &b[66..74], &b[74..]);
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = qh[i / 4] >> (2 * (i % 4)) & 3;
        let index = usize::from(qs[i]) | usize::from(high) << 8;
        put_signed(
            y,
            half_group_scale(d, scales, i),
            &grids::IQ2_S[index],
            signs[i],
        );
    }
}

pub(crate) fn decode_iq3_xxs(b: &[u8; 98], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    for (i, y) in y.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (g, k) = (i / 8, i % 8);
        let word = u32_at(b, 66 + 4 * g);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = eight_signs(word, k / 2) >> (4 * (k % 2));
        put_signed(y, scale, &grids::IQ3_XXS[usize::from(b[2 + i])], signs);
    }
}

pub(crate) fn decode_iq3_s(b: &[u8; 110], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    let (qs, qh, signs, scales) = (&b[2..66], &b[66..74], &b[74..106], &b[106..]);
    for (i, y) in y.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (g, k) = (i / 8, i % 8);
        let scale = d * (1.0 + 2.0 * f32::from(scales[g / 2] >> (4 * (g % 2)) & 15));
        let index = usize::from(qs[i]) | usize::from(qh[g] >> k & 1) << 8;
        put_signed(
            y,
            scale,
            &grids::IQ3_S[index],
            signs[i / 2] >> (4 * (k % 2)),
        );
    }
}

/// Writes 8 values `scale * (grid value +- shift)`; the shift is subtracted where `minus` is set.
fn put_shifted(y: &mut [f32; 8], scale: f32, index: usize, minus: bool) {
    let shift = if minus { -IQ1_SHIFT } else { IQ1_SHIFT };
    for (y, &p) in y.iter_mut().zip(&grids::IQ1[index]) {
        *y = scale * (f32::from(p) + shift);
    }
}

/// Decodes IQ1_S. `qh[g]`: bits `3 * l` up are the high 3 bits of index `l`, bits 12..15 the scale,
/// bit 15 the shift's sign.
pub(crate) fn decode_iq1_s(b: &[u8; 50], y: &mut [f32; 256]) {
    let d = f16_at(b, 0);
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (i / 4, i % 4);
        let qh = u16_at(b, 34 + 2 * g);
        let scale = d * f32::from(2 * (qh >> 12 & 7) + 1);
        let index = usize::from(b[2 + i]) | usize::from(qh >> (3 * l) & 7) << 8;
        put_shifted(y, scale, index, qh >> 15 == 1);
    }
}

/// Decodes IQ1_M. `qh[i / 2]` has a nibble per part `i`: 3 high bits of the index and the shift's
/// sign. Each u16 of `scales` has four 3-bit scales (of 16 values each) under 4 bits of the block's
/// f16 scale, lowest first.
pub(crate) fn decode_iq1_m(b: &[u8; 56], y: &mut [f32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|n| u16_at(b, 48 + 2 * n));
    let d = scales
        .iter()
        .enumerate()
        .fold(0, |bits, (n, s)| bits | s >> 12 << (4 * n));
    let d = half::f16::from_bits(d).to_f32();
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = scales[i / 8] >> (3 * (i % 8 / 2)) & 7;
        let high = b[32 + i / 2] >> (4 * (i % 2));
        let index = usize::from(b[i]) | usize::from(high & 7) << 8;
        put_shifted(y, d * f32::from(2 * scale + 1), index, high & 8 != 0);
    }
}

pub(crate) fn decode_iq4_nl(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (j, y) in y.iter_mut().enumerate() {
        *y = d * f32::from(IQ4_LEVELS[usize::from(nibble32(&b[2..], j))]);
    }
}

/// Decodes IQ4_XS. The 6-bit scale of group `g` has its low 4 bits in nibble `g % 2` of `scales_l[g
/// / 2]`, its high 2 at bit `2 * g` of `scales_h`.
pub(crate) fn decode_iq4_xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let (d, scales_h) = (f16_at(b, 0), u16_at(b, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        let scale = u16::from(low) | (scales_h >> (2 * g) & 3) << 4;
        let scale = d * (f32::from(scale) - 32.0);
        for (j, y) in y.iter_mut().enumerate() {
            *y = scale * f32::from(IQ4_LEVELS[usize::from(nibble32(&b[8 + 16 * g..], j))]);
        }
    }
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(IQ1_S, decode_iq1_s, finite(0), iq1::quantize_iq1_s),
    // the f16 scale is spread over the top nibbles of four words; its exponent is bits 10..15
    block_format!(
        IQ1_M,
        decode_iq1_m,
        good(|b| b[53] >> 6 != 3 || b[55] >> 4 & 7 != 7),
        iq1::quantize_iq1_m
    ),
    block_format!(IQ2_XXS, decode_iq2_xxs, finite(0), iq23::quantize_iq2_xxs),
    block_format!(IQ2_XS, decode_iq2_xs, finite(0), iq23::quantize_iq2_xs),
    block_format!(IQ2_S, decode_iq2_s, finite(0), iq23::quantize_iq2_s),
    block_format!(IQ3_XXS, decode_iq3_xxs, finite(0), iq23::quantize_iq3_xxs),
    block_format!(IQ3_S, decode_iq3_s, finite(0), iq23::quantize_iq3_s),
    block_format!(IQ4_NL, decode_iq4_nl, finite(0), iq4::quantize_iq4_nl),
    block_format!(IQ4_XS, decode_iq4_xs, finite(0), iq4::quantize_iq4_xs),
];
