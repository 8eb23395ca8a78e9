//! Two loops to measure: one reads memory, one multiplies. `probe.rs` times them.

use crate::simd::Simd;
use std::hint::black_box;

/// Prefetch distance in bytes: as many lines as one core keeps in flight.
const AHEAD: usize = 1024;
/// Vectors read in one iteration of the loop.
pub const READS: usize = 8;

/// Reads `n` floats (a multiple of [`READS`] vectors) and folds them, so that no load can be
/// optimized away.
///
/// # Safety
/// As the head of `simd.rs` says; `n` floats at `p` are readable.
#[inline(always)]
pub unsafe fn read<S: Simd, const PREFETCH: bool>(p: *const f32, n: usize) -> f32 {
    // SAFETY: every load is below `n` by the loop's bound; a prefetch may point past the end.
    unsafe {
        let mut folded = [S::iset1(0); READS];
        let mut at = 0;
        while at + READS * S::R <= n {
            if PREFETCH {
                for line in 0..READS * S::R * 4 / 64 {
                    S::prefetch(
                        p.wrapping_add(at)
                            .cast::<u8>()
                            .wrapping_add(AHEAD + 64 * line),
                    );
                }
            }
            for (i, all) in folded.iter_mut().enumerate() {
                *all = S::or(*all, S::load_bytes(p.add(at + i * S::R).cast()));
            }
            at += READS * S::R;
        }
        let all = folded
            .into_iter()
            .reduce(|a, b| S::or(a, b))
            .unwrap_or(S::iset1(0));
        S::sum(S::bits_f(all))
    }
}

/// Runs `turns` times `ACCS` independent multiply-adds of a vector.
///
/// # Safety
/// As the head of `simd.rs` says.
#[inline(always)]
pub unsafe fn multiply<S: Simd, const ACCS: usize>(turns: usize) -> f32 {
    // SAFETY: no pointers here.
    unsafe {
        // x / 2 + 1 converges to 2: neither overflows nor denormal numbers, which would take extra
        // time
        let (half, one) = (S::set1(black_box(0.5)), S::set1(black_box(1.0)));
        let mut x = [one; ACCS];
        for (i, x) in x.iter_mut().enumerate() {
            *x = S::set1(black_box(i as f32));
        }
        for _ in 0..turns {
            for x in &mut x {
                *x = S::fma(*x, half, one);
            }
        }
        S::sum(x.into_iter().reduce(|a, b| S::add(a, b)).unwrap_or(one))
    }
}

/// Accumulators of the two forms of [`multiply`]: few, for vectors of several registers; many, to
/// hide the latency of two units.
pub const FEW: usize = 4;
/// See [`FEW`].
pub const MANY: usize = 12;
