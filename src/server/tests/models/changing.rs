//! Models that come and go while the server runs: `?reload=1`, downloads and deletions.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use octavo_server::{ModelEntry, ModelLimits, ModelLoader, ModelSource, Models, Options};
use serde_json::{Value, json};

use super::events::{begin, next};
use super::support::{COMPLETIONS, TestLoader, asks, demo, metric, send, states, wait_for};
use crate::client::{Server, ok, read};

/// Models that a test changes.
#[derive(Default)]
struct TestSource(Mutex<BTreeMap<String, Arc<TestLoader>>>);

impl TestSource {
    fn with(names: &[&str]) -> Arc<TestSource> {
        let models = names.iter().map(|name| ((*name).to_owned(), demo()));
        Arc::new(TestSource(Mutex::new(models.collect())))
    }

    fn set(&self, name: &str, loader: Option<Arc<TestLoader>>) {
        let mut models = self.0.lock().expect("unpoisoned");
        match loader {
            Some(loader) => models.insert(name.to_owned(), loader),
            None => models.remove(name),
        };
    }
}

impl ModelSource for TestSource {
    fn find(&self) -> Result<Vec<ModelEntry>, String> {
        let models = self.0.lock().expect("unpoisoned");
        if models.contains_key("broken") {
            return Err("models.toml: line 1: expected a table".to_owned());
        }
        let entry = |(name, loader): (&String, &Arc<TestLoader>)| ModelEntry {
            names: vec![name.clone()],
            loader: Some(Arc::clone(loader) as Arc<dyn ModelLoader>),
            loaded: None,
            at_start: false,
        };
        Ok(models.iter().map(entry).collect())
    }

    fn download(
        &self,
        name: &str,
        report: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<(), String> {
        report("model.gguf", 1, Some(2));
        if name == "user/away" {
            return Err("the hub is away".to_owned());
        }
        report("model.gguf", 2, Some(2));
        self.set(name, Some(demo()));
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), String> {
        match name.starts_with("user/") {
            true => Ok(()),
            false => Err(format!("{name}: expected USER/REPO")),
        }
    }

    fn delete(&self, name: &str) -> Result<bool, String> {
        let is_cached = name.starts_with("user/");
        if is_cached {
            self.set(name, None);
        }
        Ok(is_cached)
    }
}

fn serving(source: &Arc<TestSource>) -> Server {
    let models = Models {
        entries: source.find().expect("models"),
        limits: ModelLimits::default(),
        source: Some(Arc::clone(source) as Arc<dyn ModelSource>),
    };
    Server::serving(models, Options::default())
}

fn names(server: &Server, path: &str) -> Vec<String> {
    let list = server.get(path).json();
    let models = list["data"].as_array().expect("a list").iter();
    models
        .map(|model| model["id"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn models_are_found_again() {
    let source = TestSource::with(&["a", "b", "c"]);
    let server = serving(&source);
    ok(&server, COMPLETIONS, &asks("b"));
    ok(&server, COMPLETIONS, &asks("c"));
    let before = metric(&server, "octavo_generation_tokens_total", Some("b"));
    assert!(before > 0.0);
    source.set("a", None);
    // other options
    source.set(
        "c",
        Some(TestLoader::new(octavo_engine::ModelSource::Demo, 11)),
    );
    source.set("d", Some(demo()));
    assert_eq!(names(&server, "/v1/models"), ["a", "b", "c"]);
    assert_eq!(names(&server, "/v1/models?reload=1"), ["b", "c", "d"]);
    let states = states(&server);
    assert_eq!(states["b"], "loaded");
    assert_eq!(states["c"], "unloaded");
    assert_eq!(server.post(COMPLETIONS, &asks("a")).status, 404);
    ok(&server, COMPLETIONS, &asks("d"));
    let after = metric(&server, "octavo_generation_tokens_total", Some("b"));
    assert_eq!(before, after);
    // the models stay as they are if they cannot be found
    source.set("broken", Some(demo()));
    let answer = server.get("/v1/models?reload=1");
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.text.contains("expected a table"), "{answer:?}");
    assert_eq!(names(&server, "/v1/models"), ["b", "c", "d"]);
}

#[test]
fn requests_of_a_model_that_is_gone_end_first() {
    let source = TestSource::with(&["a", "b"]);
    let server = serving(&source);
    let long = json!({ "model": "a", "prompt": "1+1=", "max_tokens": 40, "ignore_eos": true });
    ok(&server, COMPLETIONS, &asks("a"));
    let running = send(&server, COMPLETIONS, &long);
    while metric(&server, "octavo_requests_running", Some("a")) < 1.0 {
        std::thread::yield_now();
    }
    source.set("a", None);
    assert_eq!(names(&server, "/models?reload=1"), ["b"]);
    let answer = read(running);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 40);
}

/// Reads events until one of this kind comes; returns it, and those of the other kinds before it.
fn until(reader: &mut BufReader<TcpStream>, kind: &str) -> (Value, Vec<Value>) {
    let mut before = Vec::new();
    loop {
        let event = next(reader).expect("an event");
        if event["event"] == kind {
            return (event, before);
        }
        before.push(event);
    }
}

#[test]
fn models_are_downloaded_and_deleted() {
    let source = TestSource::with(&["a", "b"]);
    let server = serving(&source);
    let mut events = begin(&server);
    let wrong = server.post("/models", &json!({ "model": "c" }));
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert!(wrong.text.contains("c: expected USER/REPO"), "{wrong:?}");
    let answer = ok(&server, "/models", &json!({ "model": "user/new" }));
    assert_eq!(answer, json!({ "success": true }));
    let (finished, before) = until(&mut events, "download_finished");
    assert_eq!(finished["model"], "user/new");
    let progress = json!({
        "model": "user/new",
        "event": "download_progress",
        "data": { "model.gguf": { "done": 2, "total": 2 } },
    });
    assert!(before.contains(&progress), "{before:?}");
    assert_eq!(names(&server, "/models"), ["a", "b", "user/new"]);
    ok(&server, COMPLETIONS, &asks("user/new"));
    ok(&server, "/models", &json!({ "model": "user/away" }));
    let (failed, _) = until(&mut events, "download_failed");
    assert_eq!(failed["data"]["message"], "the hub is away");

    let path = "/models?model=user%2Fnew";
    let deleted = read(server.send("DELETE", path, "", b""));
    assert_eq!(deleted.json(), json!({ "success": true }));
    until(&mut events, "model_remove");
    assert_eq!(names(&server, "/models"), ["a", "b"]);
    for (path, status) in [(path, 404), ("/models?model=a", 400), ("/models", 400)] {
        let answer = read(server.send("DELETE", path, "", b""));
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[test]
fn one_model_does_not_change() {
    let server = Server::usual();
    assert_eq!(
        names(&server, "/models?reload=1"),
        names(&server, "/models")
    );
    let answer = server.post("/models", &json!({ "model": "user/new" }));
    assert_eq!(answer.status, 501);
    assert_eq!(
        read(server.send("DELETE", "/models?model=x", "", b"")).status,
        501
    );
}

#[test]
fn properties_of_a_server_and_of_a_sleeping_model() {
    let source = TestSource::with(&["a", "b"]);
    let models = Models {
        entries: source.find().expect("models"),
        limits: ModelLimits {
            models: Some(2),
            idle: Some(std::time::Duration::from_millis(200)),
            ..ModelLimits::default()
        },
        source: None,
    };
    let server = Server::serving(models, Options::default());
    let props = server.get("/props").json();
    assert_eq!(props["role"], "router");
    assert_eq!(props["max_instances"], 2);
    assert_eq!(props["models_autoload"], true);
    ok(&server, COMPLETIONS, &asks("a"));
    wait_for(&server, "a", "unloaded");
    let loads = source.0.lock().expect("unpoisoned")["a"].clone();
    let props = server.get("/props?model=a").json();
    assert_eq!(props["is_sleeping"], true);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 64);
    assert_eq!(loads.loads.load(Ordering::SeqCst), 1);
    // counts of an unloaded model stay
    let text = server.get("/metrics").text;
    assert!(
        text.contains("\nllamacpp:tokens_predicted_total 3\n"),
        "{text}"
    );
    let props = server.get("/props?model=a&autoload=true").json();
    assert_eq!(props["is_sleeping"], false);
    ok(&server, COMPLETIONS, &asks("a"));
    let text = server.get("/metrics").text;
    assert!(
        text.contains("\nllamacpp:tokens_predicted_total 6\n"),
        "{text}"
    );
    assert_eq!(
        metric(&server, "octavo_generation_tokens_total", Some("a")),
        6.0
    );
}
