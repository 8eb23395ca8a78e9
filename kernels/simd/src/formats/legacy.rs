//! Formats with one f16 scale, and perhaps a minimum, for 32 weights.

use super::{Format, FormatInfo, GpuScales, Transposed, Visitor, eight, nibbles};
use crate::simd::Simd;
use octavo_quant::TensorType;

/// One f16 scale (and minimum) for 32 weights: `low` and `high` bits.
macro_rules! legacy {
    ($name:ident, low $low:literal, high $high:literal, offset $offset:literal,
        unpack($raw:ident, $codes:ident) $unpack:block) => {
        format! {
            /// One f16 scale for 32 weights.
            $name: 32 weights, meta 2, low $low, high $high, top 0, group 32, offset $offset,
            min false, table None,
            block_scales [0],
            scales S([d], _meta, _) { (d, S::zero()) }
            unpack($raw, $codes) $unpack
            transpose(raw, meta) { meta.half(0, &raw[..2]) }
            gpu GpuScales::first(TensorType::$name, 2)
        }
    };
    ($name:ident, low $low:literal, high $high:literal, min,
        unpack($raw:ident, $codes:ident) $unpack:block) => {
        format! {
            /// One f16 scale and minimum for 32 weights.
            $name: 32 weights, meta 4, low $low, high $high, top 0, group 32, offset 0, min true,
            table None,
            block_scales [0, 1],
            // ggml's minimum is added, ours subtracted
            scales S([d, m], _meta, _) { (d, S::sub(S::zero(), m)) }
            unpack($raw, $codes) $unpack
            transpose(raw, meta) {
                meta.half(0, &raw[..2]);
                meta.half(1, &raw[2..4]);
            }
            gpu GpuScales::first(TensorType::$name, 4)
        }
    };
}

legacy!(Q4_0, low 4, high 0, offset 8, unpack(raw, codes) { nibbles(&raw[2..], codes) });
legacy!(Q4_1, low 4, high 0, min, unpack(raw, codes) { nibbles(&raw[4..], codes) });
legacy!(Q5_0, low 4, high 1, offset 16, unpack(raw, codes) {
    fifth_bits(&raw[2..6], &raw[6..], codes)
});
legacy!(Q5_1, low 4, high 1, min, unpack(raw, codes) {
    fifth_bits(&raw[4..8], &raw[8..], codes)
});
legacy!(Q8_0, low 8, high 0, offset 128, unpack(raw, codes) {
    for (c, q) in codes.iter_mut().zip(&raw[2..]) {
        *c = q ^ 0x80; // two's complement to offset 128
    }
});

/// Nibbles, and a fifth bit for each in the order of k.
#[inline(always)]
fn fifth_bits(qh: &[u8], q: &[u8], codes: &mut [u8]) {
    nibbles(q, codes);
    for (c, h) in codes.as_chunks_mut().0.iter_mut().zip(qh) {
        // bit k of byte k is its bit, and any non-zero byte carries into the highest bit
        let own = eight(*h) & 0x8040_2010_0804_0201;
        let fifth = (own + eight(0x7f)) >> 3 & eight(16);
        *c = (u64::from_le_bytes(*c) | fifth).to_le_bytes();
    }
}

family!(
    blocks(Q4_0),
    blocks(Q4_1),
    blocks(Q5_0),
    blocks(Q5_1),
    blocks(Q8_0)
);
