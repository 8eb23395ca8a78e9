//! The words that hold the members of a step and its section: the gate, one for the team, and
//! seats, one for each thread. `team.rs` has the rules.

/// Value of the gate's section while no step is running.
pub(super) const END: u64 = 0xffff;

/// State of the gate. As a word: changing 1, epoch 27, section 16, size 10, arrived 10 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    /// A thread is changing the members; no other thread may write the gate.
    pub(super) changing: bool,
    /// Changes with the members. 27 bits are enough: a thread would have to miss 134 million
    /// changes to mistake one for another, and it compares with its own last membership.
    pub(super) epoch: u64,
    pub(super) section: u64,
    /// Number of members.
    pub(super) size: u64,
    /// Number of members that have finished their part of the section.
    pub(super) arrived: u64,
}

/// Epochs wrap around after this many.
pub(super) const EPOCHS: u64 = 1 << 27;

impl Gate {
    /// As a word.
    pub(super) fn word(self) -> u64 {
        u64::from(self.changing) << 63
            | (self.epoch % EPOCHS) << 36
            | self.section << 20
            | self.size << 10
            | self.arrived
    }

    /// From a word.
    pub(super) fn of(word: u64) -> Gate {
        Gate {
            changing: word >> 63 != 0,
            epoch: word >> 36 & (EPOCHS - 1),
            section: word >> 20 & 0xffff,
            size: word >> 10 & 0x3ff,
            arrived: word & 0x3ff,
        }
    }

    /// Identifier of the section and its epoch.
    pub(super) fn turn(self) -> u64 {
        Gate {
            changing: false,
            size: 0,
            arrived: 0,
            ..self
        }
        .word()
    }
}

/// A thread's part in the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) epoch: u64,
    /// Number among the members, below `size`.
    pub(super) rank: usize,
    /// Number of members.
    pub(super) size: usize,
    /// Index of the set of buffers.
    pub(super) place: usize,
    /// Section to work on next.
    pub(super) section: usize,
}

impl Membership {
    /// The seat's word, which is never zero: section and size are in the gate.
    pub(super) fn seat(&self) -> u64 {
        1 << 63 | self.epoch << 32 | (self.rank as u64) << 8 | self.place as u64
    }

    /// The same membership, one section later.
    pub(super) fn next_section(&self) -> Membership {
        Membership {
            section: self.section + 1,
            ..*self
        }
    }

    /// The gate before any member has arrived.
    pub(super) fn gate(&self) -> Gate {
        let (section, size) = (self.section as u64, self.size as u64);
        Gate {
            changing: false,
            epoch: self.epoch,
            section,
            size,
            arrived: 0,
        }
    }

    /// Identifier of its epoch and section.
    pub(super) fn turn(&self) -> u64 {
        self.gate().turn()
    }

    /// Whether an epoch is the same as another or later.
    pub(super) fn is_since(epoch: u64, other: u64) -> bool {
        epoch.wrapping_sub(other) % EPOCHS < EPOCHS / 2
    }

    /// The place in a seat's word, unless the seat is empty.
    pub(super) fn place_of(seat: u64) -> Option<usize> {
        (seat != 0).then_some((seat & 0xff) as usize)
    }

    pub(super) fn epoch_of(seat: u64) -> Option<u64> {
        (seat != 0).then_some(seat >> 32 & (EPOCHS - 1))
    }
}
