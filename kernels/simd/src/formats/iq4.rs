//! Formats whose codes are indices into a table of sixteen values.

use super::{
    Fold, Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor, nibbles, nibbles_of_32,
    six_bits,
};
use crate::simd::Simd;
use octavo_quant::TensorType;

/// ggml's sixteen values of IQ4, plus 128.
const IQ4: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

format! {
    /// One f16 scale for 32 values of a table.
    IQ4_NL: 32 weights, meta 2, low 4, high 0, top 0, group 32, offset 128, min false,
    table Some(IQ4),
    block_scales [0],
    scales S([d], _meta, _) { (d, S::zero()) }
    unpack(raw, codes) { nibbles(&raw[2..], codes) }
    transpose(raw, meta) { meta.half(0, &raw[..2]) }
    gpu GpuScales::first(TensorType::IQ4_NL, 2)
}

format! {
    /// Super-block of 256 values of a table, with a 6-bit scale for every 32.
    ///
    /// The scales stay as they are: nibbles of byte `2 + v` belong to groups `2 v` and `2 v + 1`,
    /// the pairs of bits of byte `6 + v` to groups `4 v` to `4 v + 3`.
    IQ4_XS: 256 weights, meta 8, low 4, high 0, top 0, group 32, offset 128, min false,
    table Some(IQ4),
    block_scales [0],
    fold up to 32 times 1.0,
    scales S([d], meta, g) {
        let low = S::shr(S::load_u8(meta.add((2 + g / 2) * S::R)), 4 * (g as u32 % 2));
        let high = S::shr(S::load_u8(meta.add((6 + g / 4) * S::R)), 2 * (g as u32 % 4));
        (S::mul(d, six_bits::<S>(low, high)), S::zero())
    }
    unpack(raw, codes) { nibbles_of_32(&raw[8..], codes) }
    transpose(raw, meta) {
        meta.half(0, &raw[..2]);
        meta.bytes(2, &raw[4..8]);
        meta.bytes(6, &raw[2..4]);
    }
    gpu Some(GpuScales {
        kernels: TensorType::IQ4_XS,
        codes: GpuCodes::Own,
        bytes: 1,
        of: |raw, u, _, out| {
            let high = u16::from_le_bytes([raw[2], raw[3]]);
            let scale = (raw[4 + u / 2] >> (4 * (u % 2)) & 15) | ((high >> (2 * u) & 3) as u8) << 4;
            out[0] = scale.wrapping_sub(32);
        },
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[0..2]),
    })
}

family!(blocks(IQ4_NL), blocks(IQ4_XS));
