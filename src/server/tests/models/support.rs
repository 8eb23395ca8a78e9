//! Models whose loads a test controls, and looks at their states.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_server::{
    LoadedModel, ModelEntry, ModelLimits, ModelLoader, ModelOptions, Models, Options,
};
use serde_json::{Value, json};

use crate::client::Server;

pub(super) const COMPLETIONS: &str = "/v1/completions";
pub(super) const CHAT: &str = "/v1/chat/completions";

/// A loader that a test can delay, and let fail.
pub(super) struct TestLoader {
    pub(super) source: ModelSource,
    /// Bytes that it says the model takes.
    pub(super) bytes: u64,
    pub(super) loads: AtomicUsize,
    /// Number of further loads that fail.
    pub(super) failures: AtomicUsize,
    /// Whether loads may go on.
    pub(super) gate: (Mutex<bool>, Condvar),
}

impl TestLoader {
    pub(super) fn new(source: ModelSource, bytes: u64) -> Arc<TestLoader> {
        Arc::new(TestLoader {
            source,
            bytes,
            loads: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            gate: (Mutex::new(true), Condvar::new()),
        })
    }

    pub(super) fn set_open(&self, is_open: bool) {
        *self.gate.0.lock().expect("unpoisoned") = is_open;
        self.gate.1.notify_all();
    }

    /// Waits until a load has begun.
    pub(super) fn wait_for_load(&self) {
        let start = Instant::now();
        while self.loads.load(Ordering::SeqCst) == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "nothing is loaded"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn engine(&self) -> Engine {
        let options = EngineOptions {
            threads: Some(2),
            sessions: 4,
            ctx: Some(64),
            kv_positions: Some(512),
            ..EngineOptions::default()
        };
        Engine::load(&self.source, &options, &mut |_| {}).expect("it loads")
    }
}

impl ModelLoader for TestLoader {
    fn plan(&self) -> Result<u64, String> {
        Ok(self.bytes)
    }

    fn load(&self) -> Result<LoadedModel, String> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.gate.0.lock().expect("unpoisoned");
        while !*is_open {
            is_open = self.gate.1.wait(is_open).expect("unpoisoned");
        }
        let fails = |n: usize| n.checked_sub(1);
        let (order, failures) = (Ordering::SeqCst, &self.failures);
        if failures.fetch_update(order, order, fails).is_ok() {
            return Err("the disk is on fire".to_owned());
        }
        Ok(LoadedModel {
            engine: self.engine(),
            options: ModelOptions::default(),
            bytes: self.bytes,
        })
    }

    fn open(&self) -> Result<Gguf, String> {
        let opened = self.source.open(true);
        opened.map_err(|error| error.to_string())
    }

    fn options(&self) -> String {
        self.bytes.to_string()
    }
}

/// Starts a server of these models, each with its names.
pub(super) fn serving(models: &[(&[&str], &Arc<TestLoader>)], limits: ModelLimits) -> Server {
    serving_with(models, limits, Options::default())
}

pub(super) fn serving_with(
    models: &[(&[&str], &Arc<TestLoader>)],
    limits: ModelLimits,
    options: Options,
) -> Server {
    let entries = models.iter().map(|(names, loader)| ModelEntry {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        loader: Some(Arc::clone(loader) as Arc<dyn ModelLoader>),
        loaded: None,
        at_start: false,
    });
    let entries = entries.collect();
    let source = None;
    let models = Models {
        entries,
        limits,
        source,
    };
    Server::serving(models, options)
}

pub(super) fn demo() -> Arc<TestLoader> {
    TestLoader::new(ModelSource::Demo, 10)
}

pub(super) fn asks(model: &str) -> Value {
    json!({ "model": model, "prompt": "1+1=", "max_tokens": 3, "temperature": 0 })
}

/// Returns the state of each model in the list, by its name.
pub(super) fn states(server: &Server) -> HashMap<String, String> {
    let list = server.get("/v1/models").json();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let models = list["data"].as_array().expect("a list").iter();
    models
        .map(|model| (text(&model["id"]), text(&model["status"]["value"])))
        .collect()
}

/// Waits until a model has this state.
pub(super) fn wait_for(server: &Server, model: &str, state: &str) {
    let start = Instant::now();
    while states(server)[model] != state {
        let found = states(server);
        assert!(start.elapsed() < Duration::from_secs(30), "{found:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the value of a metric, of a model if one is named.
pub(super) fn metric(server: &Server, name: &str, model: Option<&str>) -> f64 {
    let text = server.get("/metrics").text;
    let is_it = |line: &&str| {
        let label = model.map(|model| format!("model_name=\"{model}\""));
        line.starts_with(name) && label.is_none_or(|label| line.contains(&label))
    };
    let line = text.lines().find(is_it).expect("the metric");
    let value = line.rsplit(' ').next().expect("a value");
    value.parse().expect("a number")
}

/// Sends a request whose answer is read later.
pub(super) fn send(server: &Server, path: &str, body: &Value) -> std::net::TcpStream {
    server.send("POST", path, "", body.to_string().as_bytes())
}

/// Returns a loader of a file.
pub(super) fn loader(path: &Path) -> Arc<TestLoader> {
    let gguf = Gguf::open(path, &OpenOptions::default()).expect("a model");
    TestLoader::new(ModelSource::Path(path.to_owned()), gguf.file_bytes())
}
