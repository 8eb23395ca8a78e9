//! F32, F16, BF16: plain floats without blocks.

use crate::TensorType;
use crate::check::first_bad_word;
use crate::format::{Format, row};
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::bits::{decode_blocks, f16_at, to_f16, u16_at};

pub(crate) fn decode_f32(b: &[u8; 4], y: &mut [f32; 1]) {
    *y = [f32::from_le_bytes(*b)];
}

pub(crate) fn decode_f16(b: &[u8; 2], y: &mut [f32; 1]) {
    *y = [f16_at(b, 0)];
}

/// Decodes F16 in groups, since CPUs with f16 conversion convert eight at a time.
pub(crate) fn decode_f16s(bytes: &[u8], out: &mut [f32]) {
    const GROUP: usize = 64;
    let (halves, mut group) = (bytes.as_chunks::<2>().0, [f16::ZERO; GROUP]);
    for (halves, out) in halves.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
        let group = &mut group[..out.len()];
        group
            .iter_mut()
            .zip(halves)
            .for_each(|(h, b)| *h = f16::from_le_bytes(*b));
        group.convert_to_f32_slice(out);
    }
}

/// Decodes BF16, the upper half of an f32. Shifted here rather than by `half`, which would quiet
/// signalling NaNs.
pub(crate) fn decode_bf16(b: &[u8; 2], y: &mut [f32; 1]) {
    *y = [f32::from_bits(u32::from(u16_at(b, 0)) << 16)];
}

pub(crate) fn quantize_f32(row: &[f32], _importance: Option<&[f32]>, out: &mut Vec<u8>) {
    out.extend(row.iter().flat_map(|v| v.to_le_bytes()));
}

pub(crate) fn quantize_f16(row: &[f32], _importance: Option<&[f32]>, out: &mut Vec<u8>) {
    out.extend(row.iter().flat_map(|&v| to_f16(v).to_le_bytes()));
}

pub(crate) fn quantize_bf16(row: &[f32], _importance: Option<&[f32]>, out: &mut Vec<u8>) {
    out.extend(
        row.iter()
            .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()),
    );
}

/// Format table of this family. Bad values are detected by whole words; F16 is decoded by whole
/// rows.
pub(crate) static FORMATS: &[Format] = &[
    row(
        TensorType::F32,
        decode_f32,
        |b, y| decode_blocks(b, y, decode_f32),
        Some(quantize_f32),
        |b| {
            let exponent = |w| i32::from_le_bytes(w) & 0x7f80_0000;
            first_bad_word(b.as_chunks().0, exponent, 0x7f80_0000)
        },
        &[],
    ),
    row(
        TensorType::F16,
        decode_f16,
        decode_f16s,
        Some(quantize_f16),
        |b| {
            let exponent = |w| i16::from_le_bytes(w) & 0x7c00;
            first_bad_word(b.as_chunks().0, exponent, 0x7c00)
        },
        &[],
    ),
    row(
        TensorType::BF16,
        decode_bf16,
        |b, y| decode_blocks(b, y, decode_bf16),
        Some(quantize_bf16),
        |b| {
            let exponent = |w| i16::from_le_bytes(w) & 0x7f80;
            first_bad_word(b.as_chunks().0, exponent, 0x7f80)
        },
        &[],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_f16_decode_as_single_ones() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for n in [0, 1, 63, 64, 65, 65536] {
            let mut all = vec![1.0; n];
            decode_f16s(&bytes[..2 * n], &mut all);
            for (i, v) in all.into_iter().enumerate() {
                let mut one = [0.0];
                decode_f16(&[bytes[2 * i], bytes[2 * i + 1]], &mut one);
                assert_eq!(v.to_bits(), one[0].to_bits(), "{i:#06x}");
            }
        }
    }

    #[test]
    fn every_bf16_is_the_upper_half_of_its_f32() {
        for bits in 0..=u16::MAX {
            let mut y = [0.0];
            decode_bf16(&bits.to_le_bytes(), &mut y);
            assert_eq!(y[0].to_bits(), u32::from(bits) << 16);
            if y[0].is_finite() {
                let mut out = Vec::new();
                quantize_bf16(
                    &[
                        y[0],
                        f32::from_bits(y[0].to_bits() | 0x8000),
                        y[0].next_up(),
                    ],
                    None,
                    &mut out,
                );
                assert_eq!(u16_at(&out, 0), bits);
                // the midpoint goes to the even neighbour
                assert_eq!(u16_at(&out, 2), bits + bits % 2);
            }
        }
    }
}
