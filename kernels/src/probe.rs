//! Peak rates of this machine: how fast threads read memory, and how many multiplications they
//! finish.
//!
//! Both loops (`kernels/simd/src/generic/probe.rs`) are instantiated for each instruction set, so
//! that a kernel is compared with the limit of its own vectors. The best of a few passes counts: a
//! limit is the highest rate reached once.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use crate::memory::{Floats, NoMemory, with_memory};
use crate::pool::Pool;
use octavo_isa::Isa;
use octavo_simd::generic::probe::{FEW, MANY, READS};

/// Bytes that are read in a pass, by all threads together: far more than a core's own caches.
const READ_BYTES: usize = 512 << 20;
/// Passes, of which the best counts.
const PASSES: usize = 4;
/// Iterations of the multiplying loop in a pass: some milliseconds.
const TURNS: usize = 1 << 20;

/// GB/s (1e9 bytes) that all threads of the pool together read from memory with the vectors of
/// `isa`, each its own contiguous part; with or without software prefetch, whichever is faster.
///
/// # Errors
/// [`NoMemory`] if there is none to read.
///
/// # Panics
/// If the CPU lacks `isa`.
pub fn read_bandwidth(isa: Isa, pool: &mut Pool) -> Result<f64, NoMemory> {
    with_memory(|| best_read(isa, pool, READ_BYTES))
}

fn best_read(isa: Isa, pool: &mut Pool, bytes: usize) -> f64 {
    let table = isa.table();
    let turn = READS * table.strip;
    let part = (bytes / 4 / pool.threads()).next_multiple_of(turn);
    // in large pages, as weights are
    let parts: Vec<Mutex<Floats>> = (0..pool.threads()).map(|_| Mutex::default()).collect();
    // the thread that reads a page touches it first, which decides on the NUMA node that it lies on
    pool.run_everywhere(&|id| {
        let mut floats = lock(&parts[id]);
        floats.grow(part);
        floats.fill(1.0);
    });
    let mut best = 0f64;
    for _ in 0..PASSES {
        for read in table.read {
            let seconds = slowest(pool, &|id| {
                let part = lock(&parts[id]);
                // SAFETY: the table is one of this CPU, and the slice has `len` floats.
                unsafe { read(part.as_ptr(), part.len()) }
            });
            best = best.max((4 * part * pool.threads()) as f64 / seconds / 1e9);
        }
    }
    best
}

/// GFLOP/s (a multiply-add is two) that all threads of the pool together reach: in f32 with the
/// vectors of `isa`, or in bf16 on its matrix unit.
///
/// # Panics
/// If the CPU lacks `isa`.
pub fn flops_peak(isa: Isa, pool: &mut Pool) -> f64 {
    best_multiply(isa, pool, TURNS)
}

fn best_multiply(isa: Isa, pool: &mut Pool, turns: usize) -> f64 {
    let table = isa.table();
    let mut best = 0f64;
    if let Some((busy, per_turn)) = table.busy_unit {
        for _ in 0..PASSES {
            // SAFETY: the table is one of this CPU, and the unit is set up around its use.
            let seconds = slowest(pool, &|_| unsafe {
                (table.enter)();
                busy(turns);
                (table.leave)();
                0.0
            });
            best = best.max((2 * turns * per_turn * pool.threads()) as f64 / seconds / 1e9);
        }
        return best;
    }
    for _ in 0..PASSES {
        for (multiply, accumulators) in table.multiply.into_iter().zip([FEW, MANY]) {
            let turns = turns * MANY / accumulators;
            // SAFETY: the table is one of this CPU.
            let seconds = slowest(pool, &|_| unsafe { multiply(turns) });
            best = best.max(
                (2 * turns * accumulators * table.strip * pool.threads()) as f64 / seconds / 1e9,
            );
        }
    }
    best
}

/// Seconds until the last thread is done, all starting together.
fn slowest(pool: &mut Pool, work: &(dyn Fn(usize) -> f32 + Sync)) -> f64 {
    let times: Vec<Mutex<f64>> = (0..pool.threads()).map(|_| Mutex::new(0.0)).collect();
    pool.run_everywhere(&|id| {
        let start = Instant::now();
        black_box(work(id));
        *lock(&times[id]) = start.elapsed().as_secs_f64();
    });
    times
        .iter()
        .map(|t| *lock(t))
        .fold(f64::MIN_POSITIVE, f64::max)
}

/// Locks a mutex. The pool passes on a panic under a lock, so that no thread sees half a value.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_both_loops_compute_what_they_say() {
        for isa in Isa::available() {
            let table = isa.table();
            let turn = READS * table.strip;
            // every element counts: a changed bit anywhere changes the result
            let mut x = vec![0f32; 3 * turn];
            for read in table.read {
                // SAFETY: available, and the length is the slice's.
                let all = |x: &[f32]| unsafe { read(x.as_ptr(), x.len()) };
                assert_eq!(all(&x), 0.0, "{isa}");
                for at in 0..x.len() {
                    x[at] = 3.0;
                    assert_eq!(all(&x), 3.0, "{isa}: element {at}");
                    x[at] = 0.0;
                }
            }
            for (multiply, accumulators) in table.multiply.into_iter().zip([FEW, MANY]) {
                // SAFETY: available.
                let sum = unsafe { multiply(200) };
                assert_eq!(sum, 2.0 * (accumulators * table.strip) as f32, "{isa}");
            }
        }
    }

    #[test]
    fn limits_are_positive_numbers() {
        let mut pool = Pool::new(2).expect("threads");
        for isa in Isa::available() {
            // small: emulators run this too
            let (read, flops) = (
                best_read(isa, &mut pool, 1 << 20),
                best_multiply(isa, &mut pool, 1 << 10),
            );
            assert!(
                [read, flops].iter().all(|x| x.is_finite() && *x > 0.0),
                "{isa}: {read} {flops}"
            );
        }
    }
}
