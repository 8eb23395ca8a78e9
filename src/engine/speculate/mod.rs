//! Speculative decoding. Draft tokens are computed along with the one that is certain, as decode
//! rows of one text, and accepted as far as they are what is chosen there: weights are read once
//! for several tokens. No bit of a text depends on it, only how long it takes.
//!
//! Draft tokens come from the text itself (`lookup`) or from a smaller model (`draft`), as many as
//! are worth their time (`pace`).

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

/// Counts of draft and accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Draft tokens that were computed.
    pub tokens: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
}

impl Guessed {
    /// Adds other counts.
    pub fn add(&mut self, other: Guessed) {
        self.tokens += other.tokens;
        self.accepted += other.accepted;
    }
}

/// A step that draft tokens may be added to.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Tokens that it computes in any case: one for each text.
    pub texts: usize,
    /// Rows that it has already: those, and draft tokens of other texts.
    pub rows: usize,
    /// Maximum number of draft tokens.
    pub most: usize,
}

/// Drafts tokens for one text.
pub struct Guesser {
    lookup: Lookup,
    history: History,
    said: Odds<7>,
    drafter: Option<Drafter>,
    drafted: Odds<1>,
    /// Number of draft tokens in the last step, and whether the draft model proposed them.
    last: usize,
    is_drafted: bool,
    guessed: Guessed,
}

impl Guesser {
    /// Drafts from the text itself, and from a smaller model if there is one.
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

    /// Drafts tokens that may follow a text, all of which is given; none if none are worth their
    /// time.
    ///
    /// # Errors
    /// If the draft model's device fails.
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
        // a draft model could not read the embeddings of images
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
                // the prefill of a prompt is the price of having a draft model, whatever is drafted
                // then
                let guesses = drafter
                    .read(text)
                    .and_then(|()| drafter.guess(text, worth.n))
                    .map(|drafted| {
                        pace.thought(drafted.seconds);
                        drafted.tokens
                    });
                match guesses {
                    // other texts have the draft model's pages: this one goes on without drafts
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

    /// Adds the new tokens of the text to the index, counting how often lookup was right; returns
    /// the occurrence to draft from. Repetition inside a prompt says little about what an answer
    /// will repeat of it, so that nothing is learned from the tokens that are there at first.
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

    /// Stops drafting.
    pub fn stop(&mut self) {
        self.lookup = Lookup::Off;
        self.drafter = None;
    }

    /// Learns how many of the last draft tokens were accepted.
    pub fn learn(&mut self, accepted: usize) {
        let tokens = self.last;
        self.guessed.add(Guessed { tokens, accepted });
        if self.is_drafted {
            let looked_at = tokens.min(accepted + 1);
            (0..looked_at).for_each(|n| self.drafted.see(0, n < accepted));
        }
    }

    /// Returns the counts of draft and accepted tokens so far.
    pub fn guessed(&self) -> Guessed {
        self.guessed
    }
}

/// Returns the class of a match of this many tokens; each class has its own acceptance rate.
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
