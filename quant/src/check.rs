//! Detection of blocks that llama.cpp would refuse: those whose scales are NaN or infinite. The
//! format table has each type's rule.

use crate::bits::u16_at;
use crate::format::Format;
use crate::{TensorType, needs_importance};

/// Returns whether the f16 at `at` is finite.
pub(crate) fn finite16(block: &[u8], at: usize) -> bool {
    u16_at(block, at) & 0x7c00 != 0x7c00
}

/// Bits of an f16 scale below which rounding it to a multiple of 2^-24 errs by more than 6 %.
const COARSE: u16 = 8;

/// Returns the blocks that the quantizer writes for zeros, with and without importance weights.
pub(crate) fn blocks_of_zeros(format: &Format) -> [Vec<u8>; 2] {
    let zeros = vec![0.0; format.block_len];
    let ones = vec![1.0; format.block_len];
    let mut blocks = [Vec::new(), Vec::new()];
    if let Some(quantize) = format.quantize {
        quantize(&zeros, Some(&ones), &mut blocks[0]);
        if !needs_importance(format.ty) {
            quantize(&zeros, None, &mut blocks[1]);
        }
    }
    blocks
}

/// Returns whether the scale of a block has underflowed: it is so small that few of its bits are
/// left, or it is zero although the codes tell values apart. Blocks of equal codes, and those that
/// are written `for_zeros`, have a scale of zero by right.
pub(crate) fn underflows(block: &[u8], scales: &[usize], for_zeros: &[Vec<u8>]) -> bool {
    let Some(&scale) = scales.first() else {
        return false;
    };
    let is_scale = |at: usize| scales.iter().any(|&scale| (scale..scale + 2).contains(&at));
    let mut codes = (0..block.len())
        .filter(|&at| !is_scale(at))
        .map(|at| block[at]);
    match u16_at(block, scale) & 0x7fff {
        0 => {
            let first = codes.next();
            codes.any(|code| Some(code) != first) && !for_zeros.iter().any(|zero| zero == block)
        }
        bits => bits < COARSE,
    }
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
    use crate::format::format;
    use crate::{TensorType, can_quantize, first_bad_block, first_underflow, quantize};

    /// Tests every type that can be written: zeros and usual values have sound scales, and values
    /// near the smallest f16 do not.
    #[test]
    fn scales_that_underflow_are_found() {
        let mut with_scales = 0;
        for ty in TensorType::all().filter(|ty| can_quantize(*ty)) {
            let found = |size: f32| {
                let values: Vec<f32> = (0..512)
                    .map(|i| size * ((i * 37 % 101) as f32 / 50.0 - 1.0))
                    .collect();
                let mut blocks = Vec::new();
                quantize(ty, &values, 512, Some(&[1.0; 512]), &mut blocks).expect("whole rows");
                first_underflow(ty, &blocks)
            };
            assert_eq!([found(0.0), found(0.02), found(1.0)], [None; 3], "{ty}");
            let has_scales = format(ty).is_some_and(|f| !f.scales.is_empty());
            assert_eq!(found(3e-8).is_some(), has_scales, "{ty}");
            with_scales += usize::from(has_scales);
        }
        assert!(with_scales > 20, "{with_scales} types with f16 scales");
    }

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
