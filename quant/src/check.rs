//! Which blocks llama.cpp would refuse: those whose scales are NaN or infinite. What that means for
//! a type stands in its row.

use crate::TensorType;
use crate::bits::u16_at;

/// Whether the half float at `at` is a number.
pub(crate) fn finite16(block: &[u8], at: usize) -> bool {
    u16_at(block, at) & 0x7c00 != 0x7c00
}

/// The first block of `ty` that is not good.
pub(crate) fn first_bad(
    ty: TensorType,
    blocks: &[u8],
    is_good: impl Fn(&[u8]) -> bool,
) -> Option<usize> {
    blocks
        .chunks_exact(ty.block_bytes())
        .position(|block| !is_good(block))
}

/// The first double that is none: the one float type that is not among the formats.
pub(crate) fn first_bad_f64(values: &[u8]) -> Option<usize> {
    first_bad_word(
        values.as_chunks().0,
        |w| i64::from_le_bytes(w) & (0x7ff << 52),
        0x7ff << 52,
    )
}

/// The first word whose exponent is the largest there is. Looked for in groups, so that the good
/// case is a maximum of many words, without a branch for each; exponents are signed integers, which
/// every CPU has vectors of.
pub(crate) fn first_bad_word<const N: usize, E: Ord + Copy + Default>(
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
    use crate::{TensorType, first_bad_block};

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
            assert_eq!(
                first_bad_block(TensorType::IQ1_M, &b),
                expected,
                "{bits:#06x}"
            );
        }
    }
}
