//! `/metrics`: under our own names, and also under vLLM's, for routers and autoscalers that read
//! those.

use std::sync::atomic::AtomicU64;

use octavo_engine::FinishReason;
use octavo_engine::PAGE_POSITIONS as PAGE;
use octavo_engine::{Event, Snapshot, Timing};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Metric name prefixes: ours, and vLLM's.
const OURS: &str = "octavo_";
const VLLM: &str = "vllm:";

type Labels = Vec<(String, String)>;
type Real = Gauge<f64, AtomicU64>;

/// Histogram buckets for the time to the first token, in seconds: vLLM's.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// As [`FIRST_TOKEN`], for the time between two tokens.
const BETWEEN: [f64; 18] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0,
];

/// As [`FIRST_TOKEN`], for whole requests and their phases.
const WHOLE: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Metrics recorded at the end of each text.
pub(crate) struct Recorder {
    labels: Labels,
    /// Prefixes of the metrics that vLLM has too.
    prefixes: &'static [&'static str],
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
    pub(crate) fn new(model: &str, vllm_names: bool) -> Recorder {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Recorder {
            labels: vec![label("model_name", model), label("engine", "0")],
            prefixes: match vllm_names {
                true => &[OURS, VLLM],
                false => &[OURS],
            },
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

    /// Records an event of a request.
    pub(crate) fn note(&self, event: &Event) {
        match event {
            Event::Finished { text, timing, .. } => {
                self.note_timing(timing);
                self.note_end(text.finish);
            }
            Event::Beams { texts, timing } => {
                self.note_timing(timing);
                texts
                    .iter()
                    .for_each(|found| self.note_end(found.text.finish));
            }
            _ => {}
        }
    }

    fn note_end(&self, finish: FinishReason) {
        let reason = match finish {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "abort",
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

    /// Encodes all metrics as text.
    pub(crate) fn encode(&self, snapshot: &Snapshot) -> Result<String, std::fmt::Error> {
        let labels = self.labels.iter();
        let labels = labels.map(|(name, value)| (name.clone().into(), value.clone().into()));
        let mut registry = Registry::with_labels(labels);
        let level = Level::of(snapshot);
        for prefix in self.prefixes {
            level.register(&mut registry, prefix);
            counters(&mut registry, prefix, snapshot);
            self.register(&mut registry, prefix);
        }
        if self.prefixes.contains(&VLLM) {
            vllm_alone(&mut registry, snapshot, &level);
        }
        our_gauges(&mut registry, snapshot, &level);
        our_counters(&mut registry, snapshot);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn register(&self, registry: &mut Registry, prefix: &str) {
        let all = [
            ("time_to_first_token_seconds", &self.first_token),
            ("inter_token_latency_seconds", &self.per_token),
            ("request_queue_time_seconds", &self.queue),
            ("request_prefill_time_seconds", &self.prefill),
            ("request_decode_time_seconds", &self.decode),
            ("request_inference_time_seconds", &self.inference),
            ("e2e_request_latency_seconds", &self.total),
        ];
        // vLLM has had three names for it
        let older = [
            ("time_per_output_token_seconds", &self.per_token),
            ("request_time_per_output_token_seconds", &self.per_token),
        ];
        let older = older.into_iter().filter(|_| prefix == VLLM);
        for (name, histogram) in all.into_iter().chain(older) {
            registry.register(format!("{prefix}{name}"), "Seconds", histogram.clone());
        }
        let ended = "Texts that ended, by reason";
        let name = format!("{prefix}request_success");
        registry.register(name, ended, self.ended.clone());
    }
}

/// Current load.
struct Level {
    running: usize,
    waiting: usize,
    /// KV cache pages, and the fraction that requests hold.
    pages: usize,
    usage: f64,
}

impl Level {
    fn of(snapshot: &Snapshot) -> Level {
        let in_state = |state: &str| {
            let requests = snapshot.requests.iter();
            requests.filter(|request| request.state == state).count()
        };
        let pages = snapshot.pages.free + snapshot.pages.cached + snapshot.pages.used;
        Level {
            running: in_state("running"),
            waiting: in_state("waiting") + in_state("preempted"),
            pages,
            usage: snapshot.pages.used as f64 / pages.max(1) as f64,
        }
    }

    /// Registers metrics that have other names in vLLM.
    fn register(&self, registry: &mut Registry, prefix: &str) {
        let names = match prefix {
            VLLM => [
                "num_requests_running",
                "num_requests_waiting",
                "kv_cache_usage_perc",
            ],
            _ => [
                "requests_running",
                "requests_waiting",
                "kv_cache_usage_ratio",
            ],
        };
        let values = [self.running as f64, self.waiting as f64, self.usage];
        let helps = [
            "Requests that run",
            "Requests that wait",
            "Part of the cache that requests hold, from 0 to 1",
        ];
        for ((name, value), help) in names.into_iter().zip(values).zip(helps) {
            add_gauge(registry, &format!("{prefix}{name}"), help, value);
        }
    }
}

fn add_gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Real::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

/// Adds a counter; `_total` is appended to the name.
fn add_counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter: Counter = Counter::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

/// Adds metrics that only routers read: older names of vLLM's, and the cache size.
fn vllm_alone(registry: &mut Registry, snapshot: &Snapshot, level: &Level) {
    let (asked, found) = (snapshot.totals.prompt_tokens, snapshot.totals.cached_tokens);
    let rate = found as f64 / asked.max(1) as f64;
    let usage = "Part of the cache that requests hold, from 0 to 1";
    add_gauge(registry, "vllm:gpu_cache_usage_perc", usage, level.usage);
    let hits = "Part of the tokens looked up that were found";
    add_gauge(registry, "vllm:gpu_prefix_cache_hit_rate", hits, rate);
    for (name, help, value) in [
        ("queries", "Tokens looked up in the cache", asked),
        ("hits", "Tokens found in the cache", found),
    ] {
        let name = format!("vllm:gpu_prefix_cache_{name}");
        add_counter(registry, &name, help, value);
    }
    // a gauge as in vLLM: Prometheus's older format has no "info" type
    let config: Family<Labels, Gauge> = Family::default();
    let labels = vec![
        ("block_size".to_owned(), PAGE.to_string()),
        ("num_gpu_blocks".to_owned(), level.pages.to_string()),
    ];
    config.get_or_create(&labels).set(1);
    let help = "Positions of a page of the cache, and pages";
    registry.register("vllm:cache_config_info", help, config);
}

fn our_gauges(registry: &mut Registry, snapshot: &Snapshot, level: &Level) {
    let pages = snapshot.pages;
    for (name, help, value) in [
        ("total", "Pages of the cache", level.pages),
        ("free", "Pages without an owner", pages.free),
        ("cached", "Pages kept for later prompts", pages.cached),
    ] {
        let name = format!("octavo_kv_pages_{name}");
        add_gauge(registry, &name, help, value as f64);
    }
}

/// Adds counters that have the same names in vLLM.
fn counters(registry: &mut Registry, prefix: &str, snapshot: &Snapshot) {
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
    for (name, help, value) in all {
        add_counter(registry, &format!("{prefix}{name}"), help, value);
    }
}

fn our_counters(registry: &mut Registry, snapshot: &Snapshot) {
    let totals = snapshot.totals;
    let own: [(&str, &str, u64); 7] = [
        (
            "octavo_recomputed_tokens",
            "Tokens computed more than once",
            totals.recomputed_tokens,
        ),
        (
            "octavo_draft_tokens",
            "Draft tokens of speculative decoding",
            totals.draft_tokens,
        ),
        (
            "octavo_guessed_tokens",
            "The former name of octavo_draft_tokens, for one version",
            totals.draft_tokens,
        ),
        (
            "octavo_accepted_tokens",
            "Draft tokens that were accepted",
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
        add_counter(registry, name, help, value);
    }
    let busy: Counter<f64, AtomicU64> = Counter::default();
    busy.inc_by(totals.busy.as_secs_f64());
    registry.register("octavo_step_seconds", "Time spent in steps", busy);
}
