//! Events on their way to who asked for them.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::lock;
use crate::batch::Event;

/// Events that nobody has taken for so long mean that nobody will.
const UNREAD: Duration = Duration::from_secs(30);

/// Where a request's events lie until they are taken.
pub(super) struct Mailbox {
    pub(super) letters: Mutex<Letters>,
    pub(super) arrival: Condvar,
}

pub(super) struct Letters {
    events: VecDeque<Event>,
    pub(super) waker: Option<Waker>,
    pub(super) has_ended: bool,
    /// Since when something has been lying here that nobody took, if anything is.
    unread: Instant,
}

impl Letters {
    /// The first of what lies here.
    pub(super) fn take(&mut self) -> Option<Event> {
        self.unread = Instant::now();
        self.events.pop_front()
    }
}

impl Mailbox {
    pub(super) fn new() -> Mailbox {
        Mailbox {
            letters: Mutex::new(Letters {
                events: VecDeque::new(),
                waker: None,
                has_ended: false,
                unread: Instant::now(),
            }),
            arrival: Condvar::new(),
        }
    }

    /// Adds an event. Text that nobody has taken yet grows instead, so that what lies here is
    /// bounded by what the request may say.
    pub(super) fn put(&self, event: Event, is_last: bool) {
        let mut letters = lock(&self.letters);
        // who has waited long for this event has not left it lying here for long
        if letters.events.is_empty() {
            letters.unread = Instant::now();
        }
        match (letters.events.back_mut(), event) {
            (
                Some(Event::Delta {
                    choice: before,
                    delta,
                    timing: time,
                }),
                Event::Delta {
                    choice,
                    delta: more,
                    timing,
                },
            ) if *before == choice => {
                delta.append(more);
                *time = timing;
            }
            (Some(Event::Read { done }), Event::Read { done: more }) => *done = more,
            (_, event) => letters.events.push_back(event),
        }
        letters.has_ended |= is_last;
        if let Some(waker) = letters.waker.take() {
            waker.wake();
        }
        self.arrival.notify_one();
    }

    /// Whether something has been lying here for too long.
    pub(super) fn is_abandoned(&self) -> bool {
        let letters = lock(&self.letters);
        !letters.events.is_empty() && letters.unread.elapsed() > UNREAD
    }
}
