//! Which blocks llama.cpp would refuse: those whose scales are NaN or infinite.

use crate::TensorType as T;
use crate::bits::{u16_at, u32_at};

fn finite16(b: &[u8], at: usize) -> bool {
    u16_at(b, at) & 0x7c00 != 0x7c00
}

fn bad(ty: T, blocks: &[u8], is_good: impl Fn(&[u8]) -> bool) -> Option<usize> {
    blocks
        .chunks_exact(ty.block_bytes())
        .position(|b| !is_good(b))
}

/// See [`crate::first_bad_block`].
pub(crate) fn first_bad_block(ty: T, blocks: &[u8]) -> Option<usize> {
    match ty {
        // exponents as signed integers, which every CPU has vectors of
        T::F32 => bad_word(
            blocks.as_chunks().0,
            |w| i32::from_le_bytes(w) & 0x7f80_0000,
            0x7f80_0000,
        ),
        T::F16 => bad_word(
            blocks.as_chunks().0,
            |w| i16::from_le_bytes(w) & 0x7c00,
            0x7c00,
        ),
        T::BF16 => bad_word(
            blocks.as_chunks().0,
            |w| i16::from_le_bytes(w) & 0x7f80,
            0x7f80,
        ),
        T::F64 => bad_word(
            blocks.as_chunks().0,
            |w| i64::from_le_bytes(w) & (0x7ff << 52),
            0x7ff << 52,
        ),
        T::Q4_0 | T::Q5_0 | T::Q8_0 | T::Q1_0 | T::Q2_0 | T::IQ4_NL => {
            bad(ty, blocks, |b| finite16(b, 0))
        }
        T::AWQ_G32 | T::AWQ_G64 | T::AWQ_G128 => bad(ty, blocks, |b| finite16(b, 0)),
        T::IQ1_S | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ4_XS => {
            bad(ty, blocks, |b| finite16(b, 0))
        }
        T::Q4_1 | T::Q5_1 | T::Q8_1 | T::Q4_K | T::Q5_K => {
            bad(ty, blocks, |b| finite16(b, 0) && finite16(b, 2))
        }
        T::Q2_K => bad(ty, blocks, |b| finite16(b, 80) && finite16(b, 82)),
        T::Q3_K => bad(ty, blocks, |b| finite16(b, 108)),
        T::Q6_K => bad(ty, blocks, |b| finite16(b, 208)),
        T::Q8_K => bad(ty, blocks, |b| u32_at(b, 0) & 0x7f80_0000 != 0x7f80_0000),
        T::TQ1_0 => bad(ty, blocks, |b| finite16(b, 52)),
        T::TQ2_0 => bad(ty, blocks, |b| finite16(b, 64)),
        T::MXFP4 => bad(ty, blocks, |b| b[0] != 0xff),
        // the exponent of the f16 scale is 5 of the 16 bits that four words have at their tops:
        // bits 10..15
        T::IQ1_M => bad(ty, blocks, |b| b[53] >> 6 != 3 || b[55] >> 4 & 7 != 7),
        T::NVFP4 | T::I8 | T::I16 | T::I32 | T::I64 => None,
    }
}

/// The first word whose exponent is the largest there is. Looked for in groups, so that the good
/// case is a maximum of many words, without a branch for each.
fn bad_word<const N: usize, E: Ord + Copy + Default>(
    words: &[[u8; N]],
    exponent: impl Fn([u8; N]) -> E,
    largest: E,
) -> Option<usize> {
    const GROUP: usize = 256;
    let most = |group: &[[u8; N]]| {
        group
            .iter()
            .fold(E::default(), |most, &w| most.max(exponent(w)))
    };
    let group = words
        .chunks(GROUP)
        .position(|group| most(group) == largest)?;
    let within = words[group * GROUP..]
        .iter()
        .position(|&w| exponent(w) == largest)?;
    Some(group * GROUP + within)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pattern of the f16 scale, put where the decoder reads it: bad exactly where it decodes
    /// to NaN or infinity.
    #[test]
    fn iq1_m_scales_are_put_together() {
        for bits in 0..=u16::MAX {
            let mut b = [0; 56];
            for n in 0..4 {
                b[49 + 2 * n] = ((bits >> (4 * n) & 15) as u8) << 4;
            }
            let expected = (!half::f16::from_bits(bits).is_finite()).then_some(0);
            assert_eq!(first_bad_block(T::IQ1_M, &b), expected, "{bits:#06x}");
        }
    }
}
