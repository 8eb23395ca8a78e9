//! Membership and progress of a step: the rules by which threads join, meet and are left behind.
//!
//! A step is a list of *sections*. The *team* divides the tasks of a section among its members;
//! when the last member has arrived, the team goes on to the next. A busy machine deschedules a
//! member for milliseconds, and sections last microseconds: waiting for it would cost nearly all
//! the time. So a member that is late is left behind. The others *take over*: they run the section
//! once more in another *place* (a set of buffers), where the late member cannot disturb them, and
//! carry on without it. It finishes its part in the old place, finds that the team has left, and
//! joins again at the end of a section. No other thread enters a place with a late member in it. A
//! member that works alone does not let others wait for the end of a section: it stops in the
//! middle, and divides the rest among all.
//!
//! All of this relies on one word, the *gate*: an epoch that changes whenever the members change,
//! the section, the number of members and how many have arrived. To change the members, a thread
//! first sets a flag in it, which keeps all others from changing the gate; then it writes the
//! *seats* (each thread's epoch and rank), and then the new gate. A thread is a member while its
//! seat names the gate's epoch.

#[path = "takeover.rs"] // the model checker's test reads this file from elsewhere
mod takeover;

use super::bell::Bell;
use super::gate::{END, EPOCHS, Gate, Membership};
use super::sync::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};

/// Places, at most: the team's own, and two with late members in them.
pub(crate) const PLACES: usize = 3;
/// Threads of a pool, at most.
pub(super) const MAX_THREADS: usize = 1023;
/// Sections of a step, at most.
pub(super) const MAX_SECTIONS: usize = END as usize;
/// Keeps values that different threads write on different cache lines (pairs of lines are fetched
/// together).
#[repr(align(128))]
struct CachePadded<T>(T);

/// Flags a thread publishes about itself, and the membership the team assigns to it.
struct Seat {
    /// The last [`Membership`], or zero: this thread touches no place.
    membership: AtomicU64,
    /// The section that this thread has finished, as a gate's word with neither size nor arrivals.
    finished: AtomicU64,
    /// Whether this thread wants to be a member.
    wants: AtomicBool,
}

impl Seat {
    fn epoch(&self) -> Option<u64> {
        Membership::epoch_of(self.membership.load(Ordering::SeqCst))
    }
}

/// Outcome of finishing a section, or of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Work on this section.
    Work(Membership),
    /// Wait: others have not arrived yet, or members are being changed.
    Wait,
    /// Arrive once more: members were being changed.
    ArriveAgain,
    /// The team has left this thread behind.
    LeftBehind,
    /// Nothing: the step is done.
    Done,
}

/// A section that could be taken over.
#[derive(Clone, Copy)]
pub(super) struct Overdue {
    gate: Gate,
    /// Number of the section.
    pub(super) section: usize,
}

impl Overdue {
    /// The epoch it belongs to.
    pub(super) fn epoch(&self) -> u64 {
        self.gate.epoch
    }
}

/// See the head of this file.
pub(super) struct Team {
    gate: CachePadded<AtomicU64>,
    /// The gate without arrivals, for waiting threads: polling the gate would slow the arrivals
    /// down.
    turn: CachePadded<AtomicU64>,
    seats: Box<[CachePadded<Seat>]>,
    /// The team's place, written by the thread that changes the members.
    place: AtomicUsize,
    /// Number of threads that want to be members: never too many, for a moment too few, even below
    /// zero.
    joining: CachePadded<AtomicIsize>,
    /// Bell for threads that sleep until the gate changes, or a seat is given up.
    pub(super) bell: Bell,
    /// A thread panicked: the others must not wait for it.
    pub(super) poisoned: AtomicBool,
}

impl Team {
    /// Makes a team for `n` threads, numbered from 0.
    pub(super) fn new(n: usize) -> Team {
        assert!((1..=MAX_THREADS).contains(&n));
        let seat = || Seat {
            membership: AtomicU64::new(0),
            finished: AtomicU64::new(u64::MAX),
            wants: AtomicBool::new(false),
        };
        let gate = Gate {
            changing: false,
            epoch: 0,
            section: END,
            size: 0,
            arrived: 0,
        };
        Team {
            gate: CachePadded(AtomicU64::new(gate.word())),
            turn: CachePadded(AtomicU64::new(gate.turn())),
            seats: (0..n).map(|_| CachePadded(seat())).collect(),
            place: AtomicUsize::new(0),
            joining: CachePadded(AtomicIsize::new(0)),
            bell: Bell::new(),
            poisoned: AtomicBool::new(false),
        }
    }

    fn gate(&self) -> Gate {
        Gate::of(self.gate.0.load(Ordering::SeqCst))
    }

    /// Writes the gate while no other thread may, and tells the waiting threads.
    fn open(&self, gate: Gate) {
        self.gate.0.store(gate.word(), Ordering::SeqCst);
        self.tell(gate);
    }

    fn tell(&self, gate: Gate) {
        // sleepers look at the gate; the bell's fence would have to wait for the write of the turn,
        // whose cache line all others have
        self.bell.ring();
        self.turn.0.store(gate.turn(), Ordering::Release);
    }

    /// The epoch that the next step begins with, between steps.
    pub(super) fn next_epoch(&self) -> u64 {
        (self.gate().epoch + 1) % EPOCHS
    }

    /// Whether no step is running.
    pub(super) fn is_idle(&self) -> bool {
        self.gate().section == END
    }

    /// The team's place, or the one where the last step ended. No other thread is there.
    pub(super) fn place(&self) -> usize {
        self.place.load(Ordering::Relaxed)
    }

    /// Begins a step with thread 0 and all that have [asked](Team::ask_in). Only between steps.
    pub(super) fn begin(&self) -> Membership {
        let (last, place) = (self.gate(), self.place());
        assert!(
            last.section == END && !last.changing,
            "the last step is done"
        );
        // no other thread changes the gate between steps, but threads asking for a seat read it
        // along with their seats
        self.gate.0.store(
            Gate {
                changing: true,
                ..last
            }
            .word(),
            Ordering::SeqCst,
        );
        for seat in &self.seats {
            // these arrived at the end of the last step, whether they have seen that or not, and
            // are in no place any more
            let membership = seat.0.membership.load(Ordering::SeqCst);
            if Membership::epoch_of(membership) == Some(last.epoch) {
                self.give_up(seat, membership);
            }
        }
        let gate = Gate {
            epoch: (last.epoch + 1) % EPOCHS,
            section: 0,
            ..last
        };
        let size = self.seat_all(gate.epoch, place, |id, _| id == 0);
        self.open(Gate {
            size,
            arrived: 0,
            ..gate
        });
        Membership {
            epoch: gate.epoch,
            rank: 0,
            size: size as usize,
            place,
            section: 0,
        }
    }

    /// Gives seats to the threads for which `stay` is true, by number and present membership, and
    /// to those that have asked; returns their number.
    fn seat_all(&self, epoch: u64, place: usize, stay: impl Fn(usize, &Seat) -> bool) -> u64 {
        let mut rank = 0;
        for (id, CachePadded(seat)) in self.seats.iter().enumerate() {
            let asked =
                seat.wants.load(Ordering::Relaxed) && seat.wants.swap(false, Ordering::SeqCst);
            if asked {
                self.joining.0.fetch_sub(1, Ordering::SeqCst);
            }
            if asked || stay(id, seat) {
                let membership = Membership {
                    epoch,
                    rank,
                    size: 0,
                    place,
                    section: 0,
                };
                seat.membership.store(membership.seat(), Ordering::SeqCst);
                rank += 1;
            }
        }
        rank as u64
    }

    /// Asks for a seat, which this thread must not have.
    pub(super) fn ask_in(&self, id: usize) {
        // in this order, so that a reader of the count finds an asker: otherwise a member that
        // works alone would stop for none
        self.seats[id].0.wants.store(true, Ordering::SeqCst);
        self.joining.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Withdraws [`ask_in`](Team::ask_in). `false` if it is too late: there is a seat, or will be
    /// in a moment.
    pub(super) fn withdraw(&self, id: usize) -> bool {
        self.joining.0.fetch_sub(1, Ordering::SeqCst);
        let withdrawn = self.seats[id].0.wants.swap(false, Ordering::SeqCst);
        if !withdrawn {
            // the thread that gave the seat has counted it as well
            self.joining.0.fetch_add(1, Ordering::SeqCst);
        }
        withdrawn
    }

    /// The next action of a thread that has asked for a seat.
    pub(super) fn answer(&self, id: usize) -> Next {
        let gate = self.gate();
        let seat = self.seats[id].0.membership.load(Ordering::SeqCst);
        if gate.changing {
            // the thread that ends a step in which a thread panicked keeps the gate until all seats
            // are given up, also those that no thread has taken yet. The seat was read before: it
            // belongs to the poisoned step
            if seat != 0 && self.poisoned.load(Ordering::SeqCst) {
                self.leave(id);
                return Next::LeftBehind;
            }
            return Next::Wait;
        }
        let now = self.gate();
        if now.changing || now.epoch != gate.epoch {
            // the seat may be of an epoch that began after the gate was read
            return Next::Wait;
        }
        match Membership::epoch_of(seat) {
            Some(epoch) if epoch == gate.epoch && gate.section != END => {
                Next::Work(self.membership(seat, gate))
            }
            Some(_) => {
                self.leave(id);
                Next::LeftBehind
            }
            None => Next::Wait,
        }
    }

    fn membership(&self, seat: u64, gate: Gate) -> Membership {
        Membership {
            epoch: gate.epoch,
            rank: (seat >> 8 & 0xffff) as usize,
            size: gate.size as usize,
            place: (seat & 0xff) as usize,
            section: gate.section as usize,
        }
    }

    /// Whether the team has gone on without this member, so that its work is of no use any more.
    pub(super) fn has_left(&self, member: &Membership) -> bool {
        let is_another =
            |word: &AtomicU64| Gate::of(word.load(Ordering::Relaxed)).epoch != member.epoch;
        // the turn may be late, but reading it does not take the gate's cache line from arriving
        // members
        is_another(&self.turn.0) && is_another(&self.gate.0)
    }

    /// Marks a member's part of its section, the step's `last` or not, as finished. The member
    /// touches no place before it is told to go on.
    pub(super) fn arrive(&self, id: usize, member: &Membership, last: bool) -> Next {
        // released: a thread that takes over counts this one as arrived by this store alone, and
        // others may then use its place
        self.seats[id]
            .0
            .finished
            .store(member.turn(), Ordering::Release);
        // the gate that the first to arrive finds; reading it first would fetch its cache line
        // twice
        let mut gate = member.gate();
        loop {
            if self.poisoned.load(Ordering::SeqCst) {
                self.leave(id);
                return Next::LeftBehind;
            }
            if gate.changing {
                return Next::ArriveAgain;
            }
            if gate.epoch != member.epoch {
                return self.look(id, member);
            }
            debug_assert_eq!(
                gate.section, member.section as u64,
                "nobody goes on without this member"
            );
            let next = if gate.arrived + 1 < gate.size {
                Gate {
                    arrived: gate.arrived + 1,
                    ..gate
                }
            } else if last {
                Gate {
                    section: END,
                    size: 0,
                    arrived: 0,
                    ..gate
                }
            } else if self.is_asked() {
                Gate {
                    changing: true,
                    ..gate
                }
            } else {
                Gate {
                    section: gate.section + 1,
                    arrived: 0,
                    ..gate
                }
            };
            if let Err(now) = self.swap(gate, next) {
                gate = now;
                continue;
            }
            if next.changing {
                self.seat_more(gate, gate.section + 1);
            } else if next.arrived == 0 {
                self.tell(next);
                if !last {
                    return Next::Work(member.next_section());
                }
            } else {
                return Next::Wait;
            }
            return self.look(id, member);
        }
    }

    fn swap(&self, from: Gate, to: Gate) -> Result<(), Gate> {
        let swapped = self.gate.0.compare_exchange(
            from.word(),
            to.word(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        swapped.map(|_| ()).map_err(Gate::of)
    }

    /// Goes on to a section with all members and the threads that have asked as well. The gate is
    /// `changing`.
    fn seat_more(&self, gate: Gate, section: u64) {
        let epoch = (gate.epoch + 1) % EPOCHS;
        let stays = |_: usize, seat: &Seat| seat.epoch() == Some(gate.epoch);
        let size = self.seat_all(epoch, self.place(), stays);
        self.open(Gate {
            changing: false,
            epoch,
            section,
            size,
            arrived: 0,
        });
    }

    /// Whether any thread has asked for a seat.
    pub(super) fn is_asked(&self) -> bool {
        // threads that are just asking or withdrawing may be counted too late or too early
        self.joining.0.load(Ordering::Acquire) > 0
    }

    /// Divides the rest of a section, in the middle of which its only member has stopped, among it
    /// and the threads that have asked for a seat. Before they join, `resume` has the place to
    /// itself.
    pub(super) fn divide_again(
        &self,
        id: usize,
        member: &Membership,
        resume: impl FnOnce(usize),
    ) -> Next {
        let gate = member.gate();
        if self.poisoned.load(Ordering::SeqCst) {
            self.leave(id);
            return Next::LeftBehind;
        }
        match self.swap(
            gate,
            Gate {
                changing: true,
                ..gate
            },
        ) {
            Err(now) if now.changing => return Next::ArriveAgain,
            Err(_) => return self.look(id, member),
            Ok(()) => {}
        }
        resume(member.place);
        self.seat_more(gate, gate.section);
        self.look(id, member)
    }

    /// The next action of a member that was told to wait.
    pub(super) fn look(&self, id: usize, member: &Membership) -> Next {
        // the usual case, without the gate, whose cache line belongs to arriving members: the same
        // members go on
        if self.turn.0.load(Ordering::Acquire) == member.next_section().turn() {
            return Next::Work(member.next_section());
        }
        if self.poisoned.load(Ordering::SeqCst) {
            self.leave(id);
            return Next::LeftBehind;
        }
        if !self.has_changed(member) {
            return Next::Wait;
        }
        // the seat belongs to the gate that was read before it: a member's seat is not given away
        // before it has arrived
        let gate = self.gate();
        if gate.changing {
            return Next::Wait;
        }
        let seat = self.seats[id].0.membership.load(Ordering::SeqCst);
        if Membership::epoch_of(seat) != Some(gate.epoch) {
            self.leave(id);
            return Next::LeftBehind;
        }
        if gate.section == END {
            self.leave(id);
            return Next::Done;
        }
        Next::Work(self.membership(seat, gate))
    }

    /// Whether a member that was told to wait has something else to do now.
    pub(super) fn has_changed(&self, member: &Membership) -> bool {
        let gate = self.gate();
        let stands = gate.epoch == member.epoch && gate.section == member.section as u64;
        !gate.changing && !stands || self.poisoned.load(Ordering::SeqCst)
    }

    /// A number that changes with every section.
    pub(super) fn turn(&self) -> u64 {
        self.gate().turn()
    }

    /// Whether a thread that has asked has a seat, of any epoch, and members are not being changed.
    pub(super) fn is_seated(&self, id: usize) -> bool {
        !self.is_changing() && self.seats[id].0.membership.load(Ordering::SeqCst) != 0
    }

    /// Whether all threads but the first have asked for a seat.
    pub(super) fn all_have_asked(&self) -> bool {
        self.seats[1..]
            .iter()
            .all(|seat| seat.0.wants.load(Ordering::SeqCst))
    }

    /// Whether a thread is changing the members.
    pub(super) fn is_changing(&self) -> bool {
        self.gate().changing
    }

    /// Whether the turn that a member waits for may have come: cheap to ask, and sometimes late by
    /// a moment.
    pub(super) fn may_go_on(&self, member: &Membership) -> bool {
        self.turn.0.load(Ordering::Acquire) != member.turn()
    }
}
