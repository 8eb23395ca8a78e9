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
    pub(crate) top: usize,
}

/// Packs `rows` (at most `r`, each a whole number of blocks) into one strip. Rows that are missing
/// are zero.
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
            let (low, planes) = planes.split_at_mut(shape.k * shape.low / 8 * r);
            let (high, top) = planes.split_at_mut(shape.k * shape.high / 8 * r);
            pack_planes(codes, shape, i, r, [low, high, top]);
        }
    }
}

fn pack_planes(codes: &[u8], shape: Shape, i: usize, r: usize, [low, high, top]: [&mut [u8]; 3]) {
    // vectors of 4 r bytes; row i has bytes 4 i .. 4 i + 4 of each
    let lane = |plane: &mut [u8], j: usize, bytes: [u8; 4]| {
        plane[(j * r + i) * 4..(j * r + i) * 4 + 4].copy_from_slice(&bytes);
    };
    match shape.low {
        0 => {}
        8 => {
            for (j, c) in codes.chunks_exact(4).enumerate() {
                lane(low, j, [c[0], c[1], c[2], c[3]]);
            }
        }
        _ => {
            for (j, c) in codes.chunks_exact(8).enumerate() {
                lane(
                    low,
                    j,
                    std::array::from_fn(|b| (c[b] & 15) | (c[4 + b] & 15) << 4),
                );
            }
        }
    }
    for (plane, bits, from) in [
        (high, shape.high, shape.low),
        (top, shape.top, shape.low + shape.high),
    ] {
        // k-groups of four in one vector of the plane, if there is one
        let Some(groups) = 8usize.checked_div(bits) else {
            continue;
        };
        let mask = (1u8 << bits) - 1;
        for (j, c) in codes.chunks_exact(4 * groups).enumerate() {
            let mut bytes = [0; 4];
            for (at, c) in c.chunks_exact(4).enumerate() {
                for (byte, c) in bytes.iter_mut().zip(c) {
                    *byte |= ((c >> from) & mask) << (at * bits);
                }
            }
            lane(plane, j, bytes);
        }
    }
}

/// The block's scales, transposed: see the formats' own comments.
fn pack_meta(ty: TensorType, raw: &[u8], i: usize, r: usize, meta: &mut [u8]) {
    let mut meta = Transposed { meta, i, r };
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::IQ4_NL => {
            meta.half(0, &raw[..2])
        }
        TensorType::AWQ_G32 | TensorType::AWQ_G64 | TensorType::AWQ_G128 => {
            meta.half(0, &raw[..2]);
            meta.bytes(2, &raw[2..3]);
        }
        TensorType::MXFP4 => meta.bytes(0, &raw[..1]),
        TensorType::Q2_K => {
            meta.half(0, &raw[80..82]);
            meta.half(1, &raw[82..84]);
            meta.bytes(4, &raw[..16]);
        }
        TensorType::Q3_K => {
            meta.half(0, &raw[108..110]);
            meta.bytes(2, &raw[96..108]);
        }
        TensorType::IQ4_XS => {
            meta.half(0, &raw[..2]);
            meta.bytes(2, &raw[4..8]);
            meta.bytes(6, &raw[2..4]);
        }
        TensorType::Q4_1 | TensorType::Q5_1 => {
            meta.half(0, &raw[..2]);
            meta.half(1, &raw[2..4]);
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            meta.half(0, &raw[..2]);
            meta.half(1, &raw[2..4]);
            for g in 0..8 {
                let (scale, min) = scale_min(&raw[4..16], g);
                meta.meta[(4 + g) * r + i] = (scale & 15) | (min & 15) << 4;
                meta.meta[(12 + g / 2) * r + i] |=
                    ((scale >> 4) | (min >> 4) << 2) << (4 * (g % 2));
            }
        }
        TensorType::Q6_K => {
            meta.half(0, &raw[208..210]);
            meta.bytes(2, &raw[192..208]);
        }
        other => unreachable!("no packed form of {other}"),
    }
}

/// Row `i` of `r` rows' scales.
struct Transposed<'a> {
    meta: &'a mut [u8],
    i: usize,
    r: usize,
}

impl Transposed<'_> {
    /// The half float that `at` rows of halves come before.
    fn half(&mut self, at: usize, half: &[u8]) {
        let place = (at * self.r + self.i) * 2;
        self.meta[place..place + 2].copy_from_slice(half);
    }

    /// Bytes, the first of which `at` rows of bytes come before.
    fn bytes(&mut self, at: usize, bytes: &[u8]) {
        for (g, byte) in bytes.iter().enumerate() {
            self.meta[(at + g) * self.r + self.i] = *byte;
        }
    }
}

/// Group `g`'s 6-bit scale and minimum out of the 12 bytes of Q4_K and Q5_K.
pub(crate) fn scale_min(s: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        (
            (s[g + 4] & 15) | (s[g - 4] >> 6) << 4,
            (s[g + 4] >> 4) | (s[g] >> 6) << 4,
        )
    }
}

/// A block's codes in the order of k, unsigned.
pub(crate) fn unpack_codes(ty: TensorType, raw: &[u8], codes: &mut [u8]) {
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
            for (j, (c, q)) in codes
                .chunks_exact_mut(64)
                .zip(raw[48..].chunks_exact(32))
                .enumerate()
            {
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
        TensorType::Q2_K => two_bits(&raw[16..80], codes),
        TensorType::Q3_K => {
            two_bits(&raw[32..96], codes);
            for (at, c) in codes.iter_mut().enumerate() {
                *c |= (raw[at % 32] >> (at / 32) & 1) << 2;
            }
        }
        TensorType::IQ4_NL => nibbles(&raw[2..], codes),
        TensorType::MXFP4 => nibbles(&raw[1..], codes),
        TensorType::IQ4_XS => nibbles_of_32(&raw[8..], codes),
        TensorType::AWQ_G32 | TensorType::AWQ_G64 | TensorType::AWQ_G128 => {
            nibbles_of_32(&raw[3..], codes)
        }
        other => unreachable!("no packed form of {other}"),
    }
}

/// 32 bytes for 128 codes: bits 0 and 1 are the first 32.
fn two_bits(q: &[u8], codes: &mut [u8]) {
    for (c, q) in codes.chunks_exact_mut(128).zip(q.chunks_exact(32)) {
        for (j, c) in c.chunks_exact_mut(32).enumerate() {
            c.iter_mut().zip(q).for_each(|(c, q)| *c = q >> (2 * j) & 3);
        }
    }
}

/// 16 bytes for each 32 codes.
fn nibbles_of_32(q: &[u8], codes: &mut [u8]) {
    for (c, q) in codes.chunks_exact_mut(32).zip(q.chunks_exact(16)) {
        nibbles(q, c);
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
