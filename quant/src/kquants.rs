//! Q2_K .. Q6_K and Q8_K: super-blocks of 256 values. Layouts and decoders; the quantizers are in
//! `kquantize`.
//!
//! | type | fields in file order (bytes) | sub-blocks | value |
//! |---|---|---|---|
//! | Q2_K | `scales` 16, `qs` 64, `d` f16, `dmin` f16 | 16 x 16 | `(d * sc) * q - dmin * m` |
//! | Q3_K | `hmask` 32, `qs` 64, `scales` 12, `d` f16 | 16 x 16 | `(d * (sc - 32)) * (q - 4)` |
//! | Q4_K | `d` f16, `dmin` f16, `scales` 12, `qs` 128 | 8 x 32 | `(d * sc) * q - dmin * m` |
//! |Q5_K|`d` f16, `dmin` f16, `scales` 12, `qh` 32, `qs` 128|8 x 32|`(d * sc) * q - dmin * m`|
//! | Q6_K | `ql` 128, `qh` 64, `scales` i8 x 16, `d` f16 | 16 x 16 | `(d * sc) * (q - 32)` |
//! | Q8_K | `d` f32, `qs` i8 x 256, `bsums` i16 x 16 | - | `d * q` |
//!
//! Places of the bits of value `i` (0..256):
//!
//! | bits | byte | bits in the byte |
//! |---|---|---|
//! | 2 of Q2_K, low 2 of Q3_K | `qs[i / 128 * 32 + i % 32]` | `2 * (i % 128 / 32)` up |
//! | bit 2 of Q3_K | `hmask[i % 32]` | `i / 32` |
//! | low 4 of Q4_K and Q5_K | `qs[i / 64 * 32 + i % 32]` | `4 * (i % 64 / 32)` up |
//! | bit 4 of Q5_K | `qh[i % 32]` | `i / 32` |
//! | low 4 of Q6_K | `ql[i / 128 * 64 + i % 64]` | `4 * (i % 128 / 64)` up |
//! | high 2 of Q6_K | `qh[i / 128 * 32 + i % 32]` | `2 * (i % 128 / 32)` up |
//!
//! Scales: a byte of Q2_K is `sc` (low 4 bits) and `m` (high 4). The 12 bytes of Q3_K hold 16
//! scales of 6 bits: the low 4 bits of scale `j` in byte `j % 8`, nibble `j / 8`; its high 2 bits
//! in byte `8 + j % 4` at bit `2 * (j / 4)`. The 12 bytes of Q4_K and Q5_K hold 8 pairs of 6 bits:
//! for `j < 4` `sc` is in byte `j` and `m` in byte `j + 4` (low 6 bits); for `j >= 4` their low 4
//! bits are the nibbles of byte `j + 4`, their high 2 bits the top of bytes `j - 4` and `j`.

use crate::bits::{f16_at, u32_at};
use crate::format::{Format, block_format};
use crate::kquantize;

/// Returns the 2 bits of value `i` in the 64 bytes of Q2_K, Q3_K and (high bits) Q6_K.
fn crumb(qs: &[u8], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3
}

/// Returns the 4 bits of value `i` in the 128 bytes of Q4_K and Q5_K.
fn nibble(qs: &[u8], i: usize) -> u8 {
    qs[i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15
}

/// Returns the single bit of value `i` in the 32 bytes of `hmask` and Q5_K's `qh`.
fn high_bit(qh: &[u8], i: usize) -> u8 {
    qh[i % 32] >> (i / 32) & 1
}

/// Returns scale `j` of Q3_K, 0..64.
pub(crate) fn q3_k_scale(scales: &[u8], j: usize) -> u8 {
    scales[j % 8] >> (4 * (j / 8)) & 15 | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4
}

/// Returns scale and minimum `j` of Q4_K and Q5_K, 0..64 each.
pub(crate) fn q4_k_scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (
            s[j + 4] & 15 | s[j - 4] >> 6 << 4,
            s[j + 4] >> 4 | s[j] >> 6 << 4,
        )
    }
}

pub(crate) fn decode_q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let s = scales[i / 16];
        *y = d * f32::from(s & 15) * f32::from(crumb(qs, i)) - dmin * f32::from(s >> 4);
    }
}

pub(crate) fn decode_q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let (hmask, qs, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let d = f16_at(b, 108);
    for (i, y) in y.iter_mut().enumerate() {
        let q = crumb(qs, i) | high_bit(hmask, i) << 2;
        *y = d * (f32::from(q3_k_scale(scales, i / 16)) - 32.0) * (f32::from(q) - 4.0);
    }
}

pub(crate) fn decode_q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, qs) = (&b[4..16], &b[16..]);
    for (i, y) in y.iter_mut().enumerate() {
        let (sc, m) = q4_k_scale_min(scales, i / 32);
        *y = d * f32::from(sc) * f32::from(nibble(qs, i)) - dmin * f32::from(m);
    }
}

pub(crate) fn decode_q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let (scales, qh, qs) = (&b[4..16], &b[16..48], &b[48..]);
    for (i, y) in y.iter_mut().enumerate() {
        let (sc, m) = q4_k_scale_min(scales, i / 32);
        let q = nibble(qs, i) | high_bit(qh, i) << 4;
        *y = d * f32::from(sc) * f32::from(q) - dmin * f32::from(m);
    }
}

pub(crate) fn decode_q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let (ql, qh, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = f16_at(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let low = ql[i / 128 * 64 + i % 64] >> (4 * (i % 128 / 64)) & 15;
        let q = low | crumb(qh, i) << 4;
        *y = d * f32::from(scales[i / 16] as i8) * (f32::from(q) - 32.0);
    }
}

/// Decodes Q8_K; `bsums` (sums of 16 quants each) are for dot products only.
pub(crate) fn decode_q8_k(b: &[u8; 292], y: &mut [f32; 256]) {
    let d = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    for (y, &q) in y.iter_mut().zip(&b[4..260]) {
        *y = d * f32::from(q as i8);
    }
}

/// Format table of this family.
pub(crate) static FORMATS: &[Format] = &[
    block_format!(Q2_K, decode_q2_k, finite(80, 82), kquantize::quantize_q2_k),
    block_format!(Q3_K, decode_q3_k, finite(108), kquantize::quantize_q3_k),
    block_format!(Q4_K, decode_q4_k, finite(0, 2), kquantize::quantize_q4_k),
    block_format!(Q5_K, decode_q5_k, finite(0, 2), kquantize::quantize_q5_k),
    block_format!(Q6_K, decode_q6_k, finite(208), kquantize::quantize_q6_k),
    block_format!(
        Q8_K,
        decode_q8_k,
        good(|b| u32_at(b, 0) & 0x7f80_0000 != 0x7f80_0000)
    ),
];
