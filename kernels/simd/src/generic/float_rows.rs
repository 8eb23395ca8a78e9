//! Products of several rows of activations with packed float weights. A chunk of a pair of strips
//! comes from memory once, for all rows: tiles of rows read it from the L1 cache, and take few of
//! the sums at a time, so that registers have room for more rows, and each weight and activation
//! that is loaded serves several multiply-adds. Per row and output every addition is that of
//! [`gemv::strips_float`](super::gemv::strips_float), in its order, so that a row's results do not
//! depend on how many others there are.

use crate::formats::Float;
use crate::prefetch::Prefetch;
use crate::simd::Simd;

use super::gemv::SUMS;

/// Rows whose sums wait on the stack while a tile has its turn, at most.
const ROWS: usize = 16;
/// k of a chunk. Two strips are at most a quarter of an L1 cache of 32 KiB (f32, 16 lanes), and at
/// least an eighth of it: a tile loads its sums and waits for its first products once a chunk.
const fn chunk<S: Simd, E: Float>() -> usize {
    match E::BYTES * S::R {
        ..=16 => 128,
        _ => 64,
    }
}

/// Sums of one row.
type RowSums<S, const N: usize> = [[<S as Simd>::F; SUMS]; N];

/// The weights of a tile.
#[derive(Clone, Copy)]
struct Chunk<const N: usize> {
    strips: [*const u8; N],
    /// Range of k, a multiple of [`SUMS`].
    k: (usize, usize),
    /// Lines to prefetch meanwhile: the first one of each strip, and their number.
    next: ([*const u8; N], usize),
}

/// Multiplies `N` neighbouring strips of float weights, packed as `[k][R]`, by rows of activations
/// in f32, given by their addresses; `out` is the first row's address and the stride between rows.
///
/// # Safety
/// `strips` holds `N * k * R` elements, each row of `x` is `k` floats, each of `out` `N * R`
/// writable floats.
#[inline(always)]
pub unsafe fn strips<S: Simd, E: Float, const N: usize>(
    strips: *const u8,
    k: usize,
    x: &[*const f32],
    out: (*mut f32, usize),
) {
    for (i, x) in x.chunks(ROWS).enumerate() {
        // SAFETY: passed on, of these rows.
        unsafe { multiply::<S, E, N>(strips, k, x, (out.0.add(i * ROWS * out.1), out.1)) }
    }
}

/// Multiplies strips by at most [`ROWS`] rows.
///
/// # Safety
/// As [`strips`].
#[inline(always)]
unsafe fn multiply<S: Simd, E: Float, const N: usize>(
    strips: *const u8,
    k: usize,
    x: &[*const f32],
    out: (*mut f32, usize),
) {
    let row = E::BYTES * S::R;
    let strip_bytes = k * row;
    let ahead = Prefetch::here().bytes;
    // SAFETY: offsets stay inside the strips and the rows by the caller's promise; prefetches may
    // point past the end.
    unsafe {
        let mut sums = [[[S::zero(); SUMS]; N]; ROWS];
        let strips: [*const u8; N] = std::array::from_fn(|n| strips.add(n * strip_bytes));
        let whole = k - k % SUMS;
        for k0 in (0..whole).step_by(chunk::<S, E>()) {
            let k1 = whole.min(k0 + chunk::<S, E>());
            // after a strip's end comes the next one that is not being read
            let soon = k0 * row + ahead;
            let soon = soon + usize::from(soon >= strip_bytes) * (N - 1) * strip_bytes;
            tiles::<S, E, N>(
                Chunk {
                    strips,
                    k: (k0, k1),
                    next: (
                        strips.map(|strip| strip.wrapping_add(soon)),
                        ((k1 - k0) * row).div_ceil(64),
                    ),
                },
                x,
                &mut sums,
            );
        }
        for i in whole..k {
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sums, strip) in sums.iter_mut().zip(strips) {
                    let w = E::load::<S>(strip.add(i * row));
                    sums[i % SUMS] = S::fma(w, S::set1(x.add(i).read()), sums[i % SUMS]);
                }
            }
        }
        for (t, sums) in sums.iter().enumerate().take(x.len()) {
            for (n, &[a, b, c, d]) in sums.iter().enumerate() {
                let sum = S::add(S::add(a, c), S::add(b, d));
                S::store(out.0.add(t * out.1 + n * S::R), sum);
            }
        }
    }
}

/// Multiplies a chunk by all rows, a tile of them at a time.
///
/// # Safety
/// As [`strips`]; `sums` has as many rows as `x`.
#[inline(always)]
unsafe fn tiles<S: Simd, E: Float, const N: usize>(
    mut chunk: Chunk<N>,
    x: &[*const f32],
    sums: &mut [RowSums<S, N>; ROWS],
) {
    let (first, lines) = chunk.next;
    let mut row = 0;
    while row < x.len() {
        let rows = rows_at_once::<S>(x.len() - row);
        let [from, to] = [row, row + rows].map(|row| lines * row / x.len());
        chunk.next = (first.map(|line| line.wrapping_add(64 * from)), to - from);
        let (x, sums) = (&x[row..row + rows], &mut sums[row..row + rows]);
        // SAFETY: passed on, of these rows.
        unsafe {
            match (rows, wide::<S>()) {
                (1, _) => tile::<S, E, N, 1, 4>(chunk, x, sums),
                (2, false) => tile::<S, E, N, 2, 2>(chunk, x, sums),
                (2, true) => tile::<S, E, N, 2, 4>(chunk, x, sums),
                (3, false) => tile::<S, E, N, 3, 1>(chunk, x, sums),
                (3, true) => tile::<S, E, N, 3, 2>(chunk, x, sums),
                (4, false) => tile::<S, E, N, 4, 1>(chunk, x, sums),
                (4, true) => tile::<S, E, N, 4, 2>(chunk, x, sums),
                _ => tile::<S, E, N, 8, 1>(chunk, x, sums),
            }
        }
        row += rows;
    }
}

/// Whether registers hold 16 sums, and not 8: 32 registers. (NEON's are as many, but a vector of 8
/// lanes takes two.)
const fn wide<S: Simd>() -> bool {
    S::R == 16
}

/// Rows to take next out of `left`. A tile of one row alone loads as many weights as one of four:
/// rather 3 and 2 than 4 and 1.
fn rows_at_once<S: Simd>(left: usize) -> usize {
    match left {
        8.. if wide::<S>() => 8,
        0..=4 => left,
        5 | 6 => 3,
        _ => 4,
    }
}

/// Multiplies a chunk by `M` rows, `J` of each row's sums at a time.
///
/// # Safety
/// As [`strips`]; `x` and `sums` have `M` rows.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // an index keeps the sums in registers
unsafe fn tile<S: Simd, E: Float, const N: usize, const M: usize, const J: usize>(
    chunk: Chunk<N>,
    x: &[*const f32],
    sums: &mut [RowSums<S, N>],
) {
    let row = E::BYTES * S::R;
    let prefetch = Prefetch::here();
    let (next, lines) = chunk.next;
    let (x, sums) = (&x[..M], &mut sums[..M]);
    // SAFETY: offsets stay inside the strips and the rows by the caller's promise; prefetches may
    // point past the end.
    unsafe {
        for first in (0..SUMS).step_by(J) {
            for line in lines * first / SUMS..lines * (first + J) / SUMS {
                for n in 0..N {
                    prefetch.line::<S>(next[n].wrapping_add(64 * line));
                }
            }
            let mut some = [[[S::zero(); J]; N]; M];
            for t in 0..M {
                for n in 0..N {
                    some[t][n].copy_from_slice(&sums[t][n][first..first + J]);
                }
            }
            for i in (chunk.k.0 + first..chunk.k.1).step_by(SUMS) {
                for j in 0..J {
                    let w: [S::F; N] =
                        std::array::from_fn(|n| E::load::<S>(chunk.strips[n].add((i + j) * row)));
                    for t in 0..M {
                        let x = S::set1(x[t].add(i + j).read());
                        for n in 0..N {
                            some[t][n][j] = S::fma(w[n], x, some[t][n][j]);
                        }
                    }
                }
            }
            for t in 0..M {
                for n in 0..N {
                    sums[t][n][first..first + J].copy_from_slice(&some[t][n]);
                }
            }
        }
    }
}
