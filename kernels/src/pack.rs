//! From rows as they lie in a file to strips as the kernels read them (layout: `formats`).
//!
//! Plain integer shuffling, done once at load; no value changes and no byte is added.

use octavo_quant::TensorType;

/// What packing needs to know of a format: the numbers of `formats::Format`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ty: TensorType,
    pub(crate) k: usize,
    pub(crate) meta: usize,
    pub(crate) low: usize,
    pub(crate) high: usize,
}

/// Packs `rows` (at most `r`, each a whole number of blocks) into one strip. Rows that are missing are zero.
pub(crate) fn strip(shape: Shape, rows: &[&[u8]], r: usize, out: &mut [u8]) {
    let bytes = shape.ty.block_bytes();
    out.fill(0);
    let mut codes = [0u8; 256];
    for (i, row) in rows.iter().enumerate() {
        for (raw, block) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(bytes * r)) {
            let (meta, planes) = block.split_at_mut(shape.meta * r);
            pack_meta(shape.ty, raw, i, r, meta);
            let codes = &mut codes[..shape.k];
            unpack_codes(shape.ty, raw, codes);
            let (low, high) = planes.split_at_mut(shape.k * shape.low / 8 * r);
            pack_planes(codes, shape, i, r, low, high);
        }
    }
}

fn pack_planes(codes: &[u8], shape: Shape, i: usize, r: usize, low: &mut [u8], high: &mut [u8]) {
    // vectors of 4 r bytes; row i has bytes 4 i .. 4 i + 4 of each
    let lane = |plane: &mut [u8], j: usize, bytes: [u8; 4]| {
        plane[(j * r + i) * 4..(j * r + i) * 4 + 4].copy_from_slice(&bytes);
    };
    if shape.low == 8 {
        for (j, c) in codes.chunks_exact(4).enumerate() {
            lane(low, j, [c[0], c[1], c[2], c[3]]);
        }
    } else {
        for (j, c) in codes.chunks_exact(8).enumerate() {
            lane(low, j, std::array::from_fn(|b| (c[b] & 15) | (c[4 + b] & 15) << 4));
        }
    }
    // k-groups of four in one vector of the high plane, if there is one
    if let Some(groups) = 8usize.checked_div(shape.high) {
        let mask = (1u8 << shape.high) - 1;
        for (j, c) in codes.chunks_exact(4 * groups).enumerate() {
            let mut bytes = [0; 4];
            for (at, c) in c.chunks_exact(4).enumerate() {
                for (byte, c) in bytes.iter_mut().zip(c) {
                    *byte |= ((c >> 4) & mask) << (at * shape.high);
                }
            }
            lane(high, j, bytes);
        }
    }
}

/// The block's scales, transposed: see the formats' own comments.
fn pack_meta(ty: TensorType, raw: &[u8], i: usize, r: usize, meta: &mut [u8]) {
    let mut half = |at: usize, h: &[u8]| meta[(at * r + i) * 2..(at * r + i) * 2 + 2].copy_from_slice(h);
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => half(0, &raw[..2]),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            half(0, &raw[..2]);
            half(1, &raw[2..4]);
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            half(0, &raw[..2]);
            half(1, &raw[2..4]);
            for g in 0..8 {
                let (scale, min) = scale_min(&raw[4..16], g);
                meta[(4 + g) * r + i] = (scale & 15) | (min & 15) << 4;
                meta[(12 + g / 2) * r + i] |= ((scale >> 4) | (min >> 4) << 2) << (4 * (g % 2));
            }
        }
        TensorType::Q6_K => {
            half(0, &raw[208..210]);
            for (g, scale) in raw[192..208].iter().enumerate() {
                meta[(2 + g) * r + i] = *scale;
            }
        }
        other => unreachable!("no packed form of {other}"),
    }
}

/// Group `g`'s 6-bit scale and minimum out of the 12 bytes of Q4_K and Q5_K.
fn scale_min(s: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        ((s[g + 4] & 15) | (s[g - 4] >> 6) << 4, (s[g + 4] >> 4) | (s[g] >> 6) << 4)
    }
}

/// A block's codes in the order of k, unsigned.
fn unpack_codes(ty: TensorType, raw: &[u8], codes: &mut [u8]) {
    match ty {
        TensorType::Q4_0 => nibbles(&raw[2..], codes),
        TensorType::Q4_1 => nibbles(&raw[4..], codes),
        TensorType::Q5_0 => fifth_bits(&raw[2..6], &raw[6..], codes),
        TensorType::Q5_1 => fifth_bits(&raw[4..8], &raw[8..], codes),
        TensorType::Q8_0 => {
            for (c, q) in codes.iter_mut().zip(&raw[2..]) {
                *c = q ^ 0x80; // two's complement to offset 128
            }
        }
        TensorType::Q4_K => {
            for (c, q) in codes.chunks_exact_mut(64).zip(raw[16..].chunks_exact(32)) {
                nibbles(q, c);
            }
        }
        TensorType::Q5_K => {
            for (j, (c, q)) in codes.chunks_exact_mut(64).zip(raw[48..].chunks_exact(32)).enumerate() {
                nibbles(q, c);
                for (l, h) in raw[16..48].iter().enumerate() {
                    c[l] |= (h >> (2 * j) & 1) << 4;
                    c[32 + l] |= (h >> (2 * j + 1) & 1) << 4;
                }
            }
        }
        TensorType::Q6_K => {
            for n in 0..2 {
                let (ql, qh) = (&raw[64 * n..64 * n + 64], &raw[128 + 32 * n..160 + 32 * n]);
                for part in 0..4 {
                    let (from, shift) = (32 * (part % 2), 4 * (part / 2));
                    let c = &mut codes[128 * n + 32 * part..128 * n + 32 * part + 32];
                    for l in 0..32 {
                        c[l] = (ql[from + l] >> shift & 15) | (qh[l] >> (2 * part) & 3) << 4;
                    }
                }
            }
        }
        other => unreachable!("no packed form of {other}"),
    }
}

/// Low nibbles are the first half, high nibbles the second.
fn nibbles(q: &[u8], codes: &mut [u8]) {
    let (first, second) = codes.split_at_mut(codes.len() / 2);
    for ((a, b), q) in first.iter_mut().zip(second).zip(q) {
        (*a, *b) = (q & 15, q >> 4);
    }
}

fn fifth_bits(qh: &[u8], q: &[u8], codes: &mut [u8]) {
    nibbles(q, codes);
    for (k, c) in codes.iter_mut().enumerate() {
        *c |= (qh[k / 8] >> (k % 8) & 1) << 4;
    }
}

/// Float rows of `bytes` per element to `[k][r]`.
pub(crate) fn strip_float(bytes: usize, rows: &[&[u8]], r: usize, out: &mut [u8]) {
    out.fill(0);
    for (i, row) in rows.iter().enumerate() {
        for (e, to) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(bytes * r)) {
            to[i * bytes..(i + 1) * bytes].copy_from_slice(e);
        }
    }
}
