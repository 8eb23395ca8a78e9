//! Packs rows in a file's layout into strips in the kernels' layout (`formats`).
//!
//! Plain integer shuffling, done once at load, or before each use with weights that are not
//! repacked; no value changes and no byte is added. Block by block: the codes of each row become
//! words, one lane of a bit plane each, and the words of all rows are transposed. Instantiated for
//! each instruction set like the kernels: the compiler vectorizes the rest.

use crate::formats::{Float, Format, Transposed};
use crate::simd::Simd;

/// Bytes fetched from memory at once.
const LINE: usize = 64;

/// Most rows of a strip, and most words of a row's codes in a block.
const ROWS: usize = 16;
const WORDS: usize = 64;

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
    const { assert!(S::R <= ROWS && F::CODE_BYTES <= 4 * WORDS) };
    // rows that are missing stay zero
    let mut words = [[0u32; WORDS]; ROWS];
    for (b, block) in out.chunks_exact_mut(bytes * r).enumerate() {
        let (meta, planes) = block.split_at_mut(F::META * r);
        // scales are put together from parts
        meta.fill(0);
        let mut n = 0;
        for (i, (row, words)) in rows.iter().zip(&mut words).enumerate() {
            let raw = &row[b * bytes..(b + 1) * bytes];
            let next = raw.as_ptr().wrapping_add(next_strip);
            for line in (0..bytes).step_by(LINE) {
                // SAFETY: a hint, of any address; the instruction set is the caller's promise.
                unsafe { S::prefetch_far(next.wrapping_add(line)) };
            }
            F::transpose(raw, &mut Transposed { meta, i, r });
            F::unpack(raw, codes);
            n = words_of::<F>(codes, words);
        }
        let (columns, rest) = planes.as_chunks_mut::<4>();
        assert!(
            columns.len() == n * r && rest.is_empty(),
            "{n} words of each row"
        );
        let (from, to) = (
            words.as_ptr().cast::<u32>(),
            columns.as_mut_ptr().cast::<u8>(),
        );
        for first in (0..n).step_by(r) {
            // SAFETY: `r` rows of WORDS words, of which `r` from `first` on are there: both are
            // powers of two. The block has `n` columns of `r` words.
            unsafe { S::transpose(from.add(first), WORDS, n - first, to.add(4 * r * first)) };
        }
    }
}

/// Writes the words of a row's codes, in the order of their planes; returns their number.
#[inline(always)]
fn words_of<F: Format>(codes: &[u8], to: &mut [u32; WORDS]) -> usize {
    let mut n = 0;
    if F::LOW + F::HIGH + F::TOP == 0 {
        plane(codes, to, &mut n, u32::from_le_bytes);
        return n;
    }
    match F::LOW {
        0 => {}
        8 => plane(codes, to, &mut n, |c: [u8; 4]| u32::from_le_bytes(c)),
        _ => plane(codes, to, &mut n, |c: [u8; 8]| {
            let c = u64::from_le_bytes(c);
            (c as u32 & 0x0f0f_0f0f) | ((c >> 32) as u32 & 0x0f0f_0f0f) << 4
        }),
    }
    match F::HIGH {
        0 => {}
        1 => plane(codes, to, &mut n, |c: [u8; 32]| packed(c, 1, F::LOW)),
        _ => plane(codes, to, &mut n, |c: [u8; 16]| packed(c, 2, F::LOW)),
    }
    if F::TOP == 1 {
        plane(codes, to, &mut n, |c: [u8; 32]| {
            packed(c, 1, F::LOW + F::HIGH)
        });
    }
    n
}

/// Appends the words of a plane, each made of `N` codes.
#[inline(always)]
fn plane<const N: usize>(
    codes: &[u8],
    to: &mut [u32; WORDS],
    n: &mut usize,
    word: impl Fn([u8; N]) -> u32,
) {
    let (codes, _) = codes.as_chunks::<N>();
    for (to, c) in to[*n..].iter_mut().zip(codes) {
        *to = word(*c);
    }
    *n += codes.len();
}

/// Packs the `bits` bits from `from` on of every code: each further four codes go to higher bits of
/// the same bytes.
#[inline(always)]
fn packed<const N: usize>(codes: [u8; N], bits: usize, from: usize) -> u32 {
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    let (words, _) = codes.as_chunks::<4>();
    words.iter().enumerate().fold(0, |all, (at, c)| {
        all | ((u32::from_le_bytes(*c) >> from) & mask) << (at * bits)
    })
}

/// Packs rows of floats as `[k][S::R]`.
///
/// # Safety
/// As the head of `simd.rs` says.
#[inline(always)]
pub unsafe fn strip_float<S: Simd, E: Float>(rows: &[&[u8]], out: &mut [u8]) {
    let r = S::R;
    const { assert!(S::R <= ROWS && (E::BYTES == 2 || E::BYTES == 4)) };
    if rows.len() < r {
        out.fill(0);
    }
    // rows that are missing stay zero
    let mut words = [[0u32; ROWS]; ROWS];
    let mut columns = [0u8; 4 * ROWS * ROWS];
    let n_words = rows.first().map_or(0, |row| row.len() / 4);
    for first in (0..n_words).step_by(r) {
        let n = r.min(n_words - first);
        for (row, words) in rows.iter().zip(&mut words) {
            let (row, _) = row[4 * first..4 * (first + n)].as_chunks::<4>();
            for (word, bytes) in words.iter_mut().zip(row) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
        // SAFETY: ROWS rows of as many words, and as many columns.
        unsafe {
            S::transpose(words.as_ptr().cast(), ROWS, n, columns.as_mut_ptr());
        }
        let to = &mut out[4 * r * first..4 * r * (first + n)];
        for (column, to) in columns.chunks_exact(4 * r).zip(to.chunks_exact_mut(4 * r)) {
            match E::BYTES {
                4 => to.copy_from_slice(column),
                _ => split_halves(column, to),
            }
        }
    }
    // an odd number of halves
    for (i, row) in rows.iter().enumerate() {
        let rest = out[4 * r * n_words..].chunks_exact_mut(E::BYTES * r);
        for (e, to) in row[4 * n_words..].chunks_exact(E::BYTES).zip(rest) {
            to[i * E::BYTES..(i + 1) * E::BYTES].copy_from_slice(e);
        }
    }
}

/// Writes the lower halves of words, and then the upper ones.
#[inline(always)]
fn split_halves(words: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(words.len() / 2);
    let (words, _) = words.as_chunks::<4>();
    let halves = low
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(high.as_chunks_mut::<2>().0);
    for ([a, b, c, d], (low, high)) in words.iter().zip(halves) {
        *low = [*a, *b];
        *high = [*c, *d];
    }
}
