//! `/models/sse`: tells of changes of the models' states, in llama-server's words.

use std::pin::pin;
use std::sync::Arc;

use serde_json::json;

use super::{Phase, Registry};
use crate::sse::{Message, Writer};

/// A model's state, as clients see it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    value: &'static str,
    has_failed: bool,
}

/// Stream of changes since its creation. Of changes that follow each other at once, it may tell the
/// last one only.
pub(crate) struct Changes {
    registry: Arc<Registry>,
    seen: Vec<Seen>,
}

impl Changes {
    pub(crate) fn of(registry: &Arc<Registry>) -> Changes {
        Changes {
            seen: seen(registry),
            registry: Arc::clone(registry),
        }
    }
}

fn seen(registry: &Registry) -> Vec<Seen> {
    let state = registry.lock();
    let slots = state.slots.iter().map(|slot| Seen {
        value: slot.phase.name(),
        has_failed: matches!(slot.phase, Phase::Unloaded) && slot.error.is_some(),
    });
    slots.collect()
}

impl Writer for Changes {
    async fn next(&mut self) -> Option<Vec<Message>> {
        let registry = Arc::clone(&self.registry);
        loop {
            let mut changed = pin!(registry.changed.notified());
            changed.as_mut().enable();
            let now = seen(&registry);
            let all = registry.entries.iter().zip(self.seen.iter().zip(&now));
            let messages: Vec<Message> = all
                .filter(|(_, (before, now))| before != now)
                .map(|(entry, (_, now))| {
                    let mut data = json!({ "status": now.value });
                    if now.has_failed {
                        data["failed"] = json!(true);
                    }
                    Message::Data(json!({
                        "model": entry.name(),
                        "event": "model_status",
                        "data": data,
                    }))
                })
                .collect();
            self.seen = now;
            if !messages.is_empty() {
                return Some(messages);
            }
            if registry.is_closing() {
                return None;
            }
            changed.await;
        }
    }
}
