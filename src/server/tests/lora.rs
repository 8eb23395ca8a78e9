//! Adapters and control vectors over HTTP: the exchanges that were recorded of llama-server, and
//! the page of requests that it would not take.

use std::path::{Path, PathBuf};

use octavo_engine::{ControlFile, EngineOptions, LoraFile, ModelSource};
use octavo_fixtures::{Lacks, shared_dir, skip};
use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, small};

/// Returns the shared folder, if it has adapters.
fn folder() -> Option<PathBuf> {
    let shared = shared_dir().filter(|dir| dir.join("feat/lora").is_dir());
    if shared.is_none() {
        skip(Lacks::Fixtures, "LoRA over HTTP");
    }
    shared
}

fn adapter(folder: &Path, name: &str) -> PathBuf {
    folder.join("feat/lora/models").join(name)
}

fn base(folder: &Path, name: &str) -> ModelSource {
    let places = ["models", "arch/models"].map(|place| folder.join(place).join(name));
    let there = places.into_iter().find(|path| path.is_file());
    ModelSource::Path(there.unwrap_or_else(|| panic!("{name} is in neither folder")))
}

/// Reads `FILE` or `FILE:SCALE`, several with commas.
fn files(folder: &Path, list: &str, scaled: bool) -> Vec<(PathBuf, f32)> {
    let one = |text: &str| match text.rsplit_once(':').filter(|_| scaled) {
        Some((name, scale)) => (adapter(folder, name), scale.parse().expect("a number")),
        None => (adapter(folder, text), 1.0),
    };
    list.split(',').map(one).collect()
}

/// Starts a server as llama-server's options say.
fn start(folder: &Path, args: &[String]) -> Server {
    let (mut model, mut options) = (None, small());
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let mut value = || args.next().expect("a value").as_str();
        match name.as_str() {
            "-m" => model = Some(base(folder, value())),
            "--lora" | "--lora-scaled" => {
                let files = files(folder, value(), name.ends_with("scaled"));
                let file = |(path, scale)| LoraFile { path, scale };
                options.adapters.extend(files.into_iter().map(file));
            }
            "--control-vector" | "--control-vector-scaled" => {
                let files = files(folder, value(), name.ends_with("scaled"));
                let file = |(path, strength)| ControlFile { path, strength };
                options.control.extend(files.into_iter().map(file));
            }
            "--control-vector-layer-range" => {
                let mut number = || value().parse().expect("a number");
                options.control_layers = Some([number(), number()]);
            }
            other => panic!("{other} is not known"),
        }
    }
    let model = model.expect("a model");
    Server::of(&model, options, Options::default())
}

fn check(server: &Server, exchange: &Value, what: &str) {
    let path = exchange["path"].as_str().expect("a path");
    let answer = match exchange["method"].as_str() {
        Some("GET") => server.get(path),
        _ => server.post(path, &exchange["body"]),
    };
    let expected = &exchange["response"];
    assert_eq!(
        json!(answer.status),
        exchange["status"],
        "{what}: {}",
        answer.text
    );
    let mut got = answer.json();
    if let Some(list) = got.as_array_mut() {
        for one in list {
            let path = PathBuf::from(one["path"].as_str().expect("a path"));
            let name = path.file_name().expect("a name").to_string_lossy();
            one["path"] = json!(name);
        }
        assert_eq!(&got, expected, "{what}");
        return;
    }
    if let Some(error) = expected.get("error") {
        assert_eq!(got["error"]["type"], error["type"], "{what}");
        return;
    }
    for field in ["content", "tokens", "tokens_evaluated", "success"] {
        assert_eq!(got.get(field), expected.get(field), "{what}: {field}");
    }
}

#[test]
fn answers_are_llama_servers() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read(folder.join("feat/lora/goldens/http.json")).expect("goldens");
    let all: Vec<Value> = serde_json::from_slice(&text).expect("goldens");
    let mut checked = 0;
    for case in &all {
        let args: Vec<String> = serde_json::from_value(case["args"].clone()).expect("options");
        // it applies them all the same
        if args.iter().any(|arg| arg == "--lora-init-without-apply") {
            continue;
        }
        let server = start(&folder, &args);
        let exchanges = case["exchanges"].as_array().expect("exchanges");
        for (i, exchange) in exchanges.iter().enumerate() {
            check(
                &server,
                exchange,
                &format!("{args:?}, {i}: {}", exchange["body"]),
            );
            checked += 1;
        }
    }
    assert!(checked >= 20, "{checked} exchanges");
}

#[test]
fn fields_of_other_forms_are_refused() {
    let Some(folder) = folder() else { return };
    let engine = EngineOptions {
        adapters: vec![LoraFile {
            path: adapter(&folder, "tiny-qwen3-all.gguf"),
            scale: 1.0,
        }],
        ..small()
    };
    let model = base(&folder, "tiny-qwen3-F32.gguf");
    let server = Server::of(&model, engine, Options::default());
    let text = |lora: Value| {
        let prompt = "The red fox came home after 12 days.";
        let body = json!({ "prompt": prompt, "n_predict": 8, "temperature": 0, "lora": lora });
        server.post("/completion", &body)
    };
    for wrong in [
        json!({}),
        json!(1),
        json!([1]),
        json!([[]]),
        json!([{}]),
        json!([{ "id": 0 }]),
        json!([{ "id": "0", "scale": 1 }]),
        json!([{ "id": 0, "scale": "1" }]),
        json!([{ "id": 0, "scale": 1e300 }]),
        json!(vec![json!({ "id": 0, "scale": 1 }); 2000]),
    ] {
        let answer = text(wrong.clone());
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(answer.text.contains("'lora'"), "{wrong}: {}", answer.text);
        let answer = server.post("/lora-adapters", &wrong);
        assert_eq!(answer.status, 400, "{wrong}");
    }
    // all that a request does not name has no part in it
    let content = |lora| text(lora).json()["content"].clone();
    let [with, without] = [1.0, 0.0].map(|scale| content(json!([{ "id": 0, "scale": scale }])));
    assert_ne!(with, without);
    assert_eq!(content(json!([{ "id": -1, "scale": 1 }])), without);
    assert_eq!(content(Value::Null), with);
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
    ] {
        let body = json!({
            "prompt": "1+1=", "messages": [{ "role": "user", "content": "1+1=" }],
            "input": "1+1=", "max_tokens": 6, "temperature": 0, "lora": "x",
        });
        assert_eq!(server.post(path, &body).status, 400, "{path}");
    }
    assert!(server.get("/props").json()["default_generation_settings"].is_object());
}

#[test]
fn a_model_without_adapters_has_none() {
    let server = Server::usual();
    assert_eq!(server.get("/lora-adapters").json(), json!([]));
    let set = server.post("/lora-adapters", &json!([{ "id": 0, "scale": 1 }]));
    assert_eq!(set.json(), json!({ "success": true }));
}
