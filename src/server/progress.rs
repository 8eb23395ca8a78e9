//! How much of a prompt is computed, for clients that show it.

use std::time::{Duration, Instant};

use octavo_engine::{Event, Timing};
use serde_json::{Value, json};

use crate::wire;

/// Progress of one prompt, reported as llama-server's `prompt_progress`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    total: usize,
    cached: usize,
    processed: usize,
    start: Option<Instant>,
    time: Duration,
}

impl Progress {
    /// Takes an event of the prompt's request; returns a report if it is one of its progress.
    pub(crate) fn note(&mut self, event: &Event) -> Option<Value> {
        match *event {
            Event::Started { prompt, cached } => {
                self.total = prompt;
                self.cached = cached;
                self.processed = cached;
                self.start = Some(Instant::now());
                self.time = Duration::ZERO;
            }
            Event::Read { done } => {
                self.processed = done.min(self.total);
                self.time = self.start.map_or(self.time, |start| start.elapsed());
            }
            _ => return None,
        }
        Some(json!({
            "total": self.total,
            "cache": self.cached,
            "processed": self.processed,
            "time_ms": u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX),
        }))
    }

    /// Returns llama-server's `timings` of the prompt so far.
    pub(crate) fn timings(&self) -> Value {
        wire::timings(&Timing {
            prompt_tokens: self.processed,
            cached: self.cached,
            prompt: self.time,
            ..Timing::default()
        })
    }
}
