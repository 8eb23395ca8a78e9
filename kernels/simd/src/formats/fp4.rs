//! Four-bit floats E2M1, with a float of 8 bits for every 32 or 16.

use super::{Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor, nibbles};
use crate::simd::Simd;
use octavo_quant::TensorType;

/// Twice the values of E2M1, plus 12.
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
    gpu GpuScales::first(TensorType::MXFP4, 1)
}

format! {
    /// An unsigned E4M3 float for 16 four-bit floats.
    NVFP4: 64 weights, meta 4, low 4, high 0, top 0, group 16, offset 12, min false,
    table Some(FP4),
    block_scales [],
    scales S([], meta, g) {
        // (8 + mantissa) 2^(exponent - 11), and mantissa 2^-10 where the exponent is 0: half of the
        // float, because the table is doubled
        let one = S::iset1(1);
        let bits = S::load_u8(meta.add(g * S::R));
        let exponent = S::and(S::shr(bits, 3), S::iset1(15));
        // 1 if the exponent is not 0, and if the float is not ggml's zero 0x7f
        let normal = S::shr(S::iadd(exponent, S::iset1(15)), 4);
        let is_float = S::shr(S::iadd(S::xor(bits, S::iset1(0x7f)), S::iset1(255)), 8);
        let mantissa = S::or(S::and(bits, S::iset1(7)), S::shl(normal, 3));
        let mantissa = S::and(mantissa, S::isub(S::iset1(0), is_float));
        let power = S::iadd(exponent, S::iadd(S::iset1(127 - 11), S::isub(one, normal)));
        (S::mul(S::to_f(mantissa), S::bits_f(S::shl(power, 23))), S::zero())
    }
    unpack(raw, codes) {
        for (c, q) in codes.chunks_exact_mut(16).zip(raw[4..].chunks_exact(8)) {
            nibbles(q, c);
        }
    }
    transpose(raw, meta) { meta.bytes(0, &raw[..4]) }
    gpu Some(GpuScales {
        kernels: TensorType::NVFP4,
        codes: GpuCodes::Own,
        bytes: 2,
        of: |raw, u, _, out| out.copy_from_slice(&raw[2 * u..2 * u + 2]),
        super_bytes: 0,
        supers: |_, _| {},
    })
}

family!(blocks(MXFP4), blocks(NVFP4));
