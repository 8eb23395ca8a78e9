//! Leaving the team, leaving late members behind, and ending a step in which a thread panicked.

use super::super::gate::{END, EPOCHS, Gate, Membership};
use super::super::sync::Ordering;
use super::{CachePadded, Overdue, PLACES, Seat, Team};

impl Team {
    /// Gives up the seat of a thread that no longer touches any place.
    pub(in super::super) fn leave(&self, id: usize) {
        let seat = &self.seats[id];
        let membership = seat.0.membership.load(Ordering::SeqCst);
        if membership != 0 {
            self.give_up(seat, membership);
        }
    }

    pub(super) fn give_up(&self, seat: &CachePadded<Seat>, membership: u64) {
        // if another thread was faster, it did the same
        let _ =
            seat.0
                .membership
                .compare_exchange(membership, 0, Ordering::SeqCst, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Whether all seats are given up but that of thread `id`.
    pub(in super::super) fn is_alone(&self, id: usize) -> bool {
        let empty = |seat: &CachePadded<Seat>| seat.0.membership.load(Ordering::SeqCst) == 0;
        self.seats
            .iter()
            .enumerate()
            .all(|(other, seat)| other == id || empty(seat))
    }

    /// Members that have not finished the running section.
    pub(in super::super) fn late(&self) -> impl Iterator<Item = usize> + '_ {
        let gate = self.gate();
        let running = !gate.changing && gate.section != END;
        self.seats
            .iter()
            .enumerate()
            .filter_map(move |(id, CachePadded(seat))| {
                let member = seat.epoch() == Some(gate.epoch);
                (running && member && seat.finished.load(Ordering::Relaxed) != gate.turn())
                    .then_some(id)
            })
    }

    /// The running section, if late members can be left behind: there is an unused place.
    pub(in super::super) fn overdue(&self) -> Option<Overdue> {
        let gate = self.gate();
        let running = !gate.changing && gate.section != END;
        let overdue = Overdue {
            gate,
            section: gate.section as usize,
        };
        (running && self.free_place().is_some()).then_some(overdue)
    }

    fn free_place(&self) -> Option<usize> {
        let mut taken = [false; PLACES];
        for CachePadded(seat) in &self.seats {
            if let Some(place) = Membership::place_of(seat.membership.load(Ordering::SeqCst)) {
                taken[place] = true;
            }
        }
        taken[self.place()] = true;
        taken.iter().position(|taken| !taken)
    }

    /// Leaves all late members behind. The caller waits, as a member that has arrived or as one
    /// that has asked for a seat; the section can be done again. `carry(from, to)` copies the
    /// inputs of it and of later sections to another place, before any thread works there, if it
    /// can. `false` if nothing was done: another thread was faster, or there is no free place.
    pub(in super::super) fn take_over(
        &self,
        id: usize,
        overdue: &Overdue,
        carry: impl FnOnce(usize, usize) -> bool,
    ) -> bool {
        let gate = self.gate();
        if gate.changing
            || gate.turn() != overdue.gate.turn()
            || self.poisoned.load(Ordering::SeqCst)
        {
            return false;
        }
        // the gate may have gone on since this thread was told to wait
        let CachePadded(own) = &self.seats[id];
        let has_arrived =
            own.epoch() == Some(gate.epoch) && own.finished.load(Ordering::Relaxed) == gate.turn();
        if !has_arrived && !own.wants.load(Ordering::SeqCst) {
            return false;
        }
        // only the thread that changes the gate takes a place: if the gate is the same below, this
        // one is still free
        let (from, Some(to)) = (self.place(), self.free_place()) else {
            return false;
        };
        if self
            .swap(
                gate,
                Gate {
                    changing: true,
                    ..gate
                },
            )
            .is_err()
        {
            return false;
        }
        let carried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| carry(from, to)));
        if !matches!(carried, Ok(true)) {
            self.open(gate);
            return carried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let epoch = (gate.epoch + 1) % EPOCHS;
        let arrived = |other: usize, seat: &Seat| {
            other == id && has_arrived
                || seat.epoch() == Some(gate.epoch)
                    && seat.finished.load(Ordering::Acquire) == gate.turn()
        };
        self.place.store(to, Ordering::Relaxed);
        let size = self.seat_all(epoch, to, arrived);
        self.open(Gate {
            changing: false,
            epoch,
            section: gate.section,
            size,
            arrived: 0,
        });
        true
    }

    /// Ends a step in which a thread panicked, once every thread has given up its seat.
    pub(in super::super) fn abandon(&self) {
        self.leave(0);
        // no thread gets a seat from here on
        let gate = loop {
            let gate = self.gate();
            if !gate.changing
                && self
                    .swap(
                        gate,
                        Gate {
                            changing: true,
                            ..gate
                        },
                    )
                    .is_ok()
            {
                break gate;
            }
            std::hint::spin_loop();
        };
        self.bell.sleep_until(|| self.is_alone(0));
        self.poisoned.store(false, Ordering::SeqCst);
        self.open(Gate {
            changing: false,
            epoch: (gate.epoch + 1) % EPOCHS,
            section: END,
            size: 0,
            arrived: 0,
        });
    }
}
