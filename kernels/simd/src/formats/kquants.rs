//! K-quants: super-blocks of 256 weights, with one or two f16 scales that multiply smaller scales
//! of 16 or 32.

use super::{
    Fold, Format, FormatInfo, GpuCodes, GpuScales, Transposed, Visitor, eight, nibbles, six_bits,
    spread, spread_more, two_bits,
};
use crate::simd::Simd;
use octavo_quant::TensorType;

/// Scale and minimum of eight groups of 32, 6 bits each, of Q4_K and Q5_K.
///
/// Packed as 8 vectors of R bytes (low nibbles: scale | min << 4), then 4 vectors of R bytes whose
/// byte for groups `2i` and `2i+1` has the upper two bits: scale, min, scale, min from bit 0 up.
macro_rules! k45 {
    ($name:ident, high $high:literal, unpack($raw:ident, $codes:ident) $unpack:block) => {
        format! {
            /// Super-block of 256 with 6-bit scales and minima.
            $name: 256 weights, meta 16, low 4, high $high, top 0, group 32, offset 0, min true,
            table None,
            block_scales [0, 1],
            fold up to 63 times 1.0,
            scales S([d, dmin], meta, g) {
                let low = S::load_u8(meta.add((4 + g) * S::R));
                let high = S::shr(S::load_u8(meta.add((12 + g / 2) * S::R)), 4 * (g as u32 & 1));
                let scale = S::or(S::and(low, S::iset1(15)), S::shl(S::and(high, S::iset1(3)), 4));
                let min = S::or(S::shr(low, 4), S::shl(S::and(high, S::iset1(12)), 2));
                (S::mul(d, S::to_f(scale)), S::mul(dmin, S::to_f(min)))
            }
            unpack($raw, $codes) $unpack
            transpose(raw, meta) {
                meta.half(0, &raw[..2]);
                meta.half(1, &raw[2..4]);
                for g in 0..8 {
                    let (scale, min) = scale_min(&raw[4..16], g);
                    *meta.byte(4 + g) = (scale & 15) | (min & 15) << 4;
                    *meta.byte(12 + g / 2) |= ((scale >> 4) | (min >> 4) << 2) << (4 * (g % 2));
                }
            }
            gpu Some(GpuScales {
                kernels: TensorType::$name,
                codes: GpuCodes::Own,
                // 8 bits each, where the file has 6: see the head of `kernels/src/cuda/pack.rs`
                bytes: 2,
                of: |raw, u, _, out| (out[0], out[1]) = scale_min(&raw[4..16], u),
                super_bytes: 4,
                supers: |raw, out| out.copy_from_slice(&raw[0..4]),
            })
        }
    };
}

k45!(Q4_K, high 0, unpack(raw, codes) {
    for (c, q) in codes.chunks_exact_mut(64).zip(raw[16..].chunks_exact(32)) {
        nibbles(q, c);
    }
});
k45!(Q5_K, high 1, unpack(raw, codes) {
    for (j, (c, q)) in codes
        .chunks_exact_mut(64)
        .zip(raw[48..].chunks_exact(32))
        .enumerate()
    {
        nibbles(q, c);
        for (half, c) in c.chunks_exact_mut(32).enumerate() {
            spread_more(&raw[16..48], c, |h| (h >> (2 * j + half) & eight(1)) << 4);
        }
    }
});

/// Group `g`'s 6-bit scale and minimum from the 12 bytes of Q4_K and Q5_K.
#[inline(always)]
fn scale_min(s: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        (
            (s[g + 4] & 15) | (s[g - 4] >> 6) << 4,
            (s[g + 4] >> 4) | (s[g] >> 6) << 4,
        )
    }
}

format! {
    /// Super-block of 256 with an 8-bit scale for every 16.
    Q6_K: 256 weights, meta 18, low 4, high 2, top 0, group 16, offset 32, min false, table None,
    block_scales [0],
    fold up to 128 times 1.0,
    scales S([d], meta, g) {
        (S::mul(d, S::to_f(S::load_i8(meta.add((2 + g) * S::R)))), S::zero())
    }
    unpack(raw, codes) {
        for n in 0..2 {
            let (ql, qh) = (&raw[64 * n..64 * n + 64], &raw[128 + 32 * n..160 + 32 * n]);
            for part in 0..4 {
                let (from, shift) = (32 * (part % 2), 4 * (part / 2));
                let c = &mut codes[128 * n + 32 * part..128 * n + 32 * part + 32];
                spread(&ql[from..from + 32], c, |low| low >> shift & eight(15));
                spread_more(qh, c, |high| (high >> (2 * part) & eight(3)) << 4);
            }
        }
    }
    transpose(raw, meta) {
        meta.half(0, &raw[208..210]);
        meta.bytes(2, &raw[192..208]);
    }
    gpu Some(GpuScales {
        kernels: TensorType::Q6_K,
        codes: GpuCodes::Own,
        bytes: 2,
        of: |raw, u, _, out| out.copy_from_slice(&raw[192 + 2 * u..194 + 2 * u]),
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[208..210]),
    })
}

format! {
    /// Super-block of 256 in 2 bits, with a 4-bit scale and minimum for every 16.
    Q2_K: 256 weights, meta 20, low 0, high 2, top 0, group 16, offset 0, min true, table None,
    block_scales [0, 1],
    fold up to 15 times 1.0,
    scales S([d, dmin], meta, g) {
        let both = S::load_u8(meta.add((4 + g) * S::R));
        (S::mul(d, S::to_f(S::and(both, S::iset1(15)))), S::mul(dmin, S::to_f(S::shr(both, 4))))
    }
    unpack(raw, codes) { two_bits(&raw[16..80], codes) }
    transpose(raw, meta) {
        meta.half(0, &raw[80..82]);
        meta.half(1, &raw[82..84]);
        meta.bytes(4, &raw[..16]);
    }
    gpu Some(GpuScales {
        kernels: TensorType::Q2_K,
        codes: GpuCodes::Own,
        bytes: 2,
        of: |raw, u, _, out| out.copy_from_slice(&raw[2 * u..2 * u + 2]),
        super_bytes: 4,
        supers: |raw, out| out.copy_from_slice(&raw[80..84]),
    })
}

format! {
    /// Super-block of 256 in 3 bits, with a 6-bit scale for every 16.
    ///
    /// The scales stay as they are: the low nibbles of byte `v` belong to groups `v` and `v + 8`,
    /// the pairs of bits of byte `8 + v` to groups `v`, `v + 4`, `v + 8` and `v + 12`.
    Q3_K: 256 weights, meta 14, low 0, high 2, top 1, group 16, offset 4, min false, table None,
    block_scales [0],
    fold up to 32 times 1.0,
    scales S([d], meta, g) {
        let low = S::shr(S::load_u8(meta.add((2 + g % 8) * S::R)), 4 * (g as u32 / 8));
        let high = S::shr(S::load_u8(meta.add((10 + g % 4) * S::R)), 2 * (g as u32 / 4));
        (S::mul(d, six_bits::<S>(low, high)), S::zero())
    }
    unpack(raw, codes) {
        two_bits(&raw[32..96], codes);
        for (part, c) in codes.chunks_exact_mut(32).enumerate() {
            spread_more(&raw[..32], c, |top| (top >> part & eight(1)) << 2);
        }
    }
    transpose(raw, meta) {
        meta.half(0, &raw[108..110]);
        meta.bytes(2, &raw[96..108]);
    }
    gpu Some(GpuScales {
        kernels: TensorType::Q3_K,
        codes: GpuCodes::Own,
        bytes: 2,
        of: |raw, u, _, out| {
            let s = &raw[96..108];
            for (j, out) in (2 * u..2 * u + 2).zip(out) {
                let (low, high) = (s[j % 8] >> (4 * (j / 8)), s[8 + j % 4] >> (2 * (j / 4)));
                *out = (low & 15 | (high & 3) << 4).wrapping_sub(32);
            }
        },
        super_bytes: 2,
        supers: |raw, out| out.copy_from_slice(&raw[108..110]),
    })
}

family!(
    blocks(Q2_K),
    blocks(Q3_K),
    blocks(Q4_K),
    blocks(Q5_K),
    blocks(Q6_K)
);
