//! The events of a response that is computed in the background: any number of streams read them,
//! from any event on, while they are written and after that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::sse::{Message, Writer};

/// Events of one response, in order: their index is their `sequence_number`.
pub(crate) struct EventLog {
    state: Mutex<State>,
    /// Signaled after each change.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    events: Vec<Arc<str>>,
    bytes: usize,
    has_ended: bool,
}

impl EventLog {
    pub(crate) fn new() -> EventLog {
        EventLog {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // every method leaves it consistent
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends events, unless the log has ended.
    pub(crate) fn push(&self, messages: &[Message]) {
        let mut state = self.lock();
        if state.has_ended {
            return;
        }
        for message in messages {
            let text = message.to_text();
            state.bytes += text.len();
            state.events.push(text.into());
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Ends all streams of it after its last event.
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.send_replace(());
    }

    /// Returns the size of all events so far.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Returns a stream of its events from the `n`-th on.
    pub(crate) fn from(self: &Arc<EventLog>, n: usize) -> impl Writer + use<> {
        Reader {
            changed: self.changed.subscribe(),
            log: Arc::clone(self),
            next: n,
        }
    }
}

struct Reader {
    log: Arc<EventLog>,
    changed: watch::Receiver<()>,
    next: usize,
}

impl Writer for Reader {
    async fn next(&mut self) -> Option<Vec<Message>> {
        loop {
            // before the look: a change after it is seen below
            self.changed.mark_unchanged();
            {
                let state = self.log.lock();
                let new = state.events.get(self.next..).unwrap_or_default();
                if !new.is_empty() {
                    self.next = state.events.len();
                    return Some(new.iter().cloned().map(Message::Text).collect());
                }
                if state.has_ended {
                    return None;
                }
            }
            // the sender lives as long as the log
            self.changed.changed().await.ok()?;
        }
    }
}
