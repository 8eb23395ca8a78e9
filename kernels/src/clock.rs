//! Observations of other threads: the CPU time one has had, which tells a running thread from a
//! descheduled one; and the CPU it last ran on.

use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::Duration;

/// The clock of one thread, which others may read.
pub(crate) struct ThreadClock(AtomicI64);

/// No clock.
const NONE: i64 = i64::MIN;

impl ThreadClock {
    /// A clock not yet bound to a thread.
    pub(crate) fn new() -> ThreadClock {
        ThreadClock(AtomicI64::new(NONE))
    }

    /// Binds this clock to the calling thread.
    pub(crate) fn attach(&self) {
        self.0.store(own_clock().unwrap_or(NONE), Ordering::Relaxed);
    }

    /// CPU time of the thread; `None` where the system does not tell.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        let clock = self.0.load(Ordering::Relaxed);
        if clock == NONE { None } else { read(clock) }
    }
}

/// CPU that a thread last reported running on. Other threads read it only while they wait, so it
/// has cache lines of its own.
#[repr(align(128))]
pub(crate) struct LastCpu(AtomicI32);

impl LastCpu {
    /// No CPU reported yet.
    pub(crate) fn new() -> LastCpu {
        LastCpu(AtomicI32::new(UNKNOWN))
    }

    /// Records the calling thread's CPU.
    pub(crate) fn note(&self) {
        let cpu = own_cpu();
        // usually the same CPU, which is not written again: that would cost readers the cache line
        if self.0.load(Ordering::Relaxed) != cpu {
            self.0.store(cpu, Ordering::Relaxed);
        }
    }

    /// Whether it is the calling thread's CPU. `false` where the system does not tell.
    pub(crate) fn is_here(&self) -> bool {
        let cpu = self.0.load(Ordering::Relaxed);
        cpu != UNKNOWN && cpu == own_cpu()
    }
}

/// No CPU.
const UNKNOWN: i32 = -1;

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn own_cpu() -> i32 {
    // SAFETY: takes nothing and gives a number, or -1.
    unsafe { libc::sched_getcpu() }
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn own_cpu() -> i32 {
    UNKNOWN
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn own_clock() -> Option<i64> {
    let mut clock = 0;
    // SAFETY: the calling thread exists, and the clock's number is written to a variable of its
    // type.
    let refused = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    (refused == 0).then_some(i64::from(clock))
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn read(clock: i64) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written to a variable of its type; the clock of a thread that has ended
    // is an error.
    let refused = unsafe { libc::clock_gettime(clock as libc::clockid_t, &raw mut time) };
    (refused == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn own_clock() -> Option<i64> {
    None
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn read(_clock: i64) -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_where_it_was_last() {
        let cpu = LastCpu::new();
        assert!(!cpu.is_here(), "nobody has said anything");
        // the thread may be moved between the two, but not every time
        let stays = || {
            cpu.note();
            cpu.is_here()
        };
        assert!(cfg!(miri) || (0..1000).any(|_| stays()));
        assert!(!cfg!(miri) || !stays());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_sleeping_thread_s_clock_stands_and_a_working_one_s_goes() {
        let clock = ThreadClock::new();
        assert!(clock.elapsed().is_none());
        let (works, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                clock.attach();
                while !done.load(Ordering::Relaxed) {
                    if works.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    } else {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
            let until = |is_reached: &dyn Fn() -> bool| {
                let start = Instant::now();
                while !is_reached() {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "the clock does not do what it should"
                    );
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            let over = |time| {
                let before = clock.elapsed().expect("attached");
                std::thread::sleep(Duration::from_millis(time));
                clock.elapsed().expect("attached") - before
            };
            until(&|| clock.elapsed().is_some());
            until(&|| over(20) < Duration::from_micros(500));
            works.store(true, Ordering::Relaxed);
            // on a busy machine the thread has to wait for its turn
            until(&|| over(20) > Duration::from_millis(2));
            done.store(true, Ordering::Relaxed);
        });
    }
}
