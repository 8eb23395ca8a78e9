//! `/metrics`: vLLM's names, and the same and more under our own.

use std::sync::atomic::AtomicU64;

use octavo_engine::sequence::Finish;
use octavo_engine::{Event, Snapshot, Timing};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(String, String)>;
type Real = Gauge<f64, AtomicU64>;

/// Upper ends of the histograms' steps, in seconds: vLLM's for the first token.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// As above, for the time between two tokens.
const BETWEEN: [f64; 18] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0,
];

/// As above, for whole requests and their parts.
const WHOLE: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// What is measured at the end of each text.
pub(crate) struct Recorder {
    labels: Labels,
    first_token: Histogram,
    per_token: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    total: Histogram,
    ended: Family<Labels, Counter>,
}

impl Recorder {
    pub(crate) fn new(model: &str) -> Recorder {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Recorder {
            labels: vec![label("model_name", model), label("engine", "0")],
            first_token: Histogram::new(FIRST_TOKEN),
            per_token: Histogram::new(BETWEEN),
            queue: Histogram::new(WHOLE),
            prefill: Histogram::new(WHOLE),
            decode: Histogram::new(WHOLE),
            inference: Histogram::new(WHOLE),
            total: Histogram::new(WHOLE),
            ended: Family::default(),
        }
    }

    /// Takes notice of what happened to a request.
    pub(crate) fn note(&self, event: &Event) {
        match event {
            Event::Finished { text, timing, .. } => {
                self.note_timing(timing);
                self.note_end(text.finish);
            }
            Event::Found { texts, timing } => {
                self.note_timing(timing);
                texts
                    .iter()
                    .for_each(|found| self.note_end(found.text.finish));
            }
            _ => {}
        }
    }

    fn note_end(&self, finish: Finish) {
        let reason = match finish {
            Finish::Stop => "stop",
            Finish::Length | Finish::ContextFull => "length",
            Finish::Cancelled => "abort",
        };
        let labels = vec![("finished_reason".to_owned(), reason.to_owned())];
        self.ended.get_or_create(&labels).inc();
    }

    fn note_timing(&self, timing: &Timing) {
        let seconds = |time: std::time::Duration| time.as_secs_f64();
        if let Some(first) = timing.first_token {
            self.first_token.observe(seconds(first));
        }
        if let Some(each) = timing.per_token() {
            self.per_token.observe(seconds(each));
        }
        self.queue.observe(seconds(timing.queued));
        self.prefill.observe(seconds(timing.prompt));
        self.decode.observe(seconds(timing.generation));
        self.inference
            .observe(seconds(timing.prompt + timing.generation));
        self.total.observe(seconds(timing.total));
    }

    /// All of it as text.
    pub(crate) fn encode(&self, snapshot: &Snapshot) -> Result<String, std::fmt::Error> {
        let labels = self.labels.iter();
        let labels = labels.map(|(name, value)| (name.clone().into(), value.clone().into()));
        let mut registry = Registry::with_labels(labels);
        gauges(&mut registry, snapshot);
        counters(&mut registry, snapshot);
        self.histograms(&mut registry);
        let ended = "Texts that ended, by reason";
        registry.register("vllm:request_success", ended, self.ended.clone());
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn histograms(&self, registry: &mut Registry) {
        let all = [
            ("time_to_first_token_seconds", &self.first_token),
            ("inter_token_latency_seconds", &self.per_token),
            ("time_per_output_token_seconds", &self.per_token),
            ("request_time_per_output_token_seconds", &self.per_token),
            ("request_queue_time_seconds", &self.queue),
            ("request_prefill_time_seconds", &self.prefill),
            ("request_decode_time_seconds", &self.decode),
            ("request_inference_time_seconds", &self.inference),
            ("e2e_request_latency_seconds", &self.total),
        ];
        for (name, histogram) in all {
            registry.register(format!("vllm:{name}"), "Seconds", histogram.clone());
        }
    }
}

/// What is the case now.
fn gauges(registry: &mut Registry, snapshot: &Snapshot) {
    let pages = snapshot.pages;
    let total = pages.free + pages.cached + pages.used;
    let in_state = |state: &str| {
        let requests = snapshot.requests.iter();
        requests.filter(|request| request.state == state).count()
    };
    let running = in_state("running");
    let waiting = in_state("waiting") + in_state("preempted");
    let used = pages.used as f64 / total.max(1) as f64;
    let all: [(&str, &str, f64); 8] = [
        (
            "vllm:num_requests_running",
            "Requests that run",
            running as f64,
        ),
        (
            "vllm:num_requests_waiting",
            "Requests that wait",
            waiting as f64,
        ),
        ("vllm:kv_cache_usage_perc", "Part of the cache in use", used),
        (
            "octavo_requests_running",
            "Requests that run",
            running as f64,
        ),
        (
            "octavo_requests_waiting",
            "Requests that wait",
            waiting as f64,
        ),
        ("octavo_kv_pages_total", "Pages of the cache", total as f64),
        (
            "octavo_kv_pages_free",
            "Pages without an owner",
            pages.free as f64,
        ),
        (
            "octavo_kv_pages_cached",
            "Pages kept for later prompts",
            pages.cached as f64,
        ),
    ];
    for (name, help, value) in all {
        let gauge = Real::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
}

/// What has been done so far; `_total` is appended to the names.
fn counters(registry: &mut Registry, snapshot: &Snapshot) {
    let totals = snapshot.totals;
    let all: [(&str, &str, u64); 6] = [
        ("prompt_tokens", "Tokens of prompts", totals.prompt_tokens),
        (
            "generation_tokens",
            "Tokens generated",
            totals.generated_tokens,
        ),
        (
            "num_preemptions",
            "Requests that gave their pages back",
            totals.preemptions,
        ),
        (
            "prefix_cache_queries",
            "Tokens looked up in the cache",
            totals.prompt_tokens,
        ),
        (
            "prefix_cache_hits",
            "Tokens found in the cache",
            totals.cached_tokens,
        ),
        (
            "requests_aborted",
            "Requests that were aborted",
            totals.aborted,
        ),
    ];
    let count = |value: u64| {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        counter
    };
    for (name, help, value) in all {
        for prefix in ["vllm:", "octavo_"] {
            registry.register(format!("{prefix}{name}"), help, count(value));
        }
    }
    let own: [(&str, &str, u64); 6] = [
        (
            "octavo_recomputed_tokens",
            "Tokens computed more than once",
            totals.recomputed_tokens,
        ),
        (
            "octavo_guessed_tokens",
            "Tokens computed before it was certain that they are chosen",
            totals.guessed_tokens,
        ),
        (
            "octavo_accepted_tokens",
            "Guessed tokens that were chosen",
            totals.accepted_tokens,
        ),
        (
            "octavo_evicted_pages",
            "Cached pages given up",
            totals.evictions,
        ),
        ("octavo_steps", "Steps taken", totals.steps),
        (
            "octavo_requests_failed",
            "Requests that failed",
            totals.failed,
        ),
    ];
    for (name, help, value) in own {
        registry.register(name, help, count(value));
    }
    let busy: Counter<f64, AtomicU64> = Counter::default();
    busy.inc_by(totals.busy.as_secs_f64());
    registry.register("octavo_step_seconds", "Time spent in steps", busy);
}
