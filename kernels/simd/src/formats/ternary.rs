//! Codes of one or two bits, or ternary digits, less one, times one f16 scale.

use super::planes::{each_of_four, plane_codes};
use super::{Format, FormatInfo, GpuScales, Transposed, Visitor, two_bits};
use crate::simd::Simd;
use octavo_quant::TensorType;

format! {
    /// 64 weights of two bits: -1 to 2.
    Q2_0: 64 weights, meta 2, low 0, high 2, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, codes) {
        for (c, q) in codes.as_chunks_mut::<4>().0.iter_mut().zip(&raw[2..]) {
            *c = [0, 2, 4, 6].map(|at| q >> at & 3);
        }
    }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu None
}

format! {
    /// 128 weights of one bit: -1 or 1.
    Q1_0: 128 weights, meta 2, low 0, high 1, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, codes) {
        for (c, q) in codes.as_chunks_mut::<8>().0.iter_mut().zip(&raw[2..]) {
            *c = std::array::from_fn(|at| q >> at & 1);
        }
    }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu None,
    codes S, H(block, g) in 16 bytes, up to 2 {
        let [a, b, c, d] = plane_codes::<S, Q1_0, H>(block, g);
        [S::shl(a, 1), S::shl(b, 1), S::shl(c, 1), S::shl(d, 1)]
    }
}

format! {
    /// 256 weights of two bits: -1, 0 or 1.
    TQ2_0: 256 weights, meta 2, low 0, high 2, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, codes) { two_bits(&raw[..64], codes) }
    transpose(raw, meta) { meta.half(0, &raw[64..66]) }
    gpu None
}

format! {
    /// 256 ternary digits, five or four to a byte.
    ///
    /// Words as in the file: eight have the five digits of the first 160 weights, four those of the
    /// next 80, and the last one four digits of the last 16.
    TQ1_0: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, words) { words.copy_from_slice(&raw[..52]) }
    transpose(raw, meta) { meta.half(0, &raw[52..54]) }
    gpu None,
    codes S, H(block, g) in 52 bytes, up to 2 {
        let half = 2 * g + H;
        each_of_four(#[inline(always)] |j| {
            let (word, n) = match half {
                0..10 => (4 * H + j, g),
                10..15 => (8 + j, half - 10),
                _ => (12, j),
            };
            ternary_digit::<S>(S::load_bytes(block.add((2 + 4 * word) * S::R)), n)
        })
    }
}

/// Digit `n` of every byte, a fraction of 256 in base 3, the first digit first.
#[inline(always)]
unsafe fn ternary_digit<S: Simd>(v: S::I, n: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let mask = S::iset1(0x00ff_00ff);
        let (mut even, mut odd) = (S::and(v, mask), S::and(S::shr(v, 8), mask));
        for _ in 0..n {
            even = S::and(S::iadd(even, S::shl(even, 1)), mask);
            odd = S::and(S::iadd(odd, S::shl(odd, 1)), mask);
        }
        // three times a byte has the next digit above the byte
        let (even, odd) = (
            S::iadd(even, S::shl(even, 1)),
            S::iadd(odd, S::shl(odd, 1)),
        );
        let digits = S::iset1(0x0003_0003);
        let even = S::and(S::shr(even, 8), digits);
        S::or(even, S::and(odd, S::shl(digits, 8)))
    }
}

family!(
    decoded(Q1_0),
    decoded(Q2_0),
    decoded(TQ1_0),
    decoded(TQ2_0)
);
