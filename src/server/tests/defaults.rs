//! Default sampling settings for requests without any: the server's options, then the model's own
//! recommendation, then llama-server's defaults.

use octavo_engine::sample::{SamplerDefaults, Stage};
use octavo_engine::{Engine, ModelSource};
use octavo_fixtures::tiny::File;
use octavo_server::{ModelOptions, Options};
use serde_json::{Value, json};

use crate::client::{Server, ok, small};

/// Starts a server for a small model that recommends these settings.
fn recommending(name: &str, settings: &[(&str, f32)], model: ModelOptions) -> Server {
    let mut file = File::running("qwen3");
    for (key, value) in settings {
        file.set(&format!("general.sampling.{key}"), *value);
    }
    let name = format!("octavo-server-{name}-{}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, file.bytes()).expect("written");
    let source = ModelSource::Path(path.clone());
    let engine = Engine::load(&source, &small(), &mut |_| {}).expect("it loads");
    let server = Server::with(engine, model, Options::default());
    std::fs::remove_file(path).expect("it is there");
    server
}

fn params(server: &Server) -> Value {
    server.get("/props").json()["default_generation_settings"]["params"].clone()
}

#[test]
fn the_options_come_before_the_model_and_the_model_before_llama_servers_defaults() {
    let usual = params(&Server::usual());
    for (name, value) in [
        ("temperature", json!(0.8)),
        ("top_k", json!(40)),
        ("top_p", json!(0.95)),
        ("min_p", json!(0.05)),
        ("repeat_penalty", json!(1.0)),
        ("seed", json!(-1)),
        ("samplers", json!(Stage::DEFAULT_ORDER.map(Stage::name))),
    ] {
        assert_eq!(usual[name], value, "{name}");
    }
    let settings = [
        ("temp", 0.3),
        ("top_k", 7.0),
        ("top_p", 1.5),
        ("penalty_repeat", 1.1),
    ];
    let own = params(&recommending("own", &settings, ModelOptions::default()));
    assert_eq!(own["temperature"], 0.3);
    assert_eq!(own["top_k"], 7);
    // out of range, and so ignored
    assert_eq!(own["top_p"], 0.95);
    assert_eq!(own["repeat_penalty"], 1.1);
    let options = ModelOptions {
        sampling: SamplerDefaults {
            temperature: Some(0.5),
            seed: Some(9),
            order: Some(vec![Stage::TopK, Stage::Temperature]),
            ..SamplerDefaults::default()
        },
        ..ModelOptions::default()
    };
    let both = params(&recommending("both", &settings, options));
    assert_eq!(both["temperature"], 0.5);
    assert_eq!(both["top_k"], 7);
    assert_eq!(both["seed"], 9);
    assert_eq!(both["samplers"], json!(["top_k", "temperature"]));
}

/// Returns the text from each dialect's route, with these additional fields.
fn texts(server: &Server, more: &Value) -> Vec<Value> {
    let chat = json!([{ "role": "user", "content": "1+1=" }]);
    [
        (
            "/v1/completions",
            "prompt",
            json!("1+1="),
            "/choices/0/text",
        ),
        (
            "/v1/chat/completions",
            "messages",
            chat,
            "/choices/0/message/content",
        ),
        ("/completion", "prompt", json!("1+1="), "/content"),
    ]
    .into_iter()
    .map(|(path, input, prompt, text)| {
        let mut body = json!({ "max_tokens": 16, "ignore_eos": true });
        body[input] = prompt;
        let fields = more.as_object().expect("an object");
        fields
            .iter()
            .for_each(|(name, value)| body[name] = value.clone());
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json().pointer(text).expect("a text").clone()
    })
    .collect()
}

#[test]
fn every_dialect_takes_the_same_defaults() {
    let greedy = ModelOptions {
        sampling: SamplerDefaults {
            temperature: Some(0.0),
            ..SamplerDefaults::default()
        },
        ..ModelOptions::default()
    };
    let server = Server::of_model(small(), greedy);
    let asked = texts(&server, &json!({ "temperature": 0 }));
    assert_eq!(texts(&server, &json!({})), asked);
    // a fixed seed applies to all requests without one, and a request's own overrides it
    let seeded = ModelOptions {
        sampling: SamplerDefaults {
            temperature: Some(2.0),
            top_k: Some(0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            seed: Some(4),
            ..SamplerDefaults::default()
        },
        ..ModelOptions::default()
    };
    let server = Server::of_model(small(), seeded);
    let drawn = texts(&server, &json!({}));
    assert_eq!(texts(&server, &json!({ "seed": 4 })), drawn);
    assert_ne!(texts(&server, &json!({ "seed": 5 })), drawn);
    assert_ne!(texts(&server, &json!({ "temperature": 0 })), drawn);
}

#[test]
fn samplers_run_in_the_order_that_is_asked_for() {
    let server = Server::usual();
    let hot = |more: Value| {
        let mut all = json!({ "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0.4, "seed": 3 });
        let fields = more.as_object().expect("an object");
        fields
            .iter()
            .for_each(|(name, value)| all[name] = value.clone());
        texts(&server, &all)
    };
    let last = hot(json!({}));
    let order = "penalties;top_k;top_p;min_p;temperature";
    assert_eq!(hot(json!({ "samplers": order })), last);
    assert_eq!(hot(json!({ "samplers": "ekpmt" })), last);
    let names = ["dry", "top_k", "nonsense", "min_p", "temperature"];
    assert_eq!(hot(json!({ "samplers": names })), last);
    // after the temperature, a cut-off sees a flatter distribution and keeps more tokens
    assert_ne!(hot(json!({ "samplers": ["temperature", "min_p"] })), last);
    for wrong in [json!(1), json!([1]), json!({})] {
        let body = json!({ "prompt": "1", "samplers": wrong });
        let answer = server.post("/v1/completions", &body);
        assert_eq!(
            (answer.status, answer.param()),
            (400, "samplers".to_owned())
        );
    }
}

/// Settings of sampling have llama-server's names in interfaces that do not know them, too.
#[test]
fn converted_requests_have_all_settings() {
    let server = Server::usual();
    let user = json!([{ "role": "user", "content": "1+1=" }]);
    for (path, input, limit, used) in [
        (
            "/v1/responses",
            "input",
            "max_output_tokens",
            "output_tokens",
        ),
        ("/v1/messages", "messages", "max_tokens", "output_tokens"),
    ] {
        let mut body = json!({ "temperature": 0, "ignore_eos": true });
        body[input] = user.clone();
        body[limit] = json!(24);
        let answer = ok(&server, path, &body);
        assert_eq!(answer["usage"][used], 24, "{path}: {answer}");
        for (name, value) in [
            ("repeat_penalty", json!(100)),
            ("samplers", json!(1)),
            ("min_tokens", json!(-1)),
        ] {
            let mut wrong = body.clone();
            wrong[name] = value;
            let answer = server.post(path, &wrong);
            assert_eq!(answer.status, 400, "{path}: {name}");
            assert!(answer.text.contains(name), "{path}: {}", answer.text);
        }
    }
}
