//! Guesses of how a text goes on. Guessed tokens are computed along with the one that is certain,
//! as generated rows of one text, and kept as far as they are what is chosen there: weights are
//! read once for several tokens. No bit of a text depends on it, only how long it takes.
//!
//! A guess comes of the text itself (`lookup`) or of a smaller model (`draft`), and is as long as
//! it is worth (`pace`).

mod draft;
mod lookup;
mod pace;

use crate::Error;
use crate::pictures::is_cell;
use draft::Drafter;
use lookup::History;
use pace::{MOST_SEEN, Odds, Offer, Worth};

pub use draft::Draft;
pub use lookup::Lookup;
pub use pace::{MOST_GUESSES, Pace};

/// How often guesses were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Tokens that were guessed and computed.
    pub tokens: usize,
    /// Those of them that were chosen.
    pub accepted: usize,
}

impl Guessed {
    /// Adds another's.
    pub fn add(&mut self, other: Guessed) {
        self.tokens += other.tokens;
        self.accepted += other.accepted;
    }
}

/// A step that guesses may be added to.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Tokens that it computes in any case: one for each text.
    pub texts: usize,
    /// Rows that it has already: those, and others' guesses.
    pub rows: usize,
    /// Tokens that may be guessed.
    pub most: usize,
}

/// Guesses how one text goes on.
pub struct Guesser {
    lookup: Lookup,
    history: History,
    said: Odds<7>,
    drafter: Option<Drafter>,
    drafted: Odds<1>,
    /// How many were guessed last, and whether it was the draft that did.
    last: usize,
    is_drafted: bool,
    guessed: Guessed,
}

impl Guesser {
    /// Guesses from what the text itself said before, and from a smaller model, if there is one.
    pub fn new(lookup: Lookup, draft: Option<&Draft>) -> Guesser {
        Guesser {
            lookup,
            history: History::default(),
            said: Odds::new([0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95], MOST_SEEN),
            drafter: draft.map(Draft::begin),
            drafted: Odds::new([0.8], 3.0),
            last: 0,
            is_drafted: false,
            guessed: Guessed::default(),
        }
    }

    /// Guesses what follows a text, all of which is given; nothing, if nothing is worth its time.
    ///
    /// # Errors
    /// If the draft's device fails.
    pub fn guess(&mut self, text: &[u32], room: Room, pace: &mut Pace) -> Result<Vec<u32>, Error> {
        self.last = 0;
        self.is_drafted = false;
        let guesses = self.best_guess(text, room, pace)?;
        self.last = guesses.len();
        Ok(guesses)
    }

    fn best_guess(
        &mut self,
        text: &[u32],
        Room { texts, rows, most }: Room,
        pace: &mut Pace,
    ) -> Result<Vec<u32>, Error> {
        let offer = Offer {
            texts,
            rows,
            most: most.min(MOST_GUESSES),
            each: 0.0,
            is_wanted: false,
        };
        let found = match self.lookup {
            Lookup::Off => None,
            Lookup::Auto | Lookup::On => self.look_up(text),
        };
        let by_text = found.map(|found| {
            let offer = Offer {
                is_wanted: self.lookup == Lookup::On,
                ..offer
            };
            let chance = |n: usize| self.said.of(kind(found.length + n));
            (found, pace.worth(offer, chance))
        });
        // rows of pictures are nothing that a smaller model could read
        let drafter = self
            .drafter
            .as_mut()
            .filter(|_| !text.iter().any(|id| is_cell(*id)));
        if let Some(drafter) = drafter {
            let offer = Offer {
                each: drafter.each(),
                ..offer
            };
            let worth = pace.worth(offer, |_| self.drafted.of(0));
            let other = by_text.map_or(Worth::default(), |(_, worth)| worth);
            if worth.n > 0 && (other.n == 0 || worth.gain > other.gain) {
                // that the draft reads a prompt is what having one costs, whatever is guessed then
                let guesses = drafter
                    .read(text)
                    .and_then(|()| drafter.guess(text, worth.n))
                    .map(|drafted| {
                        pace.thought(drafted.seconds);
                        drafted.tokens
                    });
                match guesses {
                    // others' texts have the draft's pages: this one goes on without guesses
                    Err(Error::KvPages(_)) => self.drafter = None,
                    guesses => {
                        self.is_drafted = true;
                        return guesses;
                    }
                }
            } else if worth.n == 0 {
                drafter.decline();
            }
        }
        Ok(by_text.map_or(Vec::new(), |(found, worth)| {
            self.history.copy(found, worth.n)
        }))
    }

    /// Takes in what is new of the text, counting how often what it said before was right; answers
    /// where it stands now. What a prompt repeats of itself says little of what an answer will
    /// repeat of it, so that nothing is learned of what is there at first.
    fn look_up(&mut self, text: &[u32]) -> Option<lookup::Found> {
        let is_first = self.history.len() == 0;
        for &token in text.get(self.history.len()..).unwrap_or_default() {
            if let Some(found) = self.history.find().filter(|_| !is_first) {
                let was_right = self.history.next(found) == token;
                self.said.see(kind(found.length), was_right);
            }
            self.history.push(token);
        }
        self.history.find()
    }

    /// Guesses nothing any more.
    pub fn stop(&mut self) {
        self.lookup = Lookup::Off;
        self.drafter = None;
    }

    /// Learns how many of the last guesses were right.
    pub fn learn(&mut self, accepted: usize) {
        let tokens = self.last;
        self.guessed.add(Guessed { tokens, accepted });
        if self.is_drafted {
            let looked_at = tokens.min(accepted + 1);
            (0..looked_at).for_each(|n| self.drafted.see(0, n < accepted));
        }
    }

    /// How often it was right so far.
    pub fn guessed(&self) -> Guessed {
        self.guessed
    }
}

/// What matches of so many tokens have in common.
fn kind(length: usize) -> usize {
    match length {
        0..=2 => 0,
        3 => 1,
        4 => 2,
        5..=6 => 3,
        7..=9 => 4,
        10..=15 => 5,
        _ => 6,
    }
}
