//! `/models/sse`: tells of changes of the models' states, and of downloads, in llama-server's
//! words.

use std::pin::pin;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Registry;
use crate::sse::{Message, Writer};

/// A model's state, as clients see it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    i: usize,
    value: &'static str,
    has_failed: bool,
}

/// Stream of changes since its creation. Of changes that follow each other at once, it may tell the
/// last one only.
pub(crate) struct Changes {
    registry: Arc<Registry>,
    seen: Vec<Seen>,
    events: Receiver<Value>,
}

impl Changes {
    pub(crate) fn of(registry: &Arc<Registry>) -> Changes {
        Changes {
            seen: seen(registry),
            events: registry.transfers.events(),
            registry: Arc::clone(registry),
        }
    }

    /// Returns the changes since the last call.
    fn changes(&mut self) -> Vec<Message> {
        let now = seen(&self.registry);
        let before = std::mem::replace(&mut self.seen, now);
        let changed = self.seen.iter().filter(|now| {
            let before = before.iter().find(|before| before.i == now.i);
            before.is_some_and(|before| before != *now)
        });
        let message = |now: &Seen| {
            let mut data = json!({ "status": now.value });
            if now.has_failed {
                data["failed"] = json!(true);
            }
            Message::Data(json!({
                "model": self.registry.entry(now.i).name(),
                "event": "model_status",
                "data": data,
            }))
        };
        changed.map(message).collect()
    }
}

fn seen(registry: &Registry) -> Vec<Seen> {
    let states = registry.status(|_| ());
    let seen = states.iter().map(|state| Seen {
        i: state.i,
        value: state.value,
        has_failed: state.has_failed,
    });
    seen.collect()
}

impl Writer for Changes {
    async fn next(&mut self) -> Option<Vec<Message>> {
        let registry = Arc::clone(&self.registry);
        loop {
            let mut changed = pin!(registry.changed.notified());
            changed.as_mut().enable();
            let messages = self.changes();
            if !messages.is_empty() {
                return Some(messages);
            }
            if registry.is_closing() {
                return None;
            }
            tokio::select! {
                () = changed => {}
                event = self.events.recv() => match event {
                    Ok(event) => return Some(vec![Message::Data(event)]),
                    // the next ones are newer
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }
}
