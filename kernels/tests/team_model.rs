//! The rules by which threads work in a team, under a model checker: every interleaving of their
//! steps, up to a number of preemptions. It detects races, deadlocks and wrong results; one test
//! plants a lost wake-up.
#![allow(
    dead_code,
    reason = "the sources are shared with the pool, which uses more of them"
)]
#![allow(unsafe_code, reason = "the cells that the model checker watches")]

#[path = "../src/pool/bell.rs"]
mod bell;
#[path = "../src/pool/gate.rs"]
mod gate;
#[path = "../src/pool/team.rs"]
mod team;

/// The synchronization primitives of the rules, as instrumented by the model checker.
mod sync {
    pub(super) use loom::sync::atomic::{
        AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
}

use bell::Bell;
use gate::Membership;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, Ordering};
use team::{Next, PLACES, Team};

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

fn ring_and_sleep(ring_first: bool) {
    check(3, move || {
        let shared = Arc::new((Bell::new(), AtomicBool::new(false)));
        let other = shared.clone();
        let sleeper =
            thread::spawn(move || other.0.sleep_until(|| other.1.load(Ordering::Acquire)));
        if ring_first {
            shared.0.ring();
        }
        shared.1.store(true, Ordering::Release);
        if !ring_first {
            shared.0.ring();
        }
        sleeper.join().expect("it wakes up");
    });
}

#[test]
fn no_wake_up_is_lost() {
    ring_and_sleep(false);
}

/// Runs in a child process, which the checker's deadlock report ends.
#[test]
fn a_lost_wake_up_is_seen() {
    const PLANTED: &str = "OCTAVO_PLANT_A_LOST_WAKE_UP";
    if std::env::var_os(PLANTED).is_some() {
        ring_and_sleep(true);
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    let child = child
        .args([
            "--exact",
            "team_model::a_lost_wake_up_is_seen",
            "--nocapture",
        ])
        .env(PLANTED, "1");
    let output = child.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("deadlock"),
        "{errors}"
    );
}

/// Behaviour of threads beyond meeting each other.
#[derive(Clone, Copy, Default)]
struct Rules {
    /// Waiting threads go on at once without the others.
    takes_over: bool,
    /// A thread alone shares the rest of a section with those that join.
    divides: bool,
}

/// A step of two items per section, each the sum of both items of the previous section.
struct Step {
    team: Team,
    places: [[[UnsafeCell<u64>; 2]; 2]; PLACES],
    /// By place: 1 + the section that continues there with its first item done.
    resumed: [UnsafeCell<usize>; PLACES],
    sections: usize,
    rules: Rules,
    done: AtomicBool,
}

impl Step {
    fn new(threads: usize, sections: usize, rules: Rules) -> Step {
        let cells = || [UnsafeCell::new(1), UnsafeCell::new(1)];
        let places = std::array::from_fn(|_| [cells(), cells()]);
        let resumed = std::array::from_fn(|_| UnsafeCell::new(0));
        Step {
            team: Team::new(threads),
            places,
            resumed,
            sections,
            rules,
            done: AtomicBool::new(false),
        }
    }

    fn get(&self, place: usize, section: usize, item: usize) -> u64 {
        // SAFETY: the checker detects concurrent writes.
        self.places[place][section % 2][item].with(|x| unsafe { *x })
    }

    fn set(&self, place: usize, section: usize, item: usize, value: u64) {
        // SAFETY: the checker detects any concurrent access.
        self.places[place][section % 2][item].with_mut(|x| unsafe { *x = value });
    }

    fn resume(&self, place: usize, section: usize) {
        // SAFETY: the checker detects any concurrent access.
        self.resumed[place].with_mut(|x| unsafe { *x = section });
    }

    fn carry(&self, section: usize, from: usize, to: usize) -> bool {
        self.resume(to, 0);
        for item in 0..2 {
            self.set(to, section, item, self.get(from, section, item));
        }
        true
    }

    fn take_over(&self, id: usize) -> bool {
        self.rules.takes_over
            && self.team.overdue().is_some_and(|overdue| {
                self.team.take_over(id, &overdue, |from, to| {
                    self.carry(overdue.section, from, to)
                })
            })
    }

    fn take_part(&self, id: usize, mut member: Membership) {
        loop {
            let s = member.section;
            let sum = self.get(member.place, s, 0) + self.get(member.place, s, 1);
            // SAFETY: the checker detects concurrent writes.
            let resumed = self.resumed[member.place].with(|x| unsafe { *x }) == s + 1;
            let mut stopped = false;
            for item in 2 * member.rank / member.size..2 * (member.rank + 1) / member.size {
                if resumed && item == 0 {
                    continue;
                }
                stopped =
                    self.rules.divides && member.size == 1 && item == 1 && self.team.is_asked();
                if !stopped {
                    self.set(member.place, s + 1, item, sum);
                }
            }
            let meet = || match stopped {
                true => self
                    .team
                    .divide_again(id, &member, |place| self.resume(place, s + 1)),
                false => self.team.arrive(id, &member, s + 1 == self.sections),
            };
            let mut next = meet();
            member = loop {
                next = match next {
                    Next::Work(go_on) => break go_on,
                    Next::Wait => {
                        if !self.take_over(id) {
                            self.team
                                .bell
                                .sleep_until(|| self.team.has_changed(&member));
                        }
                        self.team.look(id, &member)
                    }
                    Next::ArriveAgain => {
                        self.team.bell.sleep_until(|| !self.team.is_changing());
                        meet()
                    }
                    Next::LeftBehind | Next::Done => return,
                }
            };
        }
    }

    /// Works in the team until the step is done.
    fn attend(&self, id: usize) {
        loop {
            self.team.ask_in(id);
            loop {
                match self.team.answer(id) {
                    Next::Work(member) => {
                        self.take_part(id, member);
                        break;
                    }
                    Next::LeftBehind => break,
                    _ => {}
                }
                let over = || self.done.load(Ordering::Acquire) || id == 0 && self.team.is_idle();
                if over() && self.team.withdraw(id) {
                    return;
                }
                let turn = self.team.turn();
                self.team
                    .bell
                    .sleep_until(|| self.team.turn() != turn || self.team.is_seated(id) || over());
            }
        }
    }
}

fn steps(threads: usize, sections: usize, rules: Rules, preemptions: usize) {
    check(preemptions, move || {
        let step = Arc::new(Step::new(threads, sections, rules));
        let others: Vec<_> = (1..threads)
            .map(|id| {
                let step = step.clone();
                thread::spawn(move || step.attend(id))
            })
            .collect();
        for _ in 0..2 {
            let place = step.team.place();
            (0..2).for_each(|item| step.set(place, 0, item, 1));
            step.resume(place, 0);
            let member = step.team.begin();
            step.take_part(0, member);
            if !step.team.is_idle() {
                step.attend(0);
            }
            let place = step.team.place();
            for item in 0..2 {
                assert_eq!(step.get(place, sections, item), 1 << sections);
            }
        }
        step.done.store(true, Ordering::Release);
        step.team.bell.ring();
        for other in others {
            other.join().expect("it ends");
        }
        assert!(step.team.is_alone(0));
    });
}

#[test]
fn a_team_of_two_meets_after_every_section() {
    steps(2, 2, Rules::default(), 2);
}

#[test]
fn who_is_late_is_left_behind_and_disturbs_nobody() {
    steps(
        2,
        2,
        Rules {
            takes_over: true,
            ..Rules::default()
        },
        2,
    );
}

#[test]
fn who_is_alone_shares_the_rest_of_a_section() {
    steps(
        2,
        1,
        Rules {
            divides: true,
            ..Rules::default()
        },
        3,
    );
    steps(
        2,
        2,
        Rules {
            divides: true,
            takes_over: true,
        },
        2,
    );
}
