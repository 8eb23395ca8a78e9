//! `/metrics`: under our own names; sums under llama-server's, for its dashboards; and also under
//! vLLM's, for routers and autoscalers that read those.

mod counters;
mod disk;
mod llama;
mod text_format;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use octavo_engine::FinishReason;
use octavo_engine::PAGE_POSITIONS as PAGE;
use octavo_engine::{Event, Snapshot, Timing, Totals};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::registry::{Registry as ModelRegistry, Status};
pub(crate) use text_format::in_text_format;

/// Metric name prefixes: ours, and vLLM's.
const OURS: &str = "octavo_";
const VLLM: &str = "vllm:";

type Labels = Vec<(String, String)>;
type Real = Gauge<f64, AtomicU64>;
type Pages = fn(&Snapshot) -> usize;

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

type Seconds = Family<Labels, Counter<f64, AtomicU64>>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Metrics of all models, which a model keeps when it is unloaded and loaded again.
pub(crate) struct Metrics {
    /// Prefixes of the metrics that vLLM has too.
    prefixes: &'static [&'static str],
    first_token: Histograms,
    per_token: Histograms,
    queue: Histograms,
    prefill: Histograms,
    decode: Histograms,
    inference: Histograms,
    total: Histograms,
    ended: Family<Labels, Counter>,
    /// Seconds of prefills and of generation, and tokens of the longest text with its prompt.
    prefill_seconds: Seconds,
    decode_seconds: Seconds,
    longest: Family<Labels, Gauge>,
}

/// Metrics of one model, recorded at the end of each text.
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
    prefill_seconds: Counter<f64, AtomicU64>,
    decode_seconds: Counter<f64, AtomicU64>,
    longest: Gauge,
}

/// Returns the labels of a model's metrics.
fn labels(model: &str) -> Labels {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![label("model_name", model), label("engine", "0")]
}

impl Recorder {
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
        let mut labels = self.labels.clone();
        labels.push(("finished_reason".to_owned(), reason.to_owned()));
        self.ended.get_or_create(&labels).inc();
    }

    fn note_timing(&self, timing: &Timing) {
        let seconds = |time: Duration| time.as_secs_f64();
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
        self.prefill_seconds.inc_by(seconds(timing.prompt));
        self.decode_seconds.inc_by(seconds(timing.generation));
        let tokens = timing.prompt_tokens + timing.generated_tokens;
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.longest.set(self.longest.get().max(tokens));
    }
}

impl Metrics {
    pub(crate) fn new(vllm_names: bool) -> Metrics {
        let whole =
            || Family::new_with_constructor((|| Histogram::new(WHOLE)) as fn() -> Histogram);
        Metrics {
            prefixes: match vllm_names {
                true => &[OURS, VLLM],
                false => &[OURS],
            },
            first_token: Family::new_with_constructor(|| Histogram::new(FIRST_TOKEN)),
            per_token: Family::new_with_constructor(|| Histogram::new(BETWEEN)),
            queue: whole(),
            prefill: whole(),
            decode: whole(),
            inference: whole(),
            total: whole(),
            ended: Family::default(),
            prefill_seconds: Family::default(),
            decode_seconds: Family::default(),
            longest: Family::default(),
        }
    }

    /// Returns the metrics of a model.
    pub(crate) fn of(&self, model: &str) -> Recorder {
        let labels = labels(model);
        let own = |all: &Histograms| all.get_or_create(&labels).clone();
        Recorder {
            first_token: own(&self.first_token),
            per_token: own(&self.per_token),
            queue: own(&self.queue),
            prefill: own(&self.prefill),
            decode: own(&self.decode),
            inference: own(&self.inference),
            total: own(&self.total),
            ended: self.ended.clone(),
            prefill_seconds: self.prefill_seconds.get_or_create(&labels).clone(),
            decode_seconds: self.decode_seconds.get_or_create(&labels).clone(),
            longest: self.longest.get_or_create(&labels).clone(),
            labels,
        }
    }

    /// Encodes all metrics as text.
    pub(crate) fn encode(&self, models: &ModelRegistry) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        let states = models.status(|model| model.handle.snapshot());
        let states = states.into_iter();
        let all: Vec<(Labels, Status<Snapshot>)> = states
            .map(|state| (labels(state.entry.name()), state))
            .collect();
        let loaded: Vec<(Labels, Snapshot)> = all
            .iter()
            .filter_map(|(labels, state)| Some((labels.clone(), state.loaded.clone()?)))
            .collect();
        let totals = totals(&all);
        for prefix in self.prefixes {
            levels(&mut registry, prefix, &loaded);
            counters::add(&mut registry, prefix, &totals);
            self.register(&mut registry, prefix);
        }
        if self.prefixes.contains(&VLLM) {
            vllm_alone(&mut registry, &loaded);
            counters::add_vllm_alone(&mut registry, &totals);
        }
        our_gauges(&mut registry, &loaded);
        counters::add_ours(&mut registry, &totals);
        self.add_llama(&mut registry, &loaded, &totals);
        disk::register(&mut registry, &loaded);
        of_models(&mut registry, &all, models.peak());
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
}

/// Adds metrics that have other names in vLLM.
fn levels(registry: &mut Registry, prefix: &str, models: &[(Labels, Snapshot)]) {
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
    let helps = [
        "Requests that run",
        "Requests that wait",
        "Part of the cache that requests hold, from 0 to 1",
    ];
    let values: [fn(&Level) -> f64; 3] = [
        |level| level.running as f64,
        |level| level.waiting as f64,
        |level| level.usage,
    ];
    for ((name, value), help) in names.into_iter().zip(values).zip(helps) {
        let of = |snapshot: &Snapshot| value(&Level::of(snapshot));
        add_gauge(registry, &format!("{prefix}{name}"), help, models, of);
    }
}

/// Adds a gauge with a value for each model.
fn add_gauge<T>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    models: &[(Labels, T)],
    value: impl Fn(&T) -> f64,
) {
    let gauges: Family<Labels, Real> = Family::default();
    for (labels, model) in models {
        gauges.get_or_create(labels).set(value(model));
    }
    registry.register(name, help, gauges);
}

/// Adds a counter with a value for each model; `_total` is appended to the name.
fn add_counter<T>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    models: &[(Labels, T)],
    value: impl Fn(&T) -> u64,
) {
    let counters: Family<Labels, Counter> = Family::default();
    for (labels, model) in models {
        counters.get_or_create(labels).inc_by(value(model));
    }
    registry.register(name, help, counters);
}

/// Does the same as [`add_counter`], in seconds.
fn add_seconds<T>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    models: &[(Labels, T)],
    value: impl Fn(&T) -> Duration,
) {
    let counters: Family<Labels, Counter<f64, AtomicU64>> = Family::default();
    for (labels, model) in models {
        let seconds = value(model).as_secs_f64();
        counters.get_or_create(labels).inc_by(seconds);
    }
    registry.register(name, help, counters);
}

/// Returns the counts of every model, with those of the times that it was loaded before.
fn totals(models: &[(Labels, Status<Snapshot>)]) -> Vec<(Labels, Totals)> {
    let all = models.iter().map(|(labels, state)| {
        let mut totals = state.past;
        if let Some(now) = &state.loaded {
            totals += now.totals;
        }
        (labels.clone(), totals)
    });
    all.collect()
}

/// Adds metrics of the models themselves, loaded or not.
fn of_models(registry: &mut Registry, models: &[(Labels, Status<Snapshot>)], peak: u64) {
    let help = "Whether the model is loaded";
    add_gauge(registry, "octavo_model_loaded", help, models, |state| {
        f64::from(u8::from(state.loaded.is_some()))
    });
    let help = "Bytes of weights and cache";
    add_gauge(
        registry,
        "octavo_model_memory_bytes",
        help,
        models,
        |state| state.bytes as f64,
    );
    let help = "Number of times that the model was loaded";
    add_counter(registry, "octavo_model_loads", help, models, |state| {
        state.loads
    });
    let texts = ("octavo_model_load_seconds", "Time spent loading the model");
    add_seconds(registry, texts, models, |state| state.load_time);
    let gauge = Real::default();
    gauge.set(peak as f64);
    let help = "Largest number of bytes of weights and cache of all models at once";
    registry.register("octavo_models_memory_peak_bytes", help, gauge);
}

/// Adds metrics that only routers read: older names of vLLM's, and the cache size.
fn vllm_alone(registry: &mut Registry, models: &[(Labels, Snapshot)]) {
    let usage = "Part of the cache that requests hold, from 0 to 1";
    add_gauge(
        registry,
        "vllm:gpu_cache_usage_perc",
        usage,
        models,
        |snapshot| Level::of(snapshot).usage,
    );
    let hits = "Part of the tokens looked up that were found";
    add_gauge(
        registry,
        "vllm:gpu_prefix_cache_hit_rate",
        hits,
        models,
        |snapshot| {
            let totals = &snapshot.totals;
            totals.cached_tokens as f64 / totals.prompt_tokens.max(1) as f64
        },
    );
    // a gauge as in vLLM: Prometheus's older format has no "info" type
    let config: Family<Labels, Gauge> = Family::default();
    for (labels, snapshot) in models {
        let pages = Level::of(snapshot).pages;
        let mut labels = labels.clone();
        labels.push(("block_size".to_owned(), PAGE.to_string()));
        labels.push(("num_gpu_blocks".to_owned(), pages.to_string()));
        config.get_or_create(&labels).set(1);
    }
    let help = "Positions of a page of the cache, and pages";
    registry.register("vllm:cache_config_info", help, config);
}

fn our_gauges(registry: &mut Registry, models: &[(Labels, Snapshot)]) {
    let values: [(&str, &str, Pages); 3] = [
        ("total", "Pages of the cache", |snapshot| {
            Level::of(snapshot).pages
        }),
        ("free", "Pages without an owner", |snapshot| {
            snapshot.pages.free
        }),
        ("cached", "Pages kept for later prompts", |snapshot| {
            snapshot.pages.cached
        }),
    ];
    for (name, help, value) in values {
        let name = format!("octavo_kv_pages_{name}");
        add_gauge(registry, &name, help, models, |snapshot| {
            value(snapshot) as f64
        });
    }
}
