//! Several models in one server: loaded on request within a budget of memory, drained before they
//! are unloaded, under their names in every interface.

mod changing;
mod events;
mod page;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use octavo_engine::ModelSource;
use octavo_fixtures::shared;
use octavo_server::{ModelLimits, Options};
use serde_json::{Value, json};

use crate::client::{Answer, Server, ok, read};
use support::{
    CHAT, COMPLETIONS, TestLoader, asks, demo, loader, metric, send, serving, serving_with, states,
    wait_for,
};

#[test]
fn no_request_is_lost_and_the_budget_holds() {
    let Some(folder) = shared("models") else {
        return;
    };
    let files = [
        "tiny-qwen3-Q8_0.gguf",
        "rnd-llama-Q4_K_M.gguf",
        "rnd-qwen2-Q6_K.gguf",
    ];
    let loaders = files.map(|file| {
        let source = ModelSource::Path(folder.join(file));
        let bytes = TestLoader::new(source.clone(), 0).engine().resident_bytes();
        TestLoader::new(source, bytes)
    });
    let mut sizes = loaders.each_ref().map(|loader| loader.bytes);
    sizes.sort_unstable();
    let budget = sizes[1] + sizes[2];
    let limits = ModelLimits {
        memory: Some(budget),
        ..ModelLimits::default()
    };
    let [a, b, c] = &loaders;
    let names = ["a", "b", "c"];
    let server = serving(&[(&["a"], a), (&["b"], b), (&["c"], c)], limits);
    let text = |name: &str| ok(&server, COMPLETIONS, &asks(name))["choices"][0]["text"].clone();
    let expected = names.map(text);
    assert_ne!(expected[0], expected[1]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..8_usize {
            let (next, server, expected) = (&next, &server, &expected);
            scope.spawn(move || {
                let mut seed = client as u64;
                while next.fetch_add(1, Ordering::SeqCst) < 200 {
                    seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(12345);
                    let i = (seed >> 33) as usize % names.len();
                    let answer = ok(server, COMPLETIONS, &asks(names[i]));
                    assert_eq!(answer["choices"][0]["text"], expected[i]);
                    assert_eq!(answer["model"], names[i]);
                }
            });
        }
    });
    let peak = metric(&server, "octavo_models_memory_peak_bytes", None);
    assert!(
        peak > sizes[2] as f64 && peak <= budget as f64,
        "{peak} of {budget}"
    );
    let loads: usize = loaders
        .iter()
        .map(|own| own.loads.load(Ordering::SeqCst))
        .sum();
    assert!(loads > 6, "{loads}");
    let counted: f64 = names
        .map(|name| metric(&server, "octavo_model_loads_total", Some(name)))
        .iter()
        .sum();
    assert_eq!(counted, loads as f64);
}

#[test]
fn a_model_that_fails_to_load_fails_its_requests_alone() {
    let (good, bad) = (demo(), demo());
    bad.failures.store(1, Ordering::SeqCst);
    bad.set_open(false);
    let server = serving(
        &[(&["good"], &good), (&["bad"], &bad)],
        ModelLimits::default(),
    );
    let chat = json!([{ "role": "user", "content": "1+1=" }]);
    let with = |more: Value| {
        let mut body = json!({ "model": "bad", "messages": chat, "max_tokens": 1 });
        body.as_object_mut()
            .expect("fields")
            .extend(more.as_object().expect("fields").clone());
        body
    };
    let paths = [CHAT, "/v1/messages", "/api/chat"];
    let waiting = paths.map(|path| send(&server, path, &with(json!({ "stream": false }))));
    wait_for(&server, "bad", "loading");
    // all of them wait for the same load; there is no other sign of a request that waits
    std::thread::sleep(Duration::from_millis(300));
    bad.set_open(true);
    let answers = waiting.map(read);
    let says = "the model \"bad\" cannot be loaded: the disk is on fire";
    for answer in &answers {
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(
            answer.text.contains(&says.replace('"', "\\\"")),
            "{answer:?}"
        );
    }
    let [openai, anthropic, ollama] = answers.map(|answer: Answer| answer.json());
    assert_eq!(openai["error"]["type"], "server_error");
    assert_eq!(
        (&anthropic["type"], &anthropic["error"]["message"]),
        (&json!("error"), &json!(says))
    );
    assert_eq!(ollama["error"], says);
    assert_eq!(bad.loads.load(Ordering::SeqCst), 1);
    let model = server.get("/v1/models/bad").json();
    assert_eq!(
        model["status"],
        json!({ "value": "unloaded", "failed": true })
    );
    // the other one is not concerned, and this one may work the next time
    ok(&server, COMPLETIONS, &asks("good"));
    ok(&server, COMPLETIONS, &asks("bad"));
    let model = server.get("/v1/models/bad").json();
    assert_eq!(model["status"], json!({ "value": "loaded" }));
}

#[test]
fn a_client_that_goes_does_not_stop_the_load_for_others() {
    let model = demo();
    model.set_open(false);
    let other = demo();
    let server = serving(
        &[(&["a"], &model), (&["b"], &other)],
        ModelLimits::default(),
    );
    let gone = send(&server, COMPLETIONS, &asks("a"));
    wait_for(&server, "a", "loading");
    let stays = send(&server, COMPLETIONS, &asks("a"));
    std::thread::sleep(Duration::from_millis(200));
    drop(gone);
    std::thread::sleep(Duration::from_millis(200));
    model.set_open(true);
    assert_eq!(read(stays).status, 200);
    assert_eq!(model.loads.load(Ordering::SeqCst), 1);
    // a load that has begun ends as well after its only client has gone, and the model is there
    other.set_open(false);
    let gone = send(&server, COMPLETIONS, &asks("b"));
    other.wait_for_load();
    drop(gone);
    other.set_open(true);
    wait_for(&server, "b", "loaded");
}

#[test]
fn models_are_loaded_and_unloaded_by_order() {
    let (a, b) = (demo(), demo());
    let limits = ModelLimits {
        models: Some(1),
        autoload: false,
        ..ModelLimits::default()
    };
    let server = serving(&[(&["a", "alias"], &a), (&["b"], &b)], limits);
    let order = |what: &str, model: &str| {
        server.post(&format!("/models/{what}"), &json!({ "model": model }))
    };
    let refused = server.post(COMPLETIONS, &asks("a"));
    assert_eq!((refused.status, refused.param().as_str()), (400, "model"));
    assert_eq!(refused.json()["error"]["code"], "model_not_loaded");
    assert_eq!(server.get("/props?model=a").status, 400);
    assert_eq!(order("load", "alias").json(), json!({ "success": true }));
    ok(&server, COMPLETIONS, &asks("a"));
    // one model at a time
    assert_eq!(order("load", "b").json(), json!({ "success": true }));
    assert_eq!(
        (states(&server)["a"].as_str(), states(&server)["b"].as_str()),
        ("unloaded", "loaded")
    );
    // a request may say for itself that it loads its model
    assert_eq!(server.get("/props?model=a&autoload=true").status, 200);
    assert_eq!(states(&server)["a"], "loaded");
    assert_eq!(order("unload", "a").json(), json!({ "success": true }));
    assert_eq!(states(&server)["a"], "unloaded");
    assert_eq!(metric(&server, "octavo_model_memory_bytes", Some("a")), 0.0);
    let again = order("unload", "a");
    assert_eq!((again.status, again.param().as_str()), (400, "model"));
    assert_eq!(order("load", "c").status, 404);
    assert_eq!(server.post("/models/load", &json!({})).param(), "model");
    // the only model of a server stays
    let fixed = Server::usual();
    assert_eq!(
        fixed
            .post("/models/unload", &json!({ "model": "octavo" }))
            .status,
        501
    );
    assert_eq!(
        fixed
            .post("/models/load", &json!({ "model": "octavo" }))
            .status,
        200
    );
}

#[test]
fn running_requests_end_before_their_model_is_unloaded() {
    for (drain, is_whole) in [(30, true), (0, false)] {
        let model = demo();
        let options = Options {
            drain: Duration::from_secs(drain),
            ..Options::default()
        };
        let server = serving_with(
            &[(&["a"], &model), (&["b"], &demo())],
            ModelLimits::default(),
            options,
        );
        let mut body = asks("a");
        body["max_tokens"] = json!(50);
        body["n"] = json!(16);
        body["ignore_eos"] = json!(true);
        body["temperature"] = json!(1);
        body["stream"] = json!(true);
        ok(&server, COMPLETIONS, &asks("a"));
        let stream = send(&server, COMPLETIONS, &body);
        while metric(&server, "octavo_requests_running", Some("a")) == 0.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let unloaded = server.post("/models/unload", &json!({ "model": "a" }));
        assert_eq!(unloaded.json(), json!({ "success": true }));
        assert_eq!(states(&server)["a"], "unloaded");
        let answer = read(stream);
        assert_eq!(
            answer.text.contains("[DONE]"),
            is_whole,
            "{drain}: {}",
            answer.text
        );
        // and it is loaded again when it is wanted
        ok(&server, COMPLETIONS, &asks("a"));
        assert_eq!(model.loads.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn an_idle_model_is_unloaded_until_it_is_wanted() {
    let (a, b) = (demo(), demo());
    let limits = ModelLimits {
        idle: Some(Duration::from_millis(300)),
        ..ModelLimits::default()
    };
    let server = serving(&[(&["a"], &a), (&["b"], &b)], limits);
    ok(&server, COMPLETIONS, &asks("a"));
    let loaded = server.get("/api/ps").json();
    assert_eq!(loaded["models"][0]["name"], "a:latest");
    wait_for(&server, "a", "unloaded");
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    ok(&server, COMPLETIONS, &asks("a"));
    assert_eq!(a.loads.load(Ordering::SeqCst), 2);
    // looking at it is not use of it, and does not load it
    let start = Instant::now();
    while server.get("/slots?model=a&autoload=false").status == 200 {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(a.loads.load(Ordering::SeqCst), 2);
    // Ollama's clients unload a model by its time
    ok(&server, COMPLETIONS, &asks("b"));
    let body = json!({ "model": "b", "keep_alive": 0 });
    assert_eq!(ok(&server, "/api/generate", &body)["done_reason"], "unload");
    wait_for(&server, "b", "unloaded");
}

#[test]
fn every_interface_knows_the_models_by_all_their_names() {
    let (a, b) = (demo(), demo());
    let server = serving(
        &[(&["a", "one/alias", "x:7b"], &a), (&["b"], &b)],
        ModelLimits::default(),
    );
    let listed = server.get("/v1/models").json();
    let ids: Vec<&Value> = listed["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(
        listed["data"][0]["aliases"],
        json!(["a", "one/alias", "x:7b"])
    );
    assert!(listed["data"][0]["meta"].is_null());
    let tags = server.get("/api/tags").json();
    let names: Vec<&Value> = tags["models"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|m| &m["name"])
        .collect();
    assert_eq!(names, ["a:latest", "one/alias:latest", "x:7b", "b:latest"]);
    // the file tells, although the model is not loaded
    assert_eq!(tags["models"][3]["details"]["family"], "qwen3");
    assert_eq!(
        (
            states(&server)["a"].as_str(),
            a.loads.load(Ordering::SeqCst)
        ),
        ("unloaded", 0)
    );
    let chat = json!([{ "role": "user", "content": "1+1=" }]);
    for name in ["a", "one/alias", "x:7b"] {
        for path in [CHAT, "/v1/messages", "/api/chat"] {
            let body = json!({ "model": name, "messages": chat, "max_tokens": 2, "stream": false });
            assert_eq!(ok(&server, path, &body)["model"], name, "{path}");
        }
        let body = json!({ "model": name, "input": "1+1=", "max_output_tokens": 2 });
        assert_eq!(ok(&server, "/v1/responses", &body)["model"], name);
        assert_eq!(ok(&server, "/v1/embeddings", &body)["model"], name);
        assert_eq!(ok(&server, "/api/embed", &body)["model"], name);
        let shown = ok(
            &server,
            "/api/show",
            &json!({ "name": name, "model": name }),
        );
        assert_eq!(shown["model_info"]["general.architecture"], "qwen3");
        let body = json!({ "model": name, "content": "1+1=" });
        assert!(ok(&server, "/tokenize", &body)["tokens"].is_array());
        assert_eq!(server.get(&format!("/v1/models/{name}")).json()["id"], name);
        assert_eq!(
            server.get(&format!("/props?model={name}")).json()["model_alias"],
            "a"
        );
    }
    assert_eq!(
        (
            a.loads.load(Ordering::SeqCst),
            b.loads.load(Ordering::SeqCst)
        ),
        (1, 0)
    );
    let body = json!({ "model": "b:latest", "prompt": "1+1=", "stream": false });
    assert_eq!(ok(&server, "/api/generate", &body)["model"], "b:latest");
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(metric(&server, "octavo_model_loaded", Some("b")), 1.0);
}

#[test]
fn names_that_are_not_in_the_list_load_nothing() {
    let (a, b) = (demo(), demo());
    let server = serving(&[(&["a"], &a), (&["b"], &b)], ModelLimits::default());
    let long = "a".repeat(100_000);
    for name in [
        "A",
        "a ",
        "a/../a",
        "../a",
        "/etc/passwd",
        "file:///etc/passwd",
        "hf:user/repo",
        "a\0",
        "a:latest",
        "ab",
        "\u{202e}a",
        "b;rm",
        &long,
    ] {
        let answer = server.post(COMPLETIONS, &asks(name));
        let found = (answer.status, answer.param());
        assert_eq!(
            found,
            (404, "model".to_owned()),
            "{}",
            &answer.text[..200.min(answer.text.len())]
        );
        assert_eq!(
            server
                .post("/models/load", &json!({ "model": name }))
                .status,
            404
        );
    }
    for path in [
        "/v1/models/..%2Fa",
        "/v1/models/%FF",
        "/props?model=..%2Fa",
        "/props?model=%00",
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let nameless = json!([
        json!({ "prompt": "1" }),
        json!({ "prompt": "1", "model": "" }),
        json!({ "model": 7 })
    ]);
    for body in nameless.as_array().expect("a list") {
        let answer = server.post(COMPLETIONS, body);
        assert_eq!(
            (answer.status, answer.param().as_str()),
            (400, "model"),
            "{body}"
        );
    }
    assert_eq!(server.get("/slots").status, 400);
    assert_eq!(
        (
            a.loads.load(Ordering::SeqCst),
            b.loads.load(Ordering::SeqCst)
        ),
        (0, 0)
    );
}

#[test]
fn a_server_that_ends_lets_nobody_wait() {
    let (a, b) = (demo(), demo());
    b.set_open(false);
    let mut server = serving(&[(&["a"], &a), (&["b"], &b)], ModelLimits::default());
    ok(&server, COMPLETIONS, &asks("a"));
    let mut body = asks("a");
    body["max_tokens"] = json!(50);
    body["n"] = json!(8);
    body["ignore_eos"] = json!(true);
    let running = send(&server, COMPLETIONS, &body);
    while metric(&server, "octavo_requests_running", Some("a")) == 0.0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let waiting = send(&server, COMPLETIONS, &asks("b"));
    wait_for(&server, "b", "loading");
    server.stop.stop();
    assert_eq!(read(running).status, 200);
    assert_eq!(read(waiting).status, 503);
    server.join();
    b.set_open(true);
}

#[test]
fn chats_vectors_and_rankings_come_from_models_side_by_side() {
    let Some(folder) = shared("feat/embed/models") else {
        return;
    };
    let embedder = loader(&folder.join("e5-Q8_0.gguf"));
    let reranker = loader(&folder.join("bge-reranker-F32.gguf"));
    let chat = demo();
    let models: [(&[&str], &Arc<TestLoader>); 3] = [
        (&["chat"], &chat),
        (&["embed"], &embedder),
        (&["rank"], &reranker),
    ];
    let server = serving(&models, ModelLimits::default());
    let vector = |model: &str| {
        let body = json!({ "model": model, "input": "a text" });
        ok(&server, "/v1/embeddings", &body)["data"][0]["embedding"].clone()
    };
    let ranked = json!({ "model": "rank", "query": "a", "documents": ["a", "b"] });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| ok(&server, COMPLETIONS, &asks("chat")));
            scope.spawn(|| vector("embed"));
            scope.spawn(|| ok(&server, "/v1/rerank", &ranked));
        }
    });
    let alone = Server::of(&embedder.source, crate::client::small(), Options::default());
    let body = json!({ "input": "a text" });
    let expected = &ok(&alone, "/v1/embeddings", &body)["data"][0]["embedding"];
    assert_eq!(vector("embed"), *expected);
    assert_eq!(
        ok(&server, "/v1/rerank", &ranked)["results"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    for own in [&chat, &embedder, &reranker] {
        assert_eq!(own.loads.load(Ordering::SeqCst), 1);
    }
    assert_eq!(
        server
            .post(
                "/v1/rerank",
                &json!({ "model": "chat", "query": "a", "documents": ["a"] })
            )
            .status,
        501
    );
}
