//! A power of two for 32 four-bit floats.

use super::{Format, FormatInfo, GpuScales, Transposed, Visitor, nibbles};
use crate::simd::Simd;
use octavo_quant::TensorType;

/// Twice the values of MXFP4, plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

format! {
    /// A power of two for 32 four-bit floats.
    MXFP4: 32 weights, meta 1, low 4, high 0, top 0, group 32, offset 12, min false,
    table Some(FP4),
    block_scales [],
    scales S([], meta, _) {
        // 2^(e - 128), halved because the table is doubled, as the product of two powers that are
        // normal floats
        let e = S::load_u8(meta);
        let half = S::shr(e, 1);
        let a = S::bits_f(S::shl(S::iadd(half, S::iset1(63)), 23));
        let b = S::bits_f(S::shl(S::iadd(S::isub(e, half), S::iset1(63)), 23));
        (S::mul(a, b), S::zero())
    }
    unpack(raw, codes) { nibbles(&raw[1..], codes) }
    transpose(raw, meta) { meta.bytes(0, &raw[..1]) }
    gpu None
}

family!(blocks(MXFP4));
