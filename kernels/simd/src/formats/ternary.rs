//! Codes of one or two bits, or ternary digits, less one, times one f16 scale.

use super::planes::{each_of_four, plane_codes};
use super::{Fold, Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor, two_bits};
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
    gpu GpuScales::first(TensorType::Q2_0, 2)
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
    gpu GpuScales::first(TensorType::Q1_0, 2),
    codes S, H(block, g) in 16 bytes, up to 2 {
        let [a, b, c, d] = plane_codes::<S, Q1_0, H>(block, g);
        [S::shl(a, 1), S::shl(b, 1), S::shl(c, 1), S::shl(d, 1)]
    }
}

format! {
    /// 256 weights of two bits: -1, 0 or 1.
    TQ2_0: 256 weights, meta 2, low 0, high 2, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    fold up to 1 times 1.0,
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, codes) { two_bits(&raw[..64], codes) }
    transpose(raw, meta) { meta.half(0, &raw[64..66]) }
    gpu Some(GpuScales {
        kernels: TensorType::TQ2_0,
        codes: GpuCodes::Own,
        bytes: 0,
        of: |_, _, _, _| {},
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[64..66]),
    })
}

format! {
    /// 256 ternary digits, five or four to a byte.
    ///
    /// Words as in the file: eight have the five digits of the first 160 weights, four those of the
    /// next 80, and the last one four digits of the last 16.
    TQ1_0: 256 weights, meta 2, low 0, high 0, top 0, group 32, offset 1, min false, table None,
    block_scales [0],
    fold up to 1 times 1.0,
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, words) { words.copy_from_slice(&raw[..52]) }
    transpose(raw, meta) { meta.half(0, &raw[52..54]) }
    gpu Some(GpuScales {
        kernels: TensorType::TQ2_0,
        codes: GpuCodes::TwoBits(ternary_digits),
        bytes: 0,
        of: |_, _, _, _| {},
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[52..54]),
    }),
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

/// Digit `n`, below 5, of every byte, a fraction of 256 in base 3, the first digit first.
#[inline(always)]
unsafe fn ternary_digit<S: Simd>(v: S::I, n: usize) -> S::I {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // bytes as the upper ones of 16 bits: multiplied by a power of three, the digits before
        // digit n are lost, and three times the rest carries it out
        let (power, three) = (S::iset1(POWERS[n] * 0x0001_0001), S::iset1(0x0003_0003));
        let mask = S::iset1(0xff00_ff00_u32 as i32);
        let (even, odd) = (S::and(S::shl(v, 8), mask), S::and(v, mask));
        let even = S::mul16_high(S::mul16(even, power), three);
        let odd = S::mul16_high(S::mul16(odd, power), three);
        S::or(even, S::shl(odd, 8))
    }
}

/// All digits of a block of TQ1_0.
fn ternary_digits(raw: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (byte, n) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + i % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        };
        let rest = raw[byte].wrapping_mul(POWERS[n] as u8);
        *code = ((u16::from(rest) * 3) >> 8) as u8;
    }
}

/// Powers of three.
const POWERS: [i32; 5] = [1, 3, 9, 27, 81];

family!(
    decoded(Q1_0),
    decoded(Q2_0),
    decoded(TQ1_0),
    decoded(TQ2_0)
);
