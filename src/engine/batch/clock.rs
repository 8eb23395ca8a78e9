//! Times of a text.

use std::time::Instant;

use super::request::Timing;

/// Times of what has happened to a text so far.
pub(super) struct Clock {
    added: Instant,
    begun: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Clock {
    /// Starts with the arrival of a request.
    pub(super) fn new() -> Clock {
        Clock {
            added: Instant::now(),
            begun: None,
            first: None,
            last: None,
        }
    }

    /// Returns the clock of another text of the request, which has no tokens yet.
    pub(super) fn of_sibling(&self) -> Clock {
        Clock {
            first: None,
            last: None,
            ..*self
        }
    }

    /// Records the start of the prefill; returns whether this is the first call.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        let is_first = self.begun.is_none();
        self.begun.get_or_insert(now);
        is_first
    }

    /// Records the time of a token.
    pub(super) fn tick(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Returns the times so far, without counts.
    pub(super) fn times(&self) -> Timing {
        let now = Instant::now();
        let begun = self.begun.unwrap_or(now);
        Timing {
            queued: begun - self.added,
            prompt: self.first.unwrap_or(now).saturating_duration_since(begun),
            first_token: self.first.map(|first| first - self.added),
            generation: self
                .first
                .zip(self.last)
                .map(|(first, last)| last - first)
                .unwrap_or_default(),
            total: now - self.added,
            ..Timing::default()
        }
    }
}
