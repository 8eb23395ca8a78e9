//! A persistent thread pool: one wake-up runs one whole step on every thread, and a spinning barrier separates the
//! operations inside.
//!
//! Waiting threads spin first (an operation takes microseconds, waking a parked thread tens of them), then yield, and
//! between steps park.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Keeps values that different threads write on different cache lines (pairs of lines are fetched together).
#[repr(align(128))]
struct Apart<T>(T);

/// What all threads of a pool see.
struct Shared {
    n: usize,
    /// Arrivals at the barrier now open.
    arrived: Apart<AtomicUsize>,
    /// Barriers passed.
    passed: Apart<AtomicUsize>,
    /// A thread panicked: nobody may wait for it.
    poisoned: AtomicBool,
    /// Spinning is worth it only while every thread has a CPU of its own.
    spins: u32,
    job: Mutex<Job>,
    wake: Condvar,
    /// Steps started, as a hint that can be polled without the lock.
    started: Apart<AtomicUsize>,
    /// Workers still in the step.
    running: Apart<AtomicUsize>,
}

struct Job {
    number: usize,
    /// The step's closure; its lifetime is that of `Pool::run`, which outlives every use.
    work: Option<&'static (dyn Fn(&Worker<'_>) + Sync)>,
    stop: bool,
}

/// One thread's view of a running step.
pub struct Worker<'a> {
    shared: &'a Shared,
    /// This thread's number, below `n`.
    pub id: usize,
    /// Threads in the step.
    pub n: usize,
}

impl Worker<'_> {
    /// Waits until every thread of the step is here. Writes before it are visible to all after it.
    ///
    /// # Panics
    /// If another thread of the step panicked.
    pub fn barrier(&self) {
        let s = self.shared;
        if s.n == 1 {
            return;
        }
        let passed = s.passed.0.load(Ordering::Acquire);
        if s.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == s.n {
            s.arrived.0.store(0, Ordering::Relaxed);
            s.passed.0.store(passed.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut wait = Wait::new(s.spins);
        while s.passed.0.load(Ordering::Acquire) == passed {
            assert!(!s.poisoned.load(Ordering::Relaxed), "another thread of this step panicked");
            wait.once();
        }
    }

    /// This thread's share of `items`, as a contiguous range; shares differ by one `grain` at most.
    pub fn share(&self, items: usize, grain: usize) -> std::ops::Range<usize> {
        let grains = items.div_ceil(grain);
        let at = |i: usize| (grains * i / self.n * grain).min(items);
        at(self.id)..at(self.id + 1)
    }
}

struct Wait {
    left: u32,
}

impl Wait {
    fn new(spins: u32) -> Wait {
        Wait { left: spins }
    }

    fn once(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// The pool. Dropping it ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `n` threads, the caller of [`Pool::run`] being one of them.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(n: usize) -> std::io::Result<Pool> {
        let n = n.max(1);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            n,
            arrived: Apart(AtomicUsize::new(0)),
            passed: Apart(AtomicUsize::new(0)),
            poisoned: AtomicBool::new(false),
            spins: if n <= cpus { 20_000 } else { 50 },
            job: Mutex::new(Job { number: 0, work: None, stop: false }),
            wake: Condvar::new(),
            started: Apart(AtomicUsize::new(0)),
            running: Apart(AtomicUsize::new(0)),
        });
        let mut pool = Pool { shared: shared.clone(), workers: Vec::new() };
        for id in 1..n {
            let shared = shared.clone();
            let worker =
                std::thread::Builder::new().name(format!("octavo-{id}")).spawn(move || worker_loop(&shared, id))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.shared.n
    }

    /// Runs `work` once on every thread and returns when all are done.
    ///
    /// # Panics
    /// If `work` panics on any thread; the pool stays usable.
    pub fn run(&mut self, work: &(dyn Fn(&Worker<'_>) + Sync)) {
        let s = &*self.shared;
        s.running.0.store(s.n - 1, Ordering::Relaxed);
        if s.n > 1 {
            // SAFETY: only the lifetime changes. `work` is used by the workers until each has counted itself out of
            // `running`, and this function does not return, nor unwind, before that count is zero.
            let work: &'static (dyn Fn(&Worker<'_>) + Sync) = unsafe { std::mem::transmute(work) };
            let mut job = lock(&s.job);
            job.number += 1;
            job.work = Some(work);
            s.started.0.store(job.number, Ordering::Release);
            drop(job);
            s.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(&Worker { shared: s, id: 0, n: s.n })));
        if own.is_err() {
            s.poisoned.store(true, Ordering::Relaxed);
        }
        let mut wait = Wait::new(s.spins);
        while s.running.0.load(Ordering::Acquire) != 0 {
            wait.once();
        }
        lock(&s.job).work = None;
        let poisoned = s.poisoned.swap(false, Ordering::Relaxed);
        s.arrived.0.store(0, Ordering::Relaxed);
        match own {
            Err(panic) => resume_unwind(panic),
            Ok(()) => assert!(!poisoned, "a worker thread panicked"),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut job = lock(&self.shared.job);
        job.stop = true;
        job.number += 1;
        self.shared.started.0.store(job.number, Ordering::Release);
        drop(job);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // a worker catches its own panics, so there is no error to see here
            let _ = worker.join();
        }
    }
}

fn lock(job: &Mutex<Job>) -> std::sync::MutexGuard<'_, Job> {
    // no code panics while holding the lock, and a half-written job is not possible
    job.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn worker_loop(shared: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        let mut left = shared.spins;
        while shared.started.0.load(Ordering::Acquire) == seen && left > 0 {
            left -= 1;
            std::hint::spin_loop();
        }
        let mut job = lock(&shared.job);
        while job.number == seen {
            job = shared.wake.wait(job).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        seen = job.number;
        if job.stop {
            return;
        }
        let work = job.work;
        drop(job);
        if let Some(work) = work {
            let result = catch_unwind(AssertUnwindSafe(|| work(&Worker { shared, id, n: shared.n })));
            if result.is_err() {
                shared.poisoned.store(true, Ordering::Relaxed);
            }
            shared.running.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_every_phase() {
        for n in [1, 2, 3, 5] {
            let mut pool = Pool::new(n).expect("threads");
            let count = AtomicUsize::new(0);
            for _ in 0..50 {
                count.store(0, Ordering::SeqCst);
                pool.run(&|w| {
                    for phase in 1..=10 {
                        count.fetch_add(1, Ordering::SeqCst);
                        w.barrier();
                        assert_eq!(count.load(Ordering::SeqCst), phase * n);
                        w.barrier();
                    }
                });
            }
        }
    }

    #[test]
    fn shares_cover_everything_once() {
        let mut pool = Pool::new(3).expect("threads");
        for (items, grain) in [(0, 1), (1, 4), (100, 8), (7, 2), (64, 32)] {
            let seen: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.run(&|w| {
                for i in w.share(items, grain) {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{items} {grain}");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let mut pool = Pool::new(3).expect("threads");
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|w| {
                    assert!(w.id != culprit, "planted");
                    w.barrier();
                });
            }));
            assert!(result.is_err());
            pool.run(&|w| w.barrier());
        }
    }
}
