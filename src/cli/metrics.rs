//! Metrics of a generation: one line for people, one object for programs.

use octavo_engine::{FinishReason, Timing};
use serde::Serialize;

use super::terminal;
use super::wording::size;

/// Counts, times in seconds, rates in tokens per second, memory in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Metrics {
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    discarded_tokens: usize,
    draft_tokens: usize,
    /// The former name of `draft_tokens`, for one version.
    guessed_tokens: usize,
    accepted_tokens: usize,
    prompt_seconds: f64,
    generation_seconds: f64,
    prompt_tokens_per_second: Option<f64>,
    generation_tokens_per_second: Option<f64>,
    time_to_first_token: Option<f64>,
    time_per_output_token: Option<f64>,
    peak_memory_bytes: Option<u64>,
    /// Seed of the sampler; `None` if greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    backend: String,
}

impl Metrics {
    pub(super) fn new(timing: &Timing, seed: Option<u64>, backend: &str) -> Metrics {
        Metrics {
            prompt_tokens: timing.prompt_tokens,
            cached_tokens: timing.cached,
            generated_tokens: timing.generated_tokens,
            discarded_tokens: timing.discarded,
            draft_tokens: timing.drafts.drafted,
            guessed_tokens: timing.drafts.drafted,
            accepted_tokens: timing.drafts.accepted,
            prompt_seconds: timing.prompt.as_secs_f64(),
            generation_seconds: timing.generation.as_secs_f64(),
            prompt_tokens_per_second: timing.prompt_rate(),
            generation_tokens_per_second: timing.generation_rate(),
            time_to_first_token: timing.first_token.map(|t| t.as_secs_f64()),
            time_per_output_token: timing.per_token().map(|t| t.as_secs_f64()),
            peak_memory_bytes: peak_memory(),
            seed,
            backend: backend.to_owned(),
        }
    }

    /// Formats the last line of a generation.
    pub(super) fn line(&self, finish: FinishReason) -> String {
        let rate = |r: Option<f64>| r.map_or("-".to_owned(), |r| format!("{r:.1}"));
        let ms = |t: Option<f64>| t.map_or("-".to_owned(), |t| format!("{:.1} ms", t * 1e3));
        let cached = match self.cached_tokens {
            0 => String::new(),
            n => format!(" ({n} cached)"),
        };
        let drafts = match self.draft_tokens {
            0 => String::new(),
            n => format!(" (drafts {}/{n} accepted)", self.accepted_tokens),
        };
        format!(
            "prompt {} tokens{cached}, {} tokens/s | generated {} tokens{drafts}, {} tokens/s | \
             TTFT {} | TPOT {} | memory {} | {}",
            self.prompt_tokens,
            rate(self.prompt_tokens_per_second),
            self.generated_tokens,
            rate(self.generation_tokens_per_second),
            ms(self.time_to_first_token),
            ms(self.time_per_output_token),
            self.peak_memory_bytes
                .map_or("unknown".to_owned(), |b| size(b) + " peak"),
            match finish {
                FinishReason::ContextFull => "context full",
                other => other.name(),
            },
        )
    }
}

/// Reports that a generation ended because the context is full, and what can be done: the text does
/// not show it.
pub(super) fn note_full(finish: FinishReason, used: usize, n_ctx: usize, more: &str) {
    if finish == FinishReason::ContextFull {
        terminal::note(&format!(
            "octavo: context full: {used} of {n_ctx} positions used; {more}"
        ));
    }
}

/// Reports how many tokens context shifts have dropped: the text does not show it.
pub(super) fn note_discarded(timing: &Timing) {
    if timing.discarded > 0 {
        terminal::note(&format!(
            "octavo: context full: {} earlier tokens were dropped",
            timing.discarded
        ));
    }
}

/// Returns the peak resident memory of this process, if the system tells it (Linux: `VmHWM`).
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_engine::DraftStats;
    use std::time::Duration;

    #[test]
    fn the_closing_line_has_all_figures() {
        let timing = Timing {
            prompt_tokens: 12,
            cached: 2,
            generated_tokens: 5,
            prompt: Duration::from_millis(100),
            first_token: Some(Duration::from_millis(101)),
            generation: Duration::from_millis(400),
            drafts: DraftStats {
                drafted: 7,
                accepted: 3,
            },
            ..Timing::default()
        };
        let line = Metrics {
            peak_memory_bytes: Some(1 << 20),
            ..Metrics::new(&timing, None, "cpu")
        }
        .line(FinishReason::Stop);
        assert_eq!(
            line,
            "prompt 12 tokens (2 cached), 100.0 tokens/s | generated 5 tokens (drafts 3/7 \
             accepted), 10.0 tokens/s | TTFT 101.0 ms | TPOT 100.0 ms | memory 1.0 MiB peak | stop"
        );
        let none = Metrics {
            peak_memory_bytes: None,
            ..Metrics::new(&Timing::default(), None, "cpu")
        };
        let line = none.line(FinishReason::Cancelled);
        assert!(
            line.ends_with("TTFT - | TPOT - | memory unknown | cancelled"),
            "{line}"
        );
    }
}
