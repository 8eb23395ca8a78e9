//! Event queue between the batch's thread and the caller of a request.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::lock;
use crate::batch::Event;

/// Time after which an unread event means that the caller has gone.
const UNREAD: Duration = Duration::from_secs(30);

/// Event queue of one request.
pub(super) struct EventQueue {
    pub(super) state: Mutex<QueueState>,
    pub(super) arrival: Condvar,
}

pub(super) struct QueueState {
    events: VecDeque<Event>,
    pub(super) waker: Option<Waker>,
    pub(super) has_ended: bool,
    /// Events may stay unread for any time.
    pub(super) is_patient: bool,
    /// Since when events have been waiting without any being taken, if there are some.
    unread: Instant,
}

impl QueueState {
    /// Takes the first event.
    pub(super) fn take(&mut self) -> Option<Event> {
        self.unread = Instant::now();
        self.events.pop_front()
    }
}

impl EventQueue {
    pub(super) fn new() -> EventQueue {
        EventQueue {
            state: Mutex::new(QueueState {
                events: VecDeque::new(),
                waker: None,
                has_ended: false,
                is_patient: false,
                unread: Instant::now(),
            }),
            arrival: Condvar::new(),
        }
    }

    /// Adds an event. Text that has not been taken yet grows instead, so that the length of the
    /// queue is bounded by what the request may generate.
    pub(super) fn put(&self, event: Event, is_last: bool) {
        let mut state = lock(&self.state);
        // time spent waiting for this event does not count as leaving it unread
        if state.events.is_empty() {
            state.unread = Instant::now();
        }
        match (state.events.back_mut(), event) {
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
            (_, event) => state.events.push_back(event),
        }
        state.has_ended |= is_last;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        self.arrival.notify_one();
    }

    /// Returns whether events have been unread for too long.
    pub(super) fn is_abandoned(&self) -> bool {
        let state = lock(&self.state);
        !state.is_patient && !state.events.is_empty() && state.unread.elapsed() > UNREAD
    }
}
