//! Detection of blocks that llama.cpp would refuse: those whose scales are NaN or infinite. The
//! format table has each type's rule.

use crate::TensorType;
use crate::bits::u16_at;

/// Returns whether the f16 at `at` is finite.
pub(crate) fn finite16(block: &[u8], at: usize) -> bool {
    u16_at(block, at) & 0x7c00 != 0x7c00
}

/// Returns the index of the first block of `ty` that is not good.
pub(crate) fn first_bad(
    ty: TensorType,
    blocks: &[u8],
    is_good: impl Fn(&[u8]) -> bool,
) -> Option<usize> {
    blocks
        .chunks_exact(ty.block_bytes())
        .position(|block| !is_good(block))
}

/// Returns the index of the first double that is NaN or infinite. F64 is the one float type outside
/// the format table.
pub(crate) fn first_bad_f64(values: &[u8]) -> Option<usize> {
    first_bad_word(
        values.as_chunks().0,
        |w| i64::from_le_bytes(w) & (0x7ff << 52),
        0x7ff << 52,
    )
}

/// Returns the index of the first word with the largest possible exponent. Words are checked in
/// groups, so that the good case is one maximum over many words, without a branch for each;
/// exponents are signed integers, for which every CPU has vector instructions.
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

    /// Tests every bit pattern of the f16 scale, placed where the decoder reads it: a block is bad
    /// exactly when it decodes to NaN or infinity.
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
