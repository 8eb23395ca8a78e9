//! From rows as they lie in a file to strips as the kernels read them (layout: `formats`).
//!
//! Plain integer shuffling, done once at load; no value changes and no byte is added.

use crate::formats::{Blocks, Transposed};

/// Packs `rows` (at most `r`, each a whole number of blocks) into one strip. Rows that are missing
/// are zero.
pub(crate) fn strip(format: &Blocks, rows: &[&[u8]], r: usize, out: &mut [u8]) {
    let bytes = format.ty.block_bytes();
    out.fill(0);
    let mut codes = [0u8; 256];
    let codes = &mut codes[..format.k];
    for (i, row) in rows.iter().enumerate() {
        for (raw, block) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(bytes * r)) {
            let (meta, planes) = block.split_at_mut(format.meta * r);
            (format.transpose)(raw, &mut Transposed { meta, i, r });
            (format.unpack)(raw, codes);
            let (low, planes) = planes.split_at_mut(format.k * format.low / 8 * r);
            let (high, top) = planes.split_at_mut(format.k * format.high / 8 * r);
            pack_planes(codes, format, i, r, [low, high, top]);
        }
    }
}

fn pack_planes(
    codes: &[u8],
    format: &Blocks,
    i: usize,
    r: usize,
    [low, high, top]: [&mut [u8]; 3],
) {
    // vectors of 4 r bytes; row i has bytes 4 i .. 4 i + 4 of each
    let lane = |plane: &mut [u8], j: usize, bytes: [u8; 4]| {
        plane[(j * r + i) * 4..(j * r + i) * 4 + 4].copy_from_slice(&bytes);
    };
    match format.low {
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
        (high, format.high, format.low),
        (top, format.top, format.low + format.high),
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

/// Float rows of `bytes` per element to `[k][r]`.
pub(crate) fn strip_float(bytes: usize, rows: &[&[u8]], r: usize, out: &mut [u8]) {
    out.fill(0);
    for (i, row) in rows.iter().enumerate() {
        for (e, to) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(bytes * r)) {
            to[i * bytes..(i + 1) * bytes].copy_from_slice(e);
        }
    }
}
