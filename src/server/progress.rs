//! How much of a prompt is computed, for clients that show it.

use std::time::{Duration, Instant};

use octavo_engine::{Event, Timing};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::wire;

/// Progress of one prompt, reported as llama-server's `prompt_progress`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Whether the client wants reports, and with timings.
    is_wanted: bool,
    has_timings: bool,
    total: usize,
    cached: usize,
    processed: usize,
    start: Option<Instant>,
    time: Duration,
}

impl Progress {
    /// Reads from a request whether its client wants reports, and whether with timings.
    pub(crate) fn wanted(fields: &Fields<'_>) -> Result<Progress, ApiError> {
        Ok(Progress {
            is_wanted: fields.bool("return_progress")?.unwrap_or(false),
            has_timings: fields.bool("timings_per_token")?.unwrap_or(false),
            ..Progress::default()
        })
    }

    /// Takes an event of the prompt's request; returns whether the client wants a report of it.
    pub(crate) fn note(&mut self, event: &Event) -> bool {
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
            _ => return false,
        }
        self.is_wanted
    }

    /// Adds the report to a piece of a stream, and llama-server's `timings` of the prompt so far if
    /// the client wants them.
    pub(crate) fn reported_in(&self, mut piece: Value) -> Value {
        piece["prompt_progress"] = json!({
            "total": self.total,
            "cache": self.cached,
            "processed": self.processed,
            "time_ms": u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX),
        });
        if self.has_timings {
            piece["timings"] = wire::timings(&Timing {
                prompt_tokens: self.processed,
                cached: self.cached,
                prompt: self.time,
                ..Timing::default()
            });
        }
        piece
    }
}
