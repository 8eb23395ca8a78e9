//! Metrics under llama-server's names, for its dashboards: sums over all models, without labels.

use std::sync::atomic::AtomicU64;

use octavo_engine::{Snapshot, Totals};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::{Labels, Level, Metrics, Real};

impl Metrics {
    /// Adds the metrics.
    pub(super) fn add_llama(
        &self,
        registry: &mut Registry,
        loaded: &[(Labels, Snapshot)],
        models: &[(Labels, Totals)],
    ) {
        let mut all = Totals::default();
        models.iter().for_each(|(_, totals)| all += *totals);
        let names = || models.iter().map(|(labels, _)| labels);
        let prefill = names().map(|labels| self.prefill_seconds.get_or_create(labels).get());
        let decode = names().map(|labels| self.decode_seconds.get_or_create(labels).get());
        let (prefill, decode): (f64, f64) = (prefill.sum(), decode.sum());
        let longest = names().map(|labels| self.longest.get_or_create(labels).get());
        let longest = longest.max().unwrap_or(0);
        let computed = all.prompt_tokens.saturating_sub(all.cached_tokens);
        let counts = [
            ("prompt_tokens", "Prompt tokens computed", computed),
            (
                "prompt_tokens_cached",
                "Prompt tokens taken from the cache",
                all.cached_tokens,
            ),
            ("tokens_predicted", "Tokens generated", all.generated_tokens),
            ("n_decode", "Steps taken", all.steps),
            (
                "spec_decode_num_draft_tokens",
                "Draft tokens of speculative decoding",
                all.draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens",
                "Draft tokens that were accepted",
                all.accepted_tokens,
            ),
        ];
        for (name, help, value) in counts {
            let counter: Counter = Counter::default();
            counter.inc_by(value);
            registry.register(format!("llamacpp:{name}"), help, counter);
        }
        let seconds = [
            ("prompt_seconds", "Time of prefills", prefill),
            ("tokens_predicted_seconds", "Time of generation", decode),
        ];
        for (name, help, value) in seconds {
            let counter: Counter<f64, AtomicU64> = Counter::default();
            counter.inc_by(value);
            registry.register(format!("llamacpp:{name}"), help, counter);
        }
        let rates = [
            (
                "prompt_tokens_seconds",
                "Prompt tokens computed per second of prefills",
                ratio(computed as f64, prefill),
            ),
            (
                "predicted_tokens_seconds",
                "Tokens generated per second of generation",
                ratio(all.generated_tokens as f64, decode),
            ),
            (
                "n_busy_slots_per_decode",
                "Tokens generated per step",
                ratio(all.generated_tokens as f64, all.steps as f64),
            ),
            (
                "n_tokens_max",
                "Most tokens of a text and its prompt",
                longest as f64,
            ),
        ];
        for gauge in rates {
            add_gauge(registry, gauge);
        }
        add_levels(registry, loaded);
    }
}

/// Adds the numbers of requests that run and wait.
fn add_levels(registry: &mut Registry, loaded: &[(Labels, Snapshot)]) {
    let levels = || loaded.iter().map(|(_, snapshot)| Level::of(snapshot));
    let running: usize = levels().map(|level| level.running).sum();
    let waiting: usize = levels().map(|level| level.waiting).sum();
    let gauges = [
        ("requests_processing", "Requests that run", running as f64),
        ("requests_deferred", "Requests that wait", waiting as f64),
    ];
    for gauge in gauges {
        add_gauge(registry, gauge);
    }
}

fn add_gauge(registry: &mut Registry, (name, help, value): (&str, &str, f64)) {
    let gauge = Real::default();
    gauge.set(value);
    registry.register(format!("llamacpp:{name}"), help, gauge);
}

/// Returns the quotient, 0 of nothing.
fn ratio(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => part / whole,
        false => 0.0,
    }
}
