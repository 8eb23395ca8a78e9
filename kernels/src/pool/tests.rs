use std::sync::atomic::AtomicUsize;

use super::team::Next;
use super::*;

/// Steps of a test: few where an interpreter runs it.
const STEPS: usize = if cfg!(miri) { 3 } else { 50 };

/// Work in which every section sets each of its items to a sum over all items of the section
/// before. In three places, and with plain values, so that an interpreter sees every race.
struct Sums {
    places: Vec<[Vec<Plain>; 2]>,
    /// By place: the last section in which each item was done, plus the section that is run there
    /// once more.
    done: Vec<Vec<Plain>>,
    resumed: Vec<Plain>,
    sections: usize,
    can_repeat: bool,
    /// A thread and a section in which it stays away for a while.
    missing: Option<(usize, usize)>,
    entered: AtomicUsize,
}

struct Plain(std::cell::UnsafeCell<u64>);

// SAFETY: threads of a team write different cells, and read those of the section before; that is
// what is tested.
unsafe impl Sync for Plain {}

const ITEMS: usize = 7;
/// Number of no section.
const NEVER: u64 = u64::MAX;

impl Sums {
    fn new(sections: usize, can_repeat: bool, missing: Option<(usize, usize)>) -> Sums {
        let cells = |n, value| {
            (0..n)
                .map(|_| Plain(std::cell::UnsafeCell::new(value)))
                .collect()
        };
        let places = (0..PLACES)
            .map(|_| [cells(ITEMS, 1), cells(ITEMS, 1)])
            .collect();
        let done = (0..PLACES).map(|_| cells(ITEMS, NEVER)).collect();
        let resumed = cells(PLACES, NEVER);
        Sums {
            places,
            done,
            resumed,
            sections,
            can_repeat,
            missing,
            entered: AtomicUsize::new(0),
        }
    }

    fn get(&self, place: usize, section: usize, item: usize) -> u64 {
        // SAFETY: written in an earlier section, or carried.
        unsafe { *self.places[place][section % 2][item].0.get() }
    }

    /// Value that the last section leaves in every item.
    fn expected(&self) -> u64 {
        (0..self.sections).fold(1, |value, section| {
            (0..ITEMS as u64)
                .fold(0u64, |sum, item| sum.wrapping_add(value ^ item))
                .wrapping_add(section as u64)
        })
    }
}

impl Work for Sums {
    fn sections(&self) -> usize {
        self.sections
    }

    fn run(&self, member: &Member<'_>) {
        let s = member.section;
        // SAFETY: written by the thread that was alone in this place.
        let resumed = unsafe { *self.resumed[member.place].0.get() } == s as u64;
        for item in member.share(ITEMS, 1) {
            let done = self.done[member.place][item].0.get();
            // SAFETY: this item is this member's, and was that of the thread that was alone in this
            // place.
            if resumed && unsafe { *done } == s as u64 {
                continue;
            }
            if member.must_stop() {
                return;
            }
            let sum = (0..ITEMS).fold(0u64, |sum, i| {
                sum.wrapping_add(self.get(member.place, s, i) ^ i as u64)
            });
            if self.missing == Some((member.thread, s)) && item % 2 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            // SAFETY: this item is this member's.
            unsafe {
                *self.places[member.place][(s + 1) % 2][item].0.get() = sum.wrapping_add(s as u64);
                *done = s as u64;
            }
        }
    }

    fn can_repeat(&self, _section: usize) -> bool {
        self.can_repeat
    }

    fn carry(&self, section: usize, from: usize, to: usize) -> bool {
        // SAFETY: no thread is in `to`.
        unsafe { *self.resumed[to].0.get() = NEVER };
        for item in 0..ITEMS {
            // SAFETY: no thread is in `to`.
            unsafe { *self.places[to][section % 2][item].0.get() = self.get(from, section, item) };
        }
        true
    }

    fn resume(&self, section: usize, place: usize) {
        // SAFETY: no other thread is there.
        unsafe { *self.resumed[place].0.get() = section as u64 };
    }

    fn enter(&self) {
        self.entered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a step and checks its results.
fn check(pool: &mut Pool, work: Sums) -> usize {
    let work = Arc::new(work);
    let begin = pool.place();
    for item in 0..ITEMS {
        // SAFETY: no step is running, and no thread is in this place.
        unsafe { *work.places[begin][0][item].0.get() = 1 };
    }
    let mut seen = Vec::new();
    pool.run(work.clone(), &mut |section| seen.push(section));
    assert!(seen.is_sorted(), "this thread goes forward only: {seen:?}");
    let values: Vec<u64> = (0..ITEMS)
        .map(|item| work.get(pool.place(), work.sections, item))
        .collect();
    assert_eq!(values, [work.expected(); ITEMS]);
    work.entered.load(Ordering::Relaxed)
}

#[test]
fn sections_see_what_the_ones_before_have_written() {
    for n in [1, 2, 3, 5] {
        let mut pool = Pool::new(n).expect("threads");
        for step in 0..STEPS {
            check(&mut pool, Sums::new(1 + step % 12, step % 3 > 0, None));
        }
    }
}

#[test]
fn a_late_thread_is_left_behind_and_comes_back() {
    for n in [2, 3] {
        for missing in 0..n {
            let mut pool = Pool::new(n).expect("threads");
            for _ in 0..if cfg!(miri) { 1 } else { 10 } {
                pool.shared.gather(None);
                check(&mut pool, Sums::new(8, true, Some((missing, 3))));
                check(&mut pool, Sums::new(5, true, None));
            }
            pool.settle();
            assert!(pool.is_together());
            // a machine may be so busy that the others were not there either, but not every time
            assert!(
                cfg!(miri) || pool.taken_over() > 0,
                "{n} threads never went on without thread {missing}"
            );
        }
    }
}

/// A section that a single member does not finish before another thread wants to take part.
#[derive(Default)]
struct Patient {
    stopped: AtomicBool,
    /// Number of times that each item was done.
    done: [AtomicUsize; ITEMS],
}

impl Work for Patient {
    fn sections(&self) -> usize {
        1
    }

    fn run(&self, member: &Member<'_>) {
        let begun = self.stopped.load(Ordering::Relaxed);
        for item in member.share(ITEMS, 1) {
            if begun && item == 0 {
                continue;
            }
            self.done[item].fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            while member.size == 1 && item == 0 && start.elapsed() < Duration::from_secs(20) {
                if member.must_stop() {
                    return;
                }
            }
        }
    }

    fn can_repeat(&self, _section: usize) -> bool {
        true
    }

    fn carry(&self, _section: usize, _from: usize, _to: usize) -> bool {
        false
    }

    fn resume(&self, section: usize, place: usize) {
        assert!((section, place) == (0, 0) && !self.stopped.swap(true, Ordering::Relaxed));
    }
}

#[test]
fn who_works_alone_shares_the_rest_of_a_section() {
    let mut pool = Pool::new(2).expect("threads");
    for _ in 0..100 {
        // the other thread usually sleeps by now, and is missing when the step begins
        std::thread::sleep(Duration::from_millis(5));
        let work = Arc::new(Patient::default());
        pool.run(work.clone(), &mut |_| {});
        assert!(
            work.done
                .iter()
                .all(|done| done.load(Ordering::Relaxed) == 1),
            "every item is done once"
        );
        if work.stopped.load(Ordering::Relaxed) {
            return;
        }
    }
    panic!("nobody ever stopped");
}

#[test]
fn what_cannot_be_repeated_waits() {
    let mut pool = Pool::new(3).expect("threads");
    for missing in 0..3 {
        pool.shared.gather(None);
        check(&mut pool, Sums::new(6, false, Some((missing, 2))));
    }
    assert_eq!(pool.taken_over(), 0);
}

#[test]
fn unreliable_threads_change_nothing() {
    for n in [1, 2, 4] {
        let mut pool = Pool::unreliable(n, 7, 5).expect("threads");
        for step in 0..STEPS {
            check(&mut pool, Sums::new(1 + step % 9, step % 4 > 0, None));
        }
    }
}

#[test]
fn everywhere_means_all_threads_once_and_tasks_whoever_is_there() {
    for n in [1, 2, 5] {
        let mut pool = Pool::new(n).expect("threads");
        for _ in 0..STEPS {
            let count: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.run_everywhere(&|id| {
                count[id].fetch_add(1, Ordering::Relaxed);
            });
            assert!(count.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            pool.run_tasks(&|_| {
                while next.fetch_add(1, Ordering::Relaxed) < 10 {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.load(Ordering::Relaxed), 10);
        }
    }
}

/// Checks that long tasks begin with the threads that slept, unlike a step, whose next section they
/// would join.
#[test]
fn long_tasks_are_done_by_those_that_slept_too() {
    let mut pool = Pool::new(2).expect("threads");
    let both = (0..if cfg!(miri) { 3 } else { 50 }).any(|_| {
        std::thread::sleep(Duration::from_millis(if cfg!(miri) { 200 } else { 20 }));
        let there = [AtomicUsize::new(0), AtomicUsize::new(0)];
        pool.run_long_tasks(&|id| {
            there[id].fetch_add(1, Ordering::Relaxed);
        });
        there.iter().all(|n| n.load(Ordering::Relaxed) == 1)
    });
    assert!(both, "a thread that slept was never there");
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
    let mut pool = Pool::new(3).expect("threads");
    for culprit in 0..3 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run_everywhere(&|id| assert!(id != culprit, "planted"));
        }));
        let panic = result.expect_err("it panicked");
        assert!(
            panic
                .downcast_ref::<&str>()
                .is_some_and(|what| *what == "planted")
        );
        check(&mut pool, Sums::new(4, true, None));
    }
}

/// A thread kept away by a busy machine may have a seat that it does not know of when another one
/// panics, say for want of memory: no thread may wait for it to work.
#[test]
fn a_step_that_panicked_ends_though_a_thread_has_not_seen_its_seat() {
    let team = Team::new(2);
    team.ask_in(1);
    assert_eq!(team.begin().size, 2);
    team.poisoned.store(true, Ordering::SeqCst);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            team.abandon();
            ended.store(true, Ordering::SeqCst);
        });
        while !team.is_changing() {
            std::hint::spin_loop();
        }
        assert_eq!(team.answer(1), Next::LeftBehind);
        while !ended.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    });
    assert!(team.is_idle() && !team.poisoned.load(Ordering::SeqCst));
    // and the next step has both
    team.ask_in(1);
    assert_eq!(team.begin().size, 2);
}

#[test]
fn a_member_of_an_earlier_step_looks_for_nothing_in_a_later_one() {
    let pool = Pool::new(1).expect("threads");
    let (shared, team) = (&pool.shared, &pool.shared.team);
    let earlier = team.begin();
    assert!(shared.overdue_of(&earlier).is_some());
    assert_eq!(team.arrive(0, &earlier, true), Next::Done);
    let later = team.begin();
    assert!(shared.overdue_of(&later).is_some());
    assert!(shared.overdue_of(&earlier).is_none());
    assert_eq!(team.arrive(0, &later, true), Next::Done);
}

#[test]
fn sleeping_threads_come_when_there_is_work() {
    let mut pool = Pool::new(2).expect("threads");
    for pause in [0, 1, 5, 20] {
        std::thread::sleep(Duration::from_millis(pause));
        check(&mut pool, Sums::new(30, true, None));
    }
    // all of them, sooner or later
    pool.run_everywhere(&|_| {});
}

#[test]
fn too_many_threads_are_refused() {
    assert!(Pool::new(MAX_THREADS + 1).is_err());
}

#[test]
fn shares_cover_everything_once() {
    let team = Team::new(1);
    let membership = team.begin();
    for (items, grain) in [(0, 1), (1, 4), (100, 8), (7, 2), (64, 32)] {
        let mut next = 0;
        for rank in 0..3 {
            let (team, stopped) = (&team, Cell::new(false));
            let (thread, size, section, place) = (rank, 3, 0, 0);
            let absences = None;
            let member = Member {
                team,
                membership,
                absences,
                divides: false,
                stopped,
                thread,
                section,
                rank,
                size,
                place,
            };
            let share = member.share(items, grain);
            assert!(share.start == next && (share.end == items || share.end.is_multiple_of(grain)));
            next = share.end;
        }
        assert_eq!(next, items);
    }
}
