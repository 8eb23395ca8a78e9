//! Groups of an AWQ checkpoint: an f16 scale and a whole zero point for all of a group.

use super::{Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor, nibbles_of_32};
use crate::simd::Simd;
use octavo_quant::TensorType;

macro_rules! awq {
    ($name:ident, $k:literal, $gpu:expr) => {
        format! {
            /// One f16 scale and one zero point for a group of a row.
            $name: $k weights, meta 3, low 4, high 0, top 0, group 32, offset 0, min true,
            table None,
            block_scales [0],
            scales S([d], meta, _) {
                let zero = S::and(S::load_u8(meta.add(2 * S::R)), S::iset1(15));
                (d, S::mul(d, S::to_f(zero)))
            }
            unpack(raw, codes) { nibbles_of_32(&raw[3..], codes) }
            transpose(raw, meta) {
                meta.half(0, &raw[..2]);
                meta.bytes(2, &raw[2..3]);
            }
            gpu Some($gpu)
        }
    };
}

/// Beside each 32 columns of a row: groups of 64 lie in memory as two of 32.
const OF_32: GpuScales = GpuScales {
    kernels: TensorType::AWQ_G32,
    codes: GpuCodes::Own,
    bytes: 4,
    of: |raw, _, _, out| out[..3].copy_from_slice(&raw[..3]),
    super_bytes: 0,
    supers: |_, _| {},
};

awq!(AWQ_G32, 32, OF_32);
awq!(AWQ_G64, 64, OF_32);
awq!(
    AWQ_G128,
    128,
    GpuScales {
        kernels: TensorType::AWQ_G128,
        codes: GpuCodes::Own,
        bytes: 1,
        of: |raw, _, which, out| out[0] = raw[2] & 15 | (which as u8) << 7,
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[0..2]),
    }
);

family!(blocks(AWQ_G32), blocks(AWQ_G64), blocks(AWQ_G128));
