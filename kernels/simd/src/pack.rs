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
pub unsafe fn strip<S: Simd, F: Format>(rows: &[&[u8]], out: &mut [u8]) {
    let r = S::R;
    let bytes = F::BLOCK_BYTES;
    // the rows of the next strip mostly follow these
    let next_strip = rows.iter().map(|row| row.len()).sum();
    let mut room = [0u8; 256];
    let has_planes = F::LOW + F::HIGH + F::TOP > 0;
    let codes = &mut room[..if has_planes { F::K } else { F::CODE_BYTES }];
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
            if !has_planes {
                lanes(top, (i, r), codes, u32::from_le_bytes);
                continue;
            }
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
pub fn strip_float<S: Simd, E: Float>(rows: &[&[u8]], out: &mut [u8]) {
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
