//! Products of one or a few generated tokens with packed weights: every weight is read once, so
//! memory bandwidth is the limit.
//!
//! A strip of R rows is one contiguous stream, read in address order and prefetched. Codes are
//! multiplied as integers with the two-plane activations; each group of 16 or 32 leaves the integer
//! domain once, with the product of both scales.

use crate::act::{ACT_GROUP, ACT_MAX, Act4, ActRow, GroupSums};
use crate::formats::{Float, Format};
use crate::prefetch::Prefetch;
use crate::simd::Simd;

/// `N` neighbouring strips times `M` rows of activations -> N R outputs of each. Unpacked codes
/// serve all rows, and stay in registers; no row's results depend on the others.
///
/// Two strips are two streams from memory: a thread is limited by the number of reads in flight.
///
/// # Safety
/// `strips` holds `N * k / F::K` packed blocks, `x` is the first of `M` rows of `k` activations,
/// one after the other, `out` is a pointer and a stride in floats: N R writable floats for each
/// row.
#[inline(always)]
// an index keeps the sums in registers, an iterator passes them by memory
#[allow(clippy::needless_range_loop)]
pub unsafe fn strips<S: Simd, F: Format, const N: usize, const M: usize>(
    strips: *const u8,
    k: usize,
    x: &ActRow,
    out: (*mut f32, usize),
) {
    let block_bytes = F::BLOCK_BYTES * S::R;
    let groups = F::K / ACT_GROUP;
    let blocks = k / F::K;
    let strip_bytes = blocks * block_bytes;
    // SAFETY: all offsets below stay inside the strips and the activation row by the caller's
    // promise; prefetches may point past the end, which is harmless.
    unsafe {
        let prefetch = Prefetch::here();
        let blocks_ahead = prefetch.bytes.div_ceil(block_bytes);
        let rows: [ActRow; M] = std::array::from_fn(|m| x.at_group(m * (k / ACT_GROUP)));
        let mut sums = [[S::zero(); N]; M];
        for b in 0..blocks {
            let block = strips.add(b * block_bytes);
            // prefetch the bytes `blocks_ahead` blocks from now: after a strip's end comes the next
            // one that is not being read
            let is_last = b + blocks_ahead >= blocks;
            let end = usize::from(is_last) * (N - 1) * strip_bytes;
            let soon = block.wrapping_add(blocks_ahead * block_bytes + end);
            let mut asked = 0;
            let mut block_scales = [F::block_scales::<S>(block); N];
            for n in 1..N {
                block_scales[n] = F::block_scales::<S>(block.add(n * strip_bytes));
            }
            for g in 0..groups {
                while asked < (g + 1) * block_bytes / groups {
                    for n in 0..N {
                        prefetch.line::<S>(soon.wrapping_add(n * strip_bytes + asked));
                    }
                    asked += 64;
                }
                let at = b * groups + g;
                let xq = at * (ACT_GROUP / 4);
                let blocks: [*const u8; N] = std::array::from_fn(|n| block.add(n * strip_bytes));
                let mut accs = [[S::acc_zero(); N]; M];
                half::<S, F, 0, N, M>(&mut accs, &blocks, g, &rows, xq);
                if F::GROUP == 16 {
                    for n in 0..N {
                        let scales = F::scales::<S>(block_scales[n], blocks[n], 2 * g);
                        for m in 0..M {
                            let x = rows[m].group::<16>(2 * at);
                            sums[m][n] = group::<S, F>(sums[m][n], accs[m][n], scales, x);
                        }
                    }
                    accs = [[S::acc_zero(); N]; M];
                }
                half::<S, F, 1, N, M>(&mut accs, &blocks, g, &rows, xq + 4);
                for n in 0..N {
                    let last = (g + 1) * ACT_GROUP / F::GROUP - 1;
                    let scales = F::scales::<S>(block_scales[n], blocks[n], last);
                    for m in 0..M {
                        let x = match F::GROUP {
                            16 => rows[m].group::<16>(2 * at + 1),
                            _ => rows[m].group::<32>(at),
                        };
                        sums[m][n] = group::<S, F>(sums[m][n], accs[m][n], scales, x);
                    }
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store(out.0.add(m * out.1 + n * S::R), sums[m][n]);
            }
        }
    }
}

/// Adds the products of 16 codes of each strip and 16 activations of each row, from group of four
/// `at` on, to their running integers.
///
/// Four codes at a time are multiplied by all rows. Left alone, the compiler multiplies all codes
/// by one row after the other, for which the codes have to wait in memory.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // see `strips`
unsafe fn half<S: Simd, F: Format, const H: usize, const N: usize, const M: usize>(
    accs: &mut [[S::Acc; N]; M],
    blocks: &[*const u8; N],
    g: usize,
    rows: &[ActRow; M],
    at: usize,
) {
    // SAFETY: the caller's group lies inside the blocks and the activation rows.
    unsafe {
        let mut codes = [[S::iset1(0); 4]; N];
        for n in 0..N {
            codes[n] = F::codes::<S, H>(blocks[n], g);
        }
        for p in 0..4 {
            for m in 0..M {
                let x = rows[m].q.add(at + p);
                for n in 0..N {
                    accs[m][n] = dot4::<S, F, M>(accs[m][n], codes[n][p], x);
                }
            }
        }
    }
}

/// The cheapest dot product that can hold the format's codes.
#[inline(always)]
unsafe fn dot4<S: Simd, F: Format, const M: usize>(
    acc: S::Acc,
    codes: S::I,
    x: *const Act4,
) -> S::Acc {
    // SAFETY: passed on.
    unsafe {
        let acc = if M > 1 && S::SPREAD > 1 {
            S::dot_spread(acc, S::spread(codes), x)
        } else if F::FITS_I8 {
            S::dot4_i8(acc, codes, x)
        } else {
            S::dot4(acc, codes, x)
        };
        if M > 1 { S::acc_now(acc) } else { acc }
    }
}

/// Converts one group's integers, less the format's offset, to floats.
#[inline(always)]
unsafe fn group<S: Simd, F: Format>(
    sum: S::F,
    acc: S::Acc,
    scales: (S::F, S::F),
    x: GroupSums,
) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let mut dot = S::acc_sum(acc);
        if F::OFFSET != 0 {
            dot = S::isub(dot, S::iset1(F::OFFSET * x.isum));
        }
        if F::MIN {
            dot_to_sum::<S, true>(sum, dot, scales, x)
        } else {
            dot_to_sum::<S, false>(sum, dot, scales, x)
        }
    }
}

/// `sum + scale * xs * dot - min * fsum`: the conversion of every group of codes to float.
#[inline(always)]
pub(super) unsafe fn dot_to_sum<S: Simd, const MIN: bool>(
    sum: S::F,
    dot: S::I,
    (scale, min): (S::F, S::F),
    x: GroupSums,
) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let sum = S::fma(S::mul(scale, S::set1(x.scale)), S::to_f(dot), sum);
        if MIN {
            S::fma(min, S::set1(-x.fsum), sum)
        } else {
            sum
        }
    }
}

/// Sums of each output of float weights, which hide the latency of a multiply-add: weight `i` is
/// added to sum `i % SUMS`.
pub const SUMS: usize = 4;

/// Multiplies `N` neighbouring strips of float weights, packed as `[k][R]`, by a row of `k`
/// activations in f32. Two strips are two streams from memory, as for [`strips`].
///
/// # Safety
/// `strips` holds `N * k * R` elements, `x` is `k` floats, `out` has `N * R` writable floats.
#[inline(always)]
pub unsafe fn strips_float<S: Simd, E: Float, const N: usize>(
    strips: *const u8,
    k: usize,
    x: *const f32,
    out: *mut f32,
) {
    let row = E::BYTES * S::R;
    let strip_bytes = k * row;
    // SAFETY: offsets stay inside the strips and the row by the caller's promise; prefetches may
    // point past the end.
    unsafe {
        let prefetch = Prefetch::here();
        let mut sums = [[S::zero(); SUMS]; N];
        let mut i = 0;
        while i + SUMS <= k {
            let p = strips.add(i * row);
            // after a strip's end comes the next one that is not being read
            let ahead = i * row + prefetch.bytes;
            let end = usize::from(ahead >= strip_bytes) * (N - 1) * strip_bytes;
            for (n, sums) in sums.iter_mut().enumerate() {
                let soon = strips.wrapping_add(n * strip_bytes + ahead + end);
                for line in 0..(SUMS * row) / 64 {
                    prefetch.line::<S>(soon.wrapping_add(64 * line));
                }
                for (j, sum) in sums.iter_mut().enumerate() {
                    let w = E::load::<S>(p.add(n * strip_bytes + j * row));
                    *sum = S::fma(w, S::set1(x.add(i + j).read()), *sum);
                }
            }
            i += SUMS;
        }
        for i in i..k {
            for (n, sums) in sums.iter_mut().enumerate() {
                let w = E::load::<S>(strips.add(n * strip_bytes + i * row));
                sums[i % SUMS] = S::fma(w, S::set1(x.add(i).read()), sums[i % SUMS]);
            }
        }
        for (n, [a, b, c, d]) in sums.into_iter().enumerate() {
            S::store(out.add(n * S::R), S::add(S::add(a, c), S::add(b, d)));
        }
    }
}

/// Quantizes a row of `k` floats (a multiple of 32) to activations.
///
/// # Safety
/// `x` is `k` floats; the parts of `out` have room for `k` values.
#[inline(always)]
pub unsafe fn quantize<S: Simd>(x: *const f32, k: usize, out: &ActRow) {
    // SAFETY: offsets stay inside the row by the caller's promise; the parts of `out` do not
    // overlap `x`.
    unsafe {
        for g in 0..k / ACT_GROUP {
            let mut q = [0i32; ACT_GROUP];
            let scale = integers::<S>(x.add(g * ACT_GROUP), &mut q, ACT_MAX);
            out.scale.cast_mut().add(g).write(scale);
            let (mut isum32, mut fsum32) = (0, 0.0);
            for h in 0..2 {
                let isum: i32 = q[16 * h..16 * h + 16].iter().sum();
                out.isum.cast_mut().add(2 * g + h).write(isum);
                let fsum = scale * isum as f32;
                out.fsum.cast_mut().add(2 * g + h).write(fsum);
                (isum32, fsum32) = (isum32 + isum, fsum32 + fsum);
            }
            out.isum32.cast_mut().add(g).write(isum32);
            out.fsum32.cast_mut().add(g).write(fsum32);
            for (j, c) in q.chunks_exact(4).enumerate() {
                let a = S::act4([c[0] as i16, c[1] as i16, c[2] as i16, c[3] as i16]);
                out.q.cast_mut().add(g * (ACT_GROUP / 4) + j).write(a);
            }
        }
    }
}

/// Rounds values to integers up to `most` and returns their scale. If the scale underflows, all
/// integers are 0; a value that is not finite makes the scale NaN, so that it reaches the logits.
///
/// # Safety
/// `x` is as many floats as `q` is long, a multiple of 16.
#[inline(always)]
pub unsafe fn integers<S: Simd>(x: *const f32, q: &mut [i32], most: f32) -> f32 {
    // SAFETY: all offsets are below the length of `q`.
    unsafe {
        let mut largest = S::zero();
        // adds up to NaN where a value is not finite, to zero otherwise
        let mut nan_if_not_finite = S::zero();
        for i in (0..q.len()).step_by(S::R) {
            let v = S::load(x.add(i));
            largest = S::max(largest, S::max(v, S::sub(S::zero(), v)));
            nan_if_not_finite = S::add(nan_if_not_finite, S::sub(v, v));
        }
        let scale = S::largest(largest) / most;
        let finite = S::sum(nan_if_not_finite) == 0.0;
        let inverse = if finite && scale >= f32::MIN_POSITIVE {
            1.0 / scale
        } else {
            0.0
        };
        for i in (0..q.len()).step_by(S::R) {
            let v = if finite { S::load(x.add(i)) } else { S::zero() };
            S::store_bytes(
                q.as_mut_ptr().add(i).cast(),
                S::to_i(S::mul(v, S::set1(inverse))),
            );
        }
        if finite { scale } else { f32::NAN }
    }
}
