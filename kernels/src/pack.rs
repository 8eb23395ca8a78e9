//! Packs rows in a file's layout into strips in the kernels' layout (`formats`).
//!
//! Plain integer shuffling, done once at load; no value changes and no byte is added. Block by
//! block, so that a block of all rows is written while it is in the L1 cache, and in words of four
//! codes, one lane of a bit plane. Instantiated for each instruction set like the kernels: the
//! compiler vectorizes it.

use crate::formats::{Float, Format, Transposed};
use crate::simd::Simd;

/// Bytes fetched from memory at once.
const LINE: usize = 64;

/// Packs `rows` (at most `S::R`, each a whole number of blocks) into one strip. Rows that are
/// missing are zero.
///
/// # Safety
/// As the head of `simd.rs` says.
#[inline(always)]
pub(crate) unsafe fn strip<S: Simd, F: Format>(rows: &[&[u8]], out: &mut [u8]) {
    let r = S::R;
    let bytes = F::BLOCK_BYTES;
    // the rows of the next strip mostly follow these
    let next_strip = rows.iter().map(|row| row.len()).sum();
    let mut room = [0u8; 256];
    let codes = &mut room[..F::K];
    for (b, block) in out.chunks_exact_mut(bytes * r).enumerate() {
        let (meta, planes) = block.split_at_mut(F::META * r);
        // scales are put together from parts
        meta.fill(0);
        if rows.len() < r {
            planes.fill(0);
        }
        let (low, planes) = planes.split_at_mut(F::K * F::LOW / 8 * r);
        let (high, top) = planes.split_at_mut(F::K * F::HIGH / 8 * r);
        for (i, row) in rows.iter().enumerate() {
            let raw = &row[b * bytes..(b + 1) * bytes];
            let next = raw.as_ptr().wrapping_add(next_strip);
            for line in (0..bytes).step_by(LINE) {
                // SAFETY: a hint, of any address; the instruction set is the caller's promise.
                unsafe { S::prefetch_far(next.wrapping_add(line)) };
            }
            F::transpose(raw, &mut Transposed { meta, i, r });
            F::unpack(raw, codes);
            match F::LOW {
                0 => {}
                8 => lanes(low, (i, r), codes, |c: [u8; 4]| u32::from_le_bytes(c)),
                _ => lanes(low, (i, r), codes, |c: [u8; 8]| {
                    let c = u64::from_le_bytes(c);
                    (c as u32 & 0x0f0f_0f0f) | ((c >> 32) as u32 & 0x0f0f_0f0f) << 4
                }),
            }
            match F::HIGH {
                0 => {}
                1 => lanes(high, (i, r), codes, |c: [u8; 32]| words(c, 1, F::LOW)),
                _ => lanes(high, (i, r), codes, |c: [u8; 16]| words(c, 2, F::LOW)),
            }
            if F::TOP == 1 {
                lanes(top, (i, r), codes, |c: [u8; 32]| {
                    words(c, 1, F::LOW + F::HIGH)
                });
            }
        }
    }
}

/// Writes lane `i` of all vectors of a plane, each made of `N` codes.
#[inline(always)]
fn lanes<const N: usize>(
    plane: &mut [u8],
    (i, r): (usize, usize),
    codes: &[u8],
    lane: impl Fn([u8; N]) -> u32,
) {
    let (lanes, _) = plane.as_chunks_mut::<4>();
    let (codes, _) = codes.as_chunks::<N>();
    // all words first: these are adjacent, so that the compiler vectorizes them
    let mut words = [0u32; 64];
    for (word, c) in words.iter_mut().zip(codes) {
        *word = lane(*c);
    }
    let vectors = lanes.iter_mut().skip(i).step_by(r);
    for (to, word) in vectors.zip(&words[..codes.len()]) {
        *to = word.to_le_bytes();
    }
}

/// Packs the `bits` bits from `from` on of every code: each further four codes go to higher bits of
/// the same bytes.
#[inline(always)]
fn words<const N: usize>(codes: [u8; N], bits: usize, from: usize) -> u32 {
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    let (words, _) = codes.as_chunks::<4>();
    words.iter().enumerate().fold(0, |all, (at, c)| {
        all | ((u32::from_le_bytes(*c) >> from) & mask) << (at * bits)
    })
}

/// Packs rows of floats as `[k][S::R]`.
#[inline(always)]
pub(crate) fn strip_float<S: Simd, E: Float>(rows: &[&[u8]], out: &mut [u8]) {
    let r = S::R;
    if rows.len() < r {
        out.fill(0);
    }
    for (i, row) in rows.iter().enumerate() {
        for (e, to) in row
            .chunks_exact(E::BYTES)
            .zip(out.chunks_exact_mut(E::BYTES * r))
        {
            to[i * E::BYTES..(i + 1) * E::BYTES].copy_from_slice(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::{Blocks, Row, Transposed, rows};
    use crate::isa::Isa;

    /// Packs rows as the layout is described, code by code.
    fn plain(format: &Blocks, rows: &[Vec<u8>], r: usize) -> Vec<u8> {
        let (bytes, k) = (format.ty.block_bytes(), format.k);
        let blocks = rows[0].len() / bytes;
        let mut out = vec![0; blocks * bytes * r];
        for (i, row) in rows.iter().enumerate() {
            for (raw, block) in row.chunks(bytes).zip(out.chunks_mut(bytes * r)) {
                let (meta, planes) = block.split_at_mut(format.meta * r);
                (format.transpose)(raw, &mut Transposed { meta, i, r });
                let mut codes = vec![0; k];
                (format.unpack)(raw, &mut codes);
                let (mut start, mut from) = (0, 0);
                for bits in [format.low, format.high, format.top] {
                    for (at, code) in codes.iter().enumerate() {
                        let Some(groups) = 8usize.checked_div(bits) else {
                            break;
                        };
                        let (group, byte) = (at / 4, at % 4);
                        let vector = start + group / groups * 4 * r;
                        let code = u32::from(code >> from) & ((1 << bits) - 1);
                        planes[vector + 4 * i + byte] |= (code << (group % groups * bits)) as u8;
                    }
                    start += k * bits / 8 * r;
                    from += bits;
                }
            }
        }
        out
    }

    #[test]
    fn strips_have_every_code_in_its_place() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        for isa in Isa::available() {
            let table = isa.table();
            let r = table.strip;
            for Row { ty, blocks } in rows() {
                let Some(kernels) = (table.packed)(*ty) else {
                    continue;
                };
                for (n, blocks_a_row) in [(r, 1), (r, 3), (r - 1, 2), (1, 1)] {
                    let row_bytes = blocks_a_row * ty.block_bytes();
                    let given: Vec<Vec<u8>> = (0..n)
                        .map(|_| (0..row_bytes).map(|_| random()).collect())
                        .collect();
                    let expected = match blocks {
                        Some(format) => plain(format, &given, r),
                        None => (0..row_bytes * r)
                            .map(|at| {
                                let (e, b) = (ty.block_bytes(), at % ty.block_bytes());
                                given
                                    .get(at / e % r)
                                    .map_or(0, |row| row[at / (e * r) * e + b])
                            })
                            .collect(),
                    };
                    // old contents must not show
                    let mut got = vec![0xff; expected.len()];
                    let given: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
                    // SAFETY: the CPU has the instruction set.
                    unsafe { (kernels.pack)(&given, &mut got) };
                    assert!(
                        got == expected,
                        "{isa} {ty}: {n} rows of {blocks_a_row} blocks"
                    );
                }
            }
        }
    }
}
