//! A persistent thread pool that does [`Work`] section by section, on quiet machines and on busy
//! ones.
//!
//! On a quiet machine all threads take part in everything, and waiting threads spin: a section
//! takes microseconds, waking a sleeping thread tens of them. On a busy one a thread may be
//! descheduled at any moment, for as long as a hundred sections. The waiting threads notice by its
//! CPU clock, which stands still, and go on without it (`team.rs` has the rules); it takes part
//! again when it is back. A thread that cannot go on sleeps, so that the CPU is free for the one
//! that is waited for. Nothing here ever yields: that would hand a whole time slice to another
//! process.
//!
//! No result may depend on which thread did a part, so that all of this affects time alone.

mod absences;
mod bell;
mod borrowed;
mod gate;
mod shared;
mod team;
mod wait;

/// Primitives of the team's rules; tests substitute a model checker's versions.
mod sync {
    pub(super) use std::sync::atomic::{
        AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
}

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock::{LastCpu, ThreadClock};
use absences::Absences;
pub(crate) use bell::Bell;
use borrowed::Borrowed;
use gate::Membership;
pub use shared::SharedPool;
pub(crate) use team::PLACES;
use team::{MAX_SECTIONS, MAX_THREADS, Next, Team};

/// Work of a pool: sections, one after the other, each divided among the members of the team.
pub(crate) trait Work: Send + Sync {
    /// Number of sections; at least one.
    fn sections(&self) -> usize;

    /// Runs a member's part of its section. All members of the team run this, and no thread runs
    /// the next section before they have; except that members left behind run it in a place with no
    /// other thread. It may return before it has done all when [`Member::must_stop`] has said so.
    fn run(&self, member: &Member<'_>);

    /// Whether a section can be run again from the beginning, in another place, while late members
    /// are still working on it.
    fn can_repeat(&self, section: usize) -> bool;

    /// Copies the inputs of a section and of those after it from one place to another, which no
    /// thread uses. Late members are still writing the section's outputs, which must not be read.
    /// `false` if it cannot be done now.
    fn carry(&self, section: usize, from: usize, to: usize) -> bool;

    /// Prepares to run a section again in the same place, with more members: its only member has
    /// stopped in the middle of it, it can be repeated, and no other thread is in that place.
    /// Finished work need not be repeated.
    fn resume(&self, section: usize, place: usize);

    /// Cost of carrying a section to another place, which is also how long a late member is waited
    /// for. Waiting as long as the alternative costs, and then paying for it, at most doubles the
    /// necessary time.
    fn patience(&self, _section: usize) -> Duration {
        Duration::ZERO
    }

    /// Called on a thread that takes part from now on, before its first section.
    fn enter(&self) {}

    /// Called on a thread that entered when it no longer takes part.
    fn leave(&self) {}
}

/// A member of the team, and the section to do a part of.
pub(crate) struct Member<'a> {
    team: &'a Team,
    membership: Membership,
    absences: Option<&'a Absences>,
    /// It is the only member, and the rest of its section can be divided among more.
    divides: bool,
    stopped: Cell<bool>,
    /// The thread's number in the pool: no other thread has it.
    pub(crate) thread: usize,
    /// Number of the section.
    pub(crate) section: usize,
    /// Number among the members, below `size`.
    pub(crate) rank: usize,
    /// Number of members.
    pub(crate) size: usize,
    /// The set of buffers to work in.
    pub(crate) place: usize,
}

impl Member<'_> {
    /// This member's share of `items`, as a contiguous range; shares differ by one `grain` at most.
    pub(crate) fn share(&self, items: usize, grain: usize) -> std::ops::Range<usize> {
        let grains = items.div_ceil(grain);
        let at = |i: usize| (grains * i / self.size * grain).min(items);
        at(self.rank)..at(self.rank + 1)
    }

    /// Whether to stop here: the team has gone on without this member, whose results are no longer
    /// needed, or another thread can share the rest of the section. To be asked between two parts
    /// of a section.
    pub(crate) fn must_stop(&self) -> bool {
        if let Some(absences) = self.absences {
            // called many times in a section
            absences.pass(8);
        }
        if self.team.has_left(&self.membership) || self.divides && self.team.is_asked() {
            self.stopped.set(true);
        }
        self.stopped.get()
    }

    /// Whether it was told to stop.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.get()
    }
}

/// State shared by all threads of a pool.
struct Shared {
    team: Team,
    /// One for each thread; the first is that of the pool's caller.
    clocks: Box<[ThreadClock]>,
    /// The CPU of each when it began its section.
    cpus: Box<[LastCpu]>,
    job: Mutex<Job>,
    /// Number of steps begun.
    steps: AtomicU64,
    /// Bell for threads that sleep between steps.
    idle: Bell,
    stop: AtomicBool,
    /// Time that is worth spinning between steps, in nanoseconds.
    idle_spin: AtomicU64,
    /// Sections that were taken over.
    taken_over: AtomicU64,
    /// Sections that were divided again.
    divided_again: AtomicU64,
    /// Payload of a thread's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// For tests: delays of threads.
    absences: Option<Absences>,
}

#[derive(Default)]
struct Job {
    /// The first epoch of the step that it belongs to.
    epoch: u64,
    work: Option<Arc<dyn Work>>,
    /// All threads are wanted in the next step: none goes to sleep before it.
    gathers: bool,
}

/// The pool. Dropping it ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// When the last step ended.
    last_end: Instant,
    /// Usual time between steps, smoothed.
    gap: Duration,
}

impl Pool {
    /// Makes a pool of `n` threads, one of which is the thread that calls it.
    ///
    /// # Errors
    /// If the system refuses a thread, or there are more than 1,023.
    pub fn new(n: usize) -> std::io::Result<Pool> {
        Pool::with(n, None)
    }

    /// Makes a pool whose threads go missing at pseudo-random moments for up to two milliseconds,
    /// one in `one_of` times that they finish a section: a busy machine for tests.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn unreliable(n: usize, seed: u64, one_of: u64) -> std::io::Result<Pool> {
        Pool::with(n, Some(Absences::new(seed, one_of)))
    }

    fn with(n: usize, absences: Option<Absences>) -> std::io::Result<Pool> {
        let n = n.max(1);
        if n > MAX_THREADS {
            let message = format!("{MAX_THREADS} threads are the most there can be");
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                message,
            ));
        }
        let shared = Arc::new(Shared {
            team: Team::new(n),
            clocks: (0..n).map(|_| ThreadClock::new()).collect(),
            cpus: (0..n).map(|_| LastCpu::new()).collect(),
            job: Mutex::default(),
            steps: AtomicU64::new(0),
            idle: Bell::new(),
            stop: AtomicBool::new(false),
            idle_spin: AtomicU64::new(wait::IDLE_SPIN.as_nanos() as u64),
            taken_over: AtomicU64::new(0),
            divided_again: AtomicU64::new(0),
            panic: Mutex::new(None),
            absences,
        });
        let mut pool = Pool {
            shared: shared.clone(),
            workers: Vec::new(),
            last_end: Instant::now(),
            gap: wait::IDLE_GAP,
        };
        for id in 1..n {
            let shared = shared.clone();
            let work = move || {
                shared.clocks[id].attach();
                while let Some(membership) = shared.wait_for_seat(id) {
                    shared.take_part(id, membership, &mut |_| {});
                }
            };
            pool.workers.push(
                std::thread::Builder::new()
                    .name(format!("octavo-{id}"))
                    .spawn(work)?,
            );
        }
        Ok(pool)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Number of times so far that threads went on without a late one.
    pub fn taken_over(&self) -> u64 {
        self.shared.taken_over.load(Ordering::Relaxed)
    }

    /// Number of times so far that a thread alone at a section shared the rest of it with others.
    pub fn divided_again(&self) -> u64 {
        self.shared.divided_again.load(Ordering::Relaxed)
    }

    /// The place where the next step begins and the last one ended.
    pub(crate) fn place(&self) -> usize {
        self.shared.team.place()
    }

    /// Runs all sections and returns when they are done; `after` is called on this thread when it
    /// has finished its part of a section, with the section's number. Threads that were left behind
    /// may still be working, in another place.
    ///
    /// # Panics
    /// If `work` panics on any thread; the pool stays usable.
    pub(crate) fn run(&mut self, work: Arc<dyn Work>, after: &mut dyn FnMut(usize)) {
        assert!((1..MAX_SECTIONS).contains(&work.sections()));
        self.adapt_to_gap();
        let s = &*self.shared;
        s.clocks[0].attach();
        (locked(&s.job).epoch, locked(&s.job).work) = (s.team.next_epoch(), Some(work));
        let mut membership = Some(s.team.begin());
        locked(&s.job).gathers = false;
        s.steps.fetch_add(1, Ordering::SeqCst);
        s.idle.ring();
        while let Some(member) = membership {
            s.take_part(0, member, after);
            membership = s.wait_for_seat(0);
        }
        locked(&s.job).work = None;
        let poisoned = s.team.poisoned.load(Ordering::SeqCst);
        if poisoned {
            s.team.abandon();
        }
        self.last_end = Instant::now();
        let panic = s
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic.filter(|_| poisoned) {
            resume_unwind(panic);
        }
    }

    /// Waits until every thread is up.
    pub fn meet(&mut self) {
        self.run_everywhere(&|_| {});
    }

    /// Whether no thread is left behind.
    pub(crate) fn is_together(&self) -> bool {
        self.shared.team.is_alone(0)
    }

    /// Waits until no thread is left behind.
    pub(crate) fn settle(&mut self) {
        let team = &self.shared.team;
        if !team.is_alone(0) {
            team.bell.sleep_until(|| team.is_alone(0));
        }
    }

    /// Runs `work` on the available threads, with the number of each. `work` must complete
    /// whichever threads take part, for example by handing out tasks.
    ///
    /// # Panics
    /// If `work` panics on any thread; the pool stays usable.
    pub(crate) fn run_tasks(&mut self, work: &(dyn Fn(usize) + Sync)) {
        self.run_borrowed(Borrowed {
            work: borrowed::as_if_lasting(work),
            everybody: false,
        });
    }

    /// As [`Pool::run_tasks`], for tasks that take long together. Threads absent at the start do
    /// none of them, so sleeping threads are woken first, and waited for a moment.
    ///
    /// # Panics
    /// As [`Pool::run_tasks`].
    pub(crate) fn run_long_tasks(&mut self, work: &(dyn Fn(usize) + Sync)) {
        self.shared.gather(Some(wait::WAKING));
        self.run_tasks(work);
    }

    /// Runs `work` once on every thread, with the thread's number, all at the same time.
    ///
    /// # Panics
    /// If `work` panics on any thread; the pool stays usable.
    pub(crate) fn run_everywhere(&mut self, work: &(dyn Fn(usize) + Sync)) {
        self.shared.gather(None);
        self.run_borrowed(Borrowed {
            work: borrowed::as_if_lasting(work),
            everybody: true,
        });
    }

    fn run_borrowed(&mut self, work: Borrowed) {
        let result = catch_unwind(AssertUnwindSafe(|| self.run(Arc::new(work), &mut |_| {})));
        // members may still hold `work` here, but do not call it any more: no section of it can be
        // taken over, so that the step has not ended before all of them had returned from it. From
        // a step that panicked, all have left.
        result.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Makes threads spin between steps if that has been worthwhile lately.
    fn adapt_to_gap(&mut self) {
        self.gap = wait::smoothed(self.gap, self.last_end.elapsed());
        self.shared.idle_spin.store(
            wait::idle_spin(self.gap).as_nanos() as u64,
            Ordering::Relaxed,
        );
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.idle.ring();
        for worker in self.workers.drain(..) {
            // a worker catches the panics of its work, so there is no error to see here
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn member(&self, thread: usize, membership: Membership, work: &dyn Work) -> Member<'_> {
        let Membership {
            section,
            rank,
            size,
            place,
            ..
        } = membership;
        let (team, absences) = (&self.team, self.absences.as_ref());
        let divides = size == 1 && work.can_repeat(section);
        let stopped = Cell::new(false);
        Member {
            team,
            membership,
            absences,
            divides,
            stopped,
            thread,
            section,
            rank,
            size,
            place,
        }
    }

    /// Takes part in a step until it is done or this thread is left behind.
    fn take_part(&self, id: usize, mut membership: Membership, after: &mut dyn FnMut(usize)) {
        let Some(work) = locked(&self.job).of_epoch(membership.epoch) else {
            // left behind before it began, and the step is over
            self.team.leave(id);
            return;
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            work.enter();
            loop {
                self.cpus[id].note();
                let member = self.member(id, membership, &*work);
                work.run(&member);
                let section = membership.section;
                let stopped = member.has_stopped();
                if !stopped {
                    after(section);
                }
                if let Some(absences) = &self.absences {
                    absences.pass(1);
                }
                let meet = || match stopped {
                    true => self.team.divide_again(id, &membership, |place| {
                        work.resume(section, place);
                        self.divided_again.fetch_add(1, Ordering::Relaxed);
                    }),
                    false => self
                        .team
                        .arrive(id, &membership, section + 1 == work.sections()),
                };
                let mut next = meet();
                loop {
                    next = match next {
                        Next::Work(go_on) => {
                            membership = go_on;
                            break;
                        }
                        Next::Wait => self.wait_for_others(id, &membership, &*work),
                        Next::ArriveAgain => {
                            self.wait_for_changes();
                            meet()
                        }
                        Next::LeftBehind | Next::Done => {
                            work.leave();
                            if next == Next::LeftBehind {
                                self.rest(work.patience(membership.section));
                            }
                            return;
                        }
                    };
                }
            }
        }));
        if let Err(panic) = result {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            self.team.poisoned.store(true, Ordering::SeqCst);
            self.team.leave(id);
            self.team.bell.ring();
        }
    }
}

impl Job {
    /// The work of the step that an epoch belongs to, if it is the current step.
    fn of_epoch(&self, epoch: u64) -> Option<Arc<dyn Work>> {
        self.work
            .clone()
            .filter(|_| Membership::is_since(epoch, self.epoch))
    }
}

fn locked(job: &Mutex<Job>) -> MutexGuard<'_, Job> {
    // no code panics while holding the lock, and a half-written job is not possible
    job.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
