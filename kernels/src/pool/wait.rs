//! Waiting of the pool's threads: they spin while the wait is likely to be short, check whether
//! those they wait for are at work, take over from those that are not, and sleep where nothing else
//! can be done.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::gate::Membership;
use super::team::{Next, Overdue};
use super::{Shared, Work, locked};

/// Iterations of a spinning loop between two looks at the time: about a microsecond.
const TURNS: usize = 32;
/// Time after which, as after [`Work::patience`], the clocks of late members are read: many times
/// the usual lag of a member where all of them run, and a fortieth of the time slice that it may be
/// gone for.
const LOOK: Duration = Duration::from_micros(100);
/// Time between two looks at a clock. A thread is at work if its clock advanced by a quarter of
/// that.
const BETWEEN_LOOKS: Duration = Duration::from_micros(20);
/// Age at which a look is discarded: this thread was descheduled itself.
const OLD_LOOK: Duration = Duration::from_micros(200);
/// Above this cost a section is not carried elsewhere because two threads share a CPU: every time
/// slice of three milliseconds would begin with waiting that long and then carrying. A thread that
/// sleeps instead leaves its share of the CPU to all who want it, which is a third of the time that
/// the two get beside one other process.
const DEAR: Duration = Duration::from_micros(400);
/// Cost of carrying a section elsewhere above which a thread that was left behind stays away for a
/// while.
const WORTH_A_REST: Duration = Duration::from_micros(100);
/// Time that it stays away: a few time slices. Where two programs want the CPUs at once, the
/// threads of each are on a CPU at different times, and every change costs a wait and a carry; the
/// rest leaves each program one thread that stays at work. Longer rests leave CPUs unused beside
/// programs that take turns with this one.
const REST: Duration = Duration::from_millis(10);
/// Time after which a resting thread checks whether the step has ended.
const NAP: Duration = Duration::from_millis(1);
/// Lateness after which a thread is taken for gone, where the system has no thread clocks. Miri has
/// none, and its time advances five microseconds with every branch.
const WITHOUT_CLOCKS: Duration = Duration::from_millis(if cfg!(miri) { 200 } else { 1 });
/// Time to wait for a thread at work before this one sleeps: longer than a section takes that one
/// thread does alone. A thread that slept would be missing at the end of it: an idle CPU of a
/// virtual machine takes long to wake.
const SPIN: Duration = Duration::from_millis(50);
/// Time to spin between steps at first: a few times as long as a caller takes to sample a token.
pub(super) const IDLE_SPIN: Duration = Duration::from_micros(400);
/// Assumed time between steps that this spin follows from.
pub(super) const IDLE_GAP: Duration = Duration::from_micros(100);
/// Time between steps above which spinning is a waste.
const LONG_GAP: Duration = Duration::from_micros(500);
/// Time to spin even then: as long as a wake-up takes.
const SHORT_SPIN: Duration = Duration::from_micros(50);
/// Time that long work waits for sleeping threads: many times as long as waking one takes, and less
/// than the time slice that a busy machine may keep it for.
pub(super) const WAKING: Duration = Duration::from_millis(if cfg!(miri) { 200 } else { 2 });

/// The usual time between steps, updated by one more observation.
pub(super) fn smoothed(usual: Duration, seen: Duration) -> Duration {
    // one long pause says little about the next
    (usual * 7 + seen.min(2 * LONG_GAP)) / 8
}

/// Time to spin between steps, from the usual time between them.
pub(super) fn idle_spin(usual: Duration) -> Duration {
    if usual > LONG_GAP {
        SHORT_SPIN
    } else {
        (4 * usual).max(SHORT_SPIN)
    }
}

/// Observations by one thread of those it waits for.
struct Patience {
    since: Instant,
    last_look: Option<Instant>,
    /// Clocks at the last look, by thread.
    clocks: Vec<(usize, Option<Duration>)>,
}

/// Verdict on the threads that are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Spin,
    /// No thread that is waited for is at work.
    Gone,
    /// The same, because this thread has their CPU: they come back once it sleeps, which is cheaper
    /// than going on without them.
    Displaced,
    /// One of them is at work, but it takes long.
    Long,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            since: Instant::now(),
            last_look: None,
            clocks: Vec::new(),
        }
    }

    fn again(&mut self) {
        (self.since, self.last_look) = (Instant::now(), None);
    }

    /// Decides how to go on waiting. Clocks are not read before `patience` has passed, which is
    /// evaluated late, except those of threads on this thread's CPU, if giving the CPU back is
    /// cheaper.
    fn judge(&mut self, shared: &Shared, patience: impl Fn() -> Duration) -> Verdict {
        let now = Instant::now();
        let waited = now - self.since;
        let since_look = self.last_look.map(|look| now - look);
        if since_look.unwrap_or(waited) < BETWEEN_LOOKS {
            return Verdict::Spin;
        }
        self.last_look = Some(now);
        let before = std::mem::take(&mut self.clocks);
        let patience = patience();
        let displaced = patience > DEAR && shared.late_are_here();
        if waited < LOOK.max(patience) && !displaced {
            return Verdict::Spin;
        }
        self.clocks.extend(
            shared
                .team
                .late()
                .map(|id| (id, shared.clocks[id].elapsed())),
        );
        let at_work = |&(id, clock): &(usize, Option<Duration>)| {
            let Some(clock) = clock else {
                return waited < WITHOUT_CLOCKS;
            };
            let last = before
                .iter()
                .find_map(|(other, clock)| clock.filter(|_| *other == id));
            match (last, since_look) {
                (Some(last), Some(time)) if time < OLD_LOOK => {
                    clock.saturating_sub(last) >= time / 4
                }
                // not seen before, or too long ago
                _ => true,
            }
        };
        if !self.clocks.is_empty() && !self.clocks.iter().any(at_work) {
            if displaced {
                Verdict::Displaced
            } else {
                Verdict::Gone
            }
        } else if waited > SPIN {
            Verdict::Long
        } else {
            Verdict::Spin
        }
    }
}

impl Shared {
    /// Waits for the other members, as one that has arrived, or goes on without them.
    pub(super) fn wait_for_others(&self, id: usize, member: &Membership, work: &dyn Work) -> Next {
        let mut patience = None;
        loop {
            for _ in 0..TURNS {
                if self.team.may_go_on(member) {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut verdict = Verdict::Spin;
            let may_go_on =
                self.team.may_go_on(member) || self.team.poisoned.load(Ordering::Relaxed);
            if !may_go_on {
                // most waits are over before this
                let patience = patience.get_or_insert_with(Patience::new);
                verdict = patience.judge(self, || work.patience(member.section));
            }
            if may_go_on || verdict != Verdict::Spin {
                let next = self.team.look(id, member);
                if next != Next::Wait {
                    return next;
                }
            }
            let patience = patience.get_or_insert_with(Patience::new);
            match verdict {
                Verdict::Spin => {}
                Verdict::Gone if self.take_over(id, member, work) => {}
                Verdict::Gone | Verdict::Displaced | Verdict::Long => {
                    let can = || {
                        self.overdue_of(member)
                            .is_some_and(|overdue| work.can_repeat(overdue.section))
                    };
                    let could = can();
                    let freed = || !could && can();
                    self.team
                        .bell
                        .sleep_until(|| self.team.has_changed(member) || freed());
                    patience.again();
                }
            }
        }
    }

    /// Whether all that are waited for began their section on this thread's CPU.
    fn late_are_here(&self) -> bool {
        self.team.late().all(|id| self.cpus[id].is_here())
    }

    fn take_over(&self, id: usize, member: &Membership, work: &dyn Work) -> bool {
        self.overdue_of(member)
            .is_some_and(|overdue| self.take_over_if_possible(id, &overdue, work))
    }

    /// The running section, if it belongs to a member's own step and could be taken over. A member
    /// that was descheduled for long may find another step under way, whose sections its work does
    /// not have.
    pub(super) fn overdue_of(&self, member: &Membership) -> Option<Overdue> {
        let overdue = self.team.overdue()?;
        (overdue.epoch() == member.epoch).then_some(overdue)
    }

    fn take_over_if_possible(&self, id: usize, overdue: &Overdue, work: &dyn Work) -> bool {
        let section = overdue.section;
        let done = work.can_repeat(section)
            && self
                .team
                .take_over(id, overdue, |from, to| work.carry(section, from, to));
        if done {
            self.taken_over.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Waits while another thread changes the members.
    pub(super) fn wait_for_changes(&self) {
        let start = Instant::now();
        let over = || !self.team.is_changing() || self.team.poisoned.load(Ordering::SeqCst);
        while !over() {
            std::hint::spin_loop();
            if start.elapsed() > LOOK {
                self.team.bell.sleep_until(over);
            }
        }
    }

    /// Keeps a thread that was left behind away for a while, unless `cost`, that of carrying a
    /// section elsewhere, is low enough to be paid every time slice.
    pub(super) fn rest(&self, cost: Duration) {
        let start = Instant::now();
        while cost > WORTH_A_REST && start.elapsed() < REST && !self.team.is_idle() {
            std::thread::sleep(NAP);
        }
    }

    /// Waits until this thread is a member. `None` when there is no use in that: for a worker when
    /// the pool ends, for thread 0 when the step has.
    pub(super) fn wait_for_seat(&self, id: usize) -> Option<Membership> {
        if id == 0 && (self.team.is_idle() || self.team.poisoned.load(Ordering::SeqCst)) {
            return None;
        }
        self.team.ask_in(id);
        let mut patience = Patience::new();
        let mut was_idle = false;
        loop {
            let steps = self.steps.load(Ordering::SeqCst);
            match self.team.answer(id) {
                Next::Work(membership) => return Some(membership),
                Next::LeftBehind => self.team.ask_in(id),
                _ => {}
            }
            let over = self.team.is_idle() || self.team.poisoned.load(Ordering::SeqCst);
            if (id == 0 && over || self.stop.load(Ordering::SeqCst)) && self.team.withdraw(id) {
                return None;
            }
            if over != was_idle {
                patience.again();
                was_idle = over;
            }
            if over {
                let spin = Duration::from_nanos(self.idle_spin.load(Ordering::Relaxed));
                if patience.since.elapsed() > spin && self.may_sleep(id) {
                    self.idle.sleep_until(|| {
                        self.steps.load(Ordering::SeqCst) != steps
                            || self.stop.load(Ordering::SeqCst)
                    });
                    self.team.ask_in(id);
                    patience.again();
                }
            } else {
                self.wait_to_join(id, &mut patience);
            }
            for _ in 0..TURNS {
                std::hint::spin_loop();
            }
        }
    }

    /// One iteration of waiting for a seat in a running step, which comes at the end of a section
    /// or when no member is at work.
    fn wait_to_join(&self, id: usize, patience: &mut Patience) {
        let overdue = || {
            let overdue = self.team.overdue()?;
            let work = locked(&self.job).of_epoch(overdue.epoch())?;
            Some((overdue, work))
        };
        let cost = || {
            overdue().map_or(Duration::ZERO, |(overdue, work)| {
                work.patience(overdue.section)
            })
        };
        let verdict = patience.judge(self, cost);
        if verdict == Verdict::Spin {
            return;
        }
        if verdict == Verdict::Gone
            && let Some((overdue, work)) = overdue()
            && self.take_over_if_possible(id, &overdue, &*work)
        {
            return;
        }
        let turn = self.team.turn();
        self.team.bell.sleep_until(|| {
            self.team.turn() != turn
                || self.team.is_seated(id)
                || self.team.is_idle()
                || self.team.poisoned.load(Ordering::SeqCst)
        });
        patience.again();
    }

    /// Whether a thread that has asked for a seat may sleep until the next step; if so, its request
    /// is withdrawn.
    fn may_sleep(&self, id: usize) -> bool {
        // under the lock, so that no thread that was counted as waiting withdraws after that
        let job = locked(&self.job);
        !job.gathers && self.team.withdraw(id)
    }

    /// Waits until every thread has asked for a seat, so that the next step begins with all of
    /// them, or with those that have asked after `at_most`.
    pub(super) fn gather(&self, at_most: Option<Duration>) {
        locked(&self.job).gathers = true;
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.idle.ring();
        let start = Instant::now();
        let enough = || at_most.is_some_and(|limit| start.elapsed() > limit);
        while !self.team.all_have_asked() && !enough() {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
