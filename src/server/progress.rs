//! How much of a prompt is computed, for clients that show it.

use std::time::Instant;

use octavo_engine::Event;
use serde_json::{Value, json};

/// Progress of one prompt, reported as llama-server's `prompt_progress`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    total: usize,
    cached: usize,
    start: Option<Instant>,
}

impl Progress {
    /// Takes an event of the prompt's request; returns a report if it is one of its progress.
    pub(crate) fn note(&mut self, event: &Event) -> Option<Value> {
        let processed = match *event {
            Event::Started { prompt, cached } => {
                self.total = prompt;
                self.cached = cached;
                self.start = Some(Instant::now());
                cached
            }
            Event::Read { done } => done,
            _ => return None,
        };
        let time = self.start.map_or(0, |start| start.elapsed().as_millis());
        Some(json!({
            "total": self.total,
            "cache": self.cached,
            "processed": processed.min(self.total),
            "time_ms": u64::try_from(time).unwrap_or(u64::MAX),
        }))
    }
}
