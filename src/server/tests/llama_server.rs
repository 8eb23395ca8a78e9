//! Requests that clients of llama-server send to its own routes, and fields they read from the
//! answers.

use octavo_engine::Pooling;
use octavo_server::{ModelOptions, Options};
use serde_json::{Value, json};

use crate::client::{Server, ok, small};

const CHAT: &str = "/v1/chat/completions";

fn pieces(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let pieces = server.stream(path, body).into_iter();
    pieces
        .filter_map(|piece| serde_json::from_str(&piece).ok())
        .collect()
}

#[test]
fn completions_without_a_version_are_llama_servers() {
    let server = Server::usual();
    let body = json!({ "prompt": "1+1=", "n_predict": 4, "temperature": 0 });
    let answer = ok(&server, "/completions", &body);
    assert_eq!(
        answer["content"],
        ok(&server, "/completion", &body)["content"]
    );
    assert!(answer["content"].is_string() && answer["choices"].is_null());
    // ids are there if they are asked for
    assert_eq!(answer["tokens"], json!([]));
    let mut body = body;
    body["return_tokens"] = json!(true);
    let tokens = ok(&server, "/completion", &body)["tokens"].clone();
    assert!(tokens.as_array().is_some_and(|ids| !ids.is_empty()));
    // and in every piece of a stream
    body["return_tokens"] = json!(false);
    body["stream"] = json!(true);
    let streamed = pieces(&server, "/completion", &body);
    let ids = streamed
        .iter()
        .filter_map(|piece| piece["tokens"].as_array());
    assert_eq!(json!(ids.flatten().collect::<Vec<_>>()), tokens);
}

#[test]
fn embeddings_without_a_version_are_llama_servers() {
    let server = Server::usual();
    let texts = json!(["1+1=", "a tree"]);
    let body = json!({ "input": texts });
    let expected = ok(&server, "/v1/embeddings", &body);
    for (path, name) in [("/embeddings", "input"), ("/embedding", "content")] {
        let answer = ok(&server, path, &json!({ (name): texts }));
        for i in 0..2 {
            assert_eq!(answer[i]["index"], i);
            assert_eq!(
                answer[i]["embedding"],
                json!([expected["data"][i]["embedding"]])
            );
        }
    }
    let body = json!({ "content": "1+1=", "pooling": "none" });
    let answer = ok(&server, "/embedding", &body);
    let tokens = ok(&server, "/tokenize", &json!({ "content": "1+1=" }));
    let vectors = answer[0]["embedding"].as_array().expect("vectors");
    assert_eq!(Some(vectors.len() as u64), tokens["count"].as_u64());
    let lengths = vectors.iter().map(|vector| vector.as_array().map(Vec::len));
    let n_embd = expected["data"][0]["embedding"].as_array().map(Vec::len);
    assert!(lengths.into_iter().all(|length| length == n_embd));
    // OpenAI's answer has no place for them
    assert_eq!(server.post("/v1/embeddings", &body).param(), "pooling");
}

#[test]
fn embeddings_are_pooled_as_the_server_was_told() {
    let started = |pooling: Pooling| {
        let options = ModelOptions {
            pooling: Some(pooling),
            ..ModelOptions::default()
        };
        Server::of_model(small(), options)
    };
    let body = json!({ "input": "1+1=" });
    let with = |pooling: &str| json!({ "input": "1+1=", "pooling": pooling });
    let server = started(Pooling::Last);
    let vector = |body: &Value| ok(&server, "/v1/embeddings", body)["data"][0].clone();
    assert_eq!(vector(&body), vector(&with("last")));
    assert_ne!(vector(&body), vector(&with("mean")));
    let server = started(Pooling::None);
    let answer = ok(&server, "/embeddings", &body);
    assert_eq!(answer, ok(&server, "/embeddings", &with("none")));
    assert!(answer[0]["embedding"].as_array().map(Vec::len) > Some(1));
    // OpenAI's answer has no place for them
    let refused = server.post("/v1/embeddings", &body);
    assert_eq!((refused.status, refused.param()), (400, "pooling".into()));
    ok(&server, "/v1/embeddings", &with("mean"));
}

#[test]
fn slots_can_be_hidden() {
    let options = Options {
        slots: false,
        ..Options::default()
    };
    let server = Server::new(small(), options);
    let answer = server.get("/slots");
    assert_eq!(answer.status, 501, "{}", answer.text);
    assert_eq!(answer.json()["error"]["type"], "not_supported_error");
    assert_eq!(server.get("/props").json()["endpoint_slots"], false);
    assert_eq!(Server::usual().get("/props").json()["endpoint_slots"], true);
}

#[test]
fn probabilities_may_be_those_after_sampling() {
    let server = Server::usual();
    let ask = |fields: Value| {
        let mut body = json!({
            "prompt": "1+1=", "n_predict": 3, "seed": 1, "ignore_eos": true,
            "n_probs": 4, "post_sampling_probs": true,
        });
        let all = body.as_object_mut().expect("an object");
        all.extend(fields.as_object().cloned().unwrap_or_default());
        let answer = ok(&server, "/completion", &body);
        let tokens = answer["completion_probabilities"].as_array().cloned();
        tokens.expect("one for each token")
    };
    let prob = |token: &Value| token["prob"].as_f64().expect("a number");
    let top = |token: &Value| token["top_probs"].as_array().expect("a list").clone();
    // hardly a choice is sure at this temperature; of two that are left, all is known
    let free = json!({ "temperature": 3, "top_k": 0, "top_p": 1, "min_p": 0 });
    let two = json!({ "temperature": 3, "top_k": 2, "top_p": 1, "min_p": 0 });
    for (fields, count) in [(free, 4), (two, 2)] {
        for token in ask(fields) {
            assert!(
                token["id"].is_u64() && token["bytes"].is_array() && token["token"].is_string()
            );
            assert!(token["logprob"].is_null(), "{token}");
            let probs: Vec<f64> = top(&token).iter().map(prob).collect();
            let sum: f64 = probs.iter().sum();
            assert_eq!(probs.len(), count, "{token}");
            assert!(
                probs.is_sorted_by(|a, b| a >= b) && probs[0] < 1.0,
                "{token}"
            );
            assert_eq!(count == 2, (sum - 1.0).abs() < 1e-9, "{token}");
            let own = top(&token).into_iter().find(|one| one["id"] == token["id"]);
            assert!(
                own.is_none_or(|own| own["prob"] == token["prob"]),
                "{token}"
            );
        }
    }
    // a greedy choice is the only one
    for token in ask(json!({ "temperature": 0 })) {
        assert_eq!((prob(&token), top(&token).len()), (1.0, 1), "{token}");
    }
    // a stream has the same
    let body = json!({
        "prompt": "1+1=", "n_predict": 1, "temperature": 0, "stream": true,
        "n_probs": 1, "post_sampling_probs": true,
    });
    let streamed = pieces(&server, "/completion", &body);
    let shown = streamed
        .iter()
        .find_map(|piece| piece["completion_probabilities"].get(0));
    assert_eq!(shown.map(prob), Some(1.0));
}

#[test]
fn requests_without_a_limit_have_the_servers() {
    let options = ModelOptions {
        n_predict: Some(3),
        ..ModelOptions::default()
    };
    let server = Server::of_model(small(), options);
    let messages = json!([{ "role": "user", "content": "1+1=" }]);
    for (path, fields, name, count) in [
        (
            CHAT,
            json!({ "messages": messages }),
            "max_tokens",
            "/usage/completion_tokens",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "1" }),
            "max_tokens",
            "/usage/completion_tokens",
        ),
        (
            "/v1/responses",
            json!({ "input": "1" }),
            "max_output_tokens",
            "/usage/output_tokens",
        ),
        (
            "/completion",
            json!({ "prompt": "1" }),
            "n_predict",
            "/tokens_predicted",
        ),
    ] {
        let ask = |limit: Value| {
            let mut body = fields.clone();
            body["ignore_eos"] = json!(true);
            body["temperature"] = json!(0);
            body[name] = limit;
            ok(&server, path, &body).pointer(count).cloned()
        };
        assert_eq!(ask(Value::Null), Some(json!(3)), "{path}");
        assert_eq!(ask(json!(-1)), Some(json!(3)), "{path}");
        assert_eq!(ask(json!(5)), Some(json!(5)), "{path}");
    }
    let props = server.get("/props").json();
    let params = &props["default_generation_settings"]["params"];
    assert_eq!(params["n_predict"], 3);
}

#[test]
fn texts_may_be_in_objects() {
    let server = Server::usual();
    let ask = |prompt: Value| {
        let body = json!({ "prompt": prompt, "n_predict": 4, "temperature": 0 });
        server.post("/completion", &body)
    };
    let expected = ask(json!("1+1=")).json()["content"].clone();
    let object = json!({ "prompt_string": "1+1=" });
    let parts = json!({ "content": [
        { "type": "text", "text": "1+" }, { "type": "text", "text": "1=" }] });
    for prompt in [&object, &parts] {
        assert_eq!(ask(prompt.clone()).json()["content"], expected, "{prompt}");
    }
    let several = ask(json!(["1+1=", object, parts])).json();
    let several = several.as_array().expect("three texts").iter();
    assert!(
        several
            .map(|one| &one["content"])
            .all(|one| *one == expected)
    );
    for (prompt, param) in [
        (json!({}), "prompt.content"),
        (json!({ "content": "1+1=" }), "prompt.content"),
        (
            json!({ "content": [{ "type": "image_url" }] }),
            "prompt.content[0].type",
        ),
        (
            json!({ "prompt_string": "1", "multimodal_data": ["AAAA"] }),
            "prompt.multimodal_data",
        ),
    ] {
        let answer = ask(prompt);
        assert_eq!((answer.status, answer.param().as_str()), (400, param));
    }
}

#[test]
fn settings_name_what_is_off_and_what_is_banned() {
    let server = Server::usual();
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "1+1=", "n_predict": 2, "temperature": 0 });
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        ok(&server, "/completion", &body)["generation_settings"].clone()
    };
    let usual = ask(json!({}));
    assert_eq!(usual["logit_bias"], json!([]));
    assert_eq!(usual["adaptive_target"], -1.0);
    assert_eq!(
        (&usual["mirostat"], &usual["typical_p"]),
        (&json!(0), &json!(1.0))
    );
    let endless = ask(json!({ "ignore_eos": true }));
    let banned = endless["logit_bias"].as_array().expect("biases");
    assert!(!banned.is_empty() && banned.iter().all(|one| one["bias"].is_null()));
}

#[test]
fn all_samplers_are_taken() {
    let server = Server::usual();
    let with = |more: &Value| {
        let mut body = json!({ "prompt": "1+1=", "n_predict": 2, "seed": 3 });
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        server.post("/completion", &body)
    };
    let set = json!({
        "dynatemp_range": 0.5, "dynatemp_exponent": 1.5, "typical_p": 0.9, "top_n_sigma": 1.5,
        "min_keep": 2, "xtc_probability": 0.25, "xtc_threshold": 0.125, "dry_multiplier": 0.75,
        "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "mirostat": 2,
        "dry_sequence_breakers": ["x"], "mirostat_tau": 3.5, "mirostat_eta": 0.25,
        "adaptive_target": 0.5, "adaptive_decay": 0.75,
    });
    let answer = with(&set);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let settings = answer.json()["generation_settings"].clone();
    for (name, value) in set.as_object().expect("fields") {
        assert_eq!(settings[name], *value, "{name}");
    }
    let order = with(&json!({ "samplers": "edskypmxta" }));
    let order = order.json()["generation_settings"]["samplers"].clone();
    assert_eq!(order.as_array().map(Vec::len), Some(10), "{order}");
    for (wrong, name) in [
        (json!({ "mirostat": 3 }), "mirostat"),
        (json!({ "mirostat": 0.5 }), "mirostat"),
        (json!({ "xtc_probability": 2 }), "xtc_probability"),
        (
            json!({ "dry_sequence_breakers": [3] }),
            "dry_sequence_breakers",
        ),
        (json!({ "adaptive_decay": 1 }), "adaptive_decay"),
    ] {
        let refused = with(&wrong);
        assert_eq!(
            (refused.status, refused.param()),
            (400, name.into()),
            "{wrong}"
        );
    }
}

#[test]
fn a_field_without_effect_is_named() {
    let server = Server::usual();
    let nothing = json!({ "n_keep": 0, "lora": [], "tfs_z": 1, "grammar_lazy": false });
    let much = json!({ "n_keep": 4, "lora": [{ "id": 0, "scale": 1 }], "t_max_predict_ms": 9 });
    for (path, input) in [
        ("/completion", json!({ "prompt": "1" })),
        ("/v1/completions", json!({ "prompt": "1" })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "1" }] }),
        ),
    ] {
        let warnings = |more: &Value| {
            let mut body = input.clone();
            body["max_tokens"] = json!(1);
            for (name, value) in more.as_object().expect("fields") {
                body[name] = value.clone();
            }
            ok(&server, path, &body)["warnings"].clone()
        };
        assert_eq!(warnings(&nothing), Value::Null, "{path}");
        let named = [
            "n_keep is ignored",
            "t_max_predict_ms is ignored",
            "lora is ignored",
        ];
        assert_eq!(warnings(&much), json!(named), "{path}");
    }
}

#[test]
fn a_bias_may_be_of_a_text() {
    let server = Server::usual();
    let ids = ok(&server, "/tokenize", &json!({ "content": "1+" }))["tokens"].clone();
    let ids = ids.as_array().expect("ids");
    assert!(ids.len() > 1, "{ids:?}");
    let ask = |bias: Value| {
        let body = json!({ "prompt": "1", "n_predict": 1, "logit_bias": bias });
        server.post("/completion", &body)
    };
    let by_id: Vec<Value> = ids.iter().map(|id| json!([id, -7.5])).collect();
    let by_id = ask(json!(by_id)).json()["generation_settings"]["logit_bias"].clone();
    for bias in [json!({ "1+": -7.5 }), json!([["1+", -7.5]])] {
        let answer = ask(bias).json();
        assert_eq!(answer["generation_settings"]["logit_bias"], by_id);
    }
    for bias in [json!({ "-1": 1 }), json!({ "1+": 1000 }), json!([[1.5, 1]])] {
        assert_eq!(ask(bias).param(), "logit_bias");
    }
}

#[test]
fn a_stream_tells_how_much_of_its_prompt_is_computed() {
    let engine = octavo_engine::EngineOptions {
        batch: Some(16),
        ..small()
    };
    let server = Server::new(engine, Options::default());
    let text = "What is 3+4? ".repeat(12);
    for (path, name) in [
        ("/completion", "prompt"),
        ("/v1/completions", "prompt"),
        ("/v1/responses", "input"),
        (CHAT, "messages"),
    ] {
        let value = match name {
            "messages" => json!([{ "role": "user", "content": text }]),
            _ => json!(format!("{path} {text}")),
        };
        let ask = |with: bool| {
            let body = json!({
                (name): value, "stream": true, "return_progress": with,
                "timings_per_token": true, "max_tokens": 2,
                "max_output_tokens": 2, "cache_prompt": false, "cache_salt": format!("{with}"),
            });
            let pieces = pieces(&server, path, &body).into_iter();
            pieces
                .filter(|piece| !piece["prompt_progress"].is_null())
                .map(|piece| (piece["prompt_progress"].clone(), piece["timings"].clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(ask(false), Vec::new(), "{path}");
        let (all, timings): (Vec<Value>, Vec<Value>) = ask(true).into_iter().unzip();
        if path != "/v1/responses" {
            assert_eq!(timings[0]["prompt_n"], 0, "{path}");
            let mut values = timings.iter().filter_map(Value::as_object).flatten();
            assert!(values.all(|(_, value)| value.is_number()), "{timings:?}");
            let last = &timings[timings.len() - 1];
            let read = ["prompt_n", "cache_n"].map(|name| last[name].as_u64().unwrap_or(0));
            assert_eq!(
                json!(read[0] + read[1]),
                all[all.len() - 1]["total"],
                "{path}"
            );
        }
        let done: Vec<u64> = all
            .iter()
            .filter_map(|progress| progress["processed"].as_u64())
            .collect();
        assert!(done.len() > 1 && done.is_sorted(), "{path}: {done:?}");
        let (first, last) = (&all[0], &all[all.len() - 1]);
        assert_eq!(first["processed"], first["cache"], "{path}");
        assert_eq!(last["processed"], last["total"], "{path}");
        assert!(last["time_ms"].is_u64(), "{path}");
    }
}

#[test]
fn prompts_are_counted_without_an_answer() {
    let server = Server::usual();
    let messages = json!([{ "role": "user", "content": "1+1=" }]);
    let chat = json!({ "messages": messages, "max_tokens": 1 });
    let expected = ok(&server, CHAT, &chat)["usage"]["prompt_tokens"].clone();
    for path in [
        "/chat/completions/input_tokens",
        "/v1/chat/completions/input_tokens",
    ] {
        assert_eq!(ok(&server, path, &chat)["input_tokens"], expected);
    }
    let body = json!({ "input": "1+1=" });
    for path in ["/responses/input_tokens", "/v1/responses/input_tokens"] {
        assert_eq!(ok(&server, path, &body)["input_tokens"], expected);
    }
    let answer = server.post("/v1/responses/input_tokens", &json!({ "input": 1 }));
    assert_eq!(answer.param(), "input");
}

#[test]
fn a_verbose_answer_shows_its_prompt_and_settings() {
    let server = Server::usual();
    let ask = |verbose: bool| {
        let body = json!({
            "messages": [{ "role": "user", "content": "1+1=" }], "max_tokens": 2,
            "verbose": verbose,
        });
        ok(&server, CHAT, &body)
    };
    assert_eq!(ask(false).get("__verbose"), None);
    let shown = &ask(true)["__verbose"];
    assert!(
        shown["prompt"]
            .as_str()
            .is_some_and(|text| text.contains("1+1="))
    );
    assert_eq!(shown["generation_settings"]["n_predict"], 2);
}

#[test]
fn a_message_is_either_begun_or_continued() {
    let server = Server::usual();
    let body = json!({
        "messages": [
            { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }],
        "add_generation_prompt": true, "continue_final_message": true,
    });
    let answer = server.post(CHAT, &body);
    assert_eq!(
        (answer.status, answer.param().as_str()),
        (400, "add_generation_prompt")
    );
}
