//! Invalid requests: each gets an error that explains it, and no other request is affected.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Server, read};

#[test]
fn wrong_fields_are_named() {
    let server = Server::usual();
    let message = json!([{ "role": "user", "content": "a" }]);
    let chat = [
        (json!({}), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "a" }), "messages"),
        (json!({ "messages": [1] }), "messages[0]"),
        (
            json!({ "messages": [{ "role": "robot", "content": "a" }] }),
            "messages[0].role",
        ),
        (
            json!({ "messages": [{ "role": "user" }] }),
            "messages[0].content",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
    ];
    for (body, param) in chat {
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(
            (answer.status, answer.param().as_str()),
            (400, param),
            "{body}"
        );
    }
    let fields = [
        ("temperature", json!(2.5)),
        ("temperature", json!("hot")),
        ("top_p", json!(-1)),
        ("n", json!(0)),
        ("n", json!(17)),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("stop", json!({})),
        ("stop", json!(vec!["a"; 257])),
        ("stop", json!(["a".repeat(4097)])),
        ("logit_bias", json!({ "a": 1000 })),
        ("logit_bias", json!({ "99999": 1 })),
        ("seed", json!("a")),
        ("stream", json!("yes")),
        ("top_logprobs", json!(5)),
        ("tool_choice", json!("required")),
        ("tools", json!([{ "type": "robot" }])),
        ("presence_penalty", json!(3)),
        ("stream_options", json!([])),
    ];
    for (name, value) in fields {
        let body = json!({ "messages": message, (name): value });
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        assert!(answer.param().starts_with(name), "{body}: {}", answer.text);
        let null = json!({ "messages": message, "max_tokens": 1, (name): null });
        assert_eq!(
            server.post("/v1/chat/completions", &null).status,
            200,
            "{name}"
        );
    }
    let ids = json!({ "prompt": vec![5; 512] });
    let error = &server.post("/v1/completions", &ids).json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["type"], "exceed_context_size_error");
    assert_eq!([&error["n_prompt_tokens"], &error["n_ctx"]], [512, 512]);
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.contains("exceeds the available context size"),
        "{message}"
    );
}

#[test]
fn bodies_that_are_none_are_refused() {
    let server = Server::usual();
    let path = "/v1/completions";
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 8] = [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\"a\"",
        b"{\"prompt\": 1e400}",
        b"{\"prompt\": \"\xff\"}",
        deep.as_bytes(),
    ];
    for body in bodies {
        let answer = read(server.send("POST", path, "", body));
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    // a client that sends a large body still sees the error
    let much = vec![b' '; 6 << 20];
    for (method, path, status) in [("POST", "/nowhere", 404), ("PUT", path, 405)] {
        for _ in 0..10 {
            assert_eq!(read(server.send(method, path, "", &much)).status, status);
        }
    }
    let waits = read(server.send("POST", "/nowhere", "expect: 100-continue\r\n", b""));
    assert_eq!(waits.status, 404);
    let long = vec![b' '; 9 << 20];
    assert_eq!(read(server.send("POST", path, "", &long)).status, 413);
    assert_eq!(read(server.send("DELETE", path, "", b"")).status, 405);
    assert_eq!(read(server.send("POST", "/nowhere", "", b"{}")).status, 404);
}

#[test]
fn idle_and_slow_connections_hold_nobody_up() {
    let server = Server::usual();
    let mut slow = Vec::new();
    for i in 0..300 {
        let mut stream = server.connect();
        if i % 2 == 0 {
            stream
                .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: lo")
                .expect("it reads");
        }
        slow.push(stream);
    }
    let start = Instant::now();
    let answer = server.post(
        "/v1/completions",
        &json!({ "prompt": "1+1=", "max_tokens": 1 }),
    );
    assert_eq!(answer.status, 200);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn schemas_made_to_explode_are_answered_and_hold_nobody_up() {
    let server = Server::usual();
    let mut nested = json!({ "type": "null" });
    for _ in 0..60 {
        nested = json!({ "anyOf": [nested, { "type": "array", "items": { "type": "null" } }] });
    }
    let mut wide = serde_json::Map::new();
    for i in 0..2000 {
        wide.insert(format!("p{i}"), json!({ "type": "string" }));
    }
    let mut chain = serde_json::Map::new();
    for i in 0..3000 {
        chain.insert(
            format!("d{i}"),
            json!({ "$ref": format!("#/$defs/d{}", i + 1) }),
        );
    }
    let schemas: Vec<Value> = vec![
        json!({ "$ref": "#/$defs/d0", "$defs": chain }),
        json!({ "type": "object", "patternProperties": wide }),
        json!({ "$ref": "#" }),
        json!({ "type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}" }),
        json!({ "type": "string", "minLength": 1_000_000_000 }),
        json!({ "type": "array", "minItems": 1_000_000_000 }),
        json!({ "enum": [] }),
        json!({ "type": "integer", "minimum": 5, "maximum": 4 }),
        json!({ "type": "object", "properties": wide }),
        nested,
    ];
    for schema in schemas {
        let start = Instant::now();
        let body = json!({ "prompt": "1+1=", "max_tokens": 8, "json_schema": schema });
        let answer = server.post("/v1/completions", &body);
        assert!([200, 400].contains(&answer.status), "{}", answer.text);
        assert!(start.elapsed() < Duration::from_secs(10), "{schema}");
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn rules_whose_states_multiply_are_refused_before_they_are_compiled() {
    let server = Server::usual();
    let multiple = |n: u32| json!({ "type": "integer", "multipleOf": n });
    let multiples = [9973, 9967, 9949, 9941].map(multiple);
    let multiples = json!({ "allOf": multiples });
    let patterns: Vec<Value> = (1..16)
        .map(|i| json!({ "type": "string", "pattern": format!("(.*[ab].{{{i}}}c)") }))
        .collect();
    let joined: Vec<String> = (1..31).map(|i| format!("/.*[ab].{{{i}}}c.*/")).collect();
    let parameters = json!({ "type": "object", "properties": { "a": multiple(9_999_991) } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let rules = [
        ("json_schema", json!({ "json_schema": multiple(9_999_991) })),
        (
            "json_schema",
            json!({ "json_schema": { "allOf": patterns } }),
        ),
        ("json_schema", json!({ "json_schema": multiples })),
        (
            "grammar",
            json!({ "grammar": format!("start: %json {}", multiple(9_999_991)) }),
        ),
        (
            "grammar",
            json!({ "grammar": format!("start: %json {multiples}") }),
        ),
        (
            "grammar",
            json!({ "grammar": format!("start: A\nA: {}", joined.join(" & ")) }),
        ),
        (
            "tools",
            json!({
                "tools": [tool],
                "tool_choice": "required",
            }),
        ),
    ];
    for (param, mut body) in rules {
        let start = Instant::now();
        body["messages"] = json!([{ "role": "user", "content": "1" }]);
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(
            (answer.status, answer.param().as_str()),
            (400, param),
            "{}",
            answer.text
        );
        assert!(start.elapsed() < Duration::from_secs(10), "{param}");
    }
}

#[test]
fn texts_too_long_for_any_context_are_refused_unread() {
    let server = Server::usual();
    let long = "a ".repeat(3 << 20);
    let message = json!([{ "role": "user", "content": long }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": long })),
        ("/completion", json!({ "prompt": long })),
        ("/infill", json!({ "input_prefix": long })),
        ("/v1/embeddings", json!({ "input": long })),
        ("/v1/chat/completions", json!({ "messages": message })),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
        assert!(answer.text.contains("bytes"), "{path}: {error}");
        let counts = [&error["n_prompt_tokens"], &error["n_ctx"]].map(Value::as_u64);
        assert!(counts[0] > counts[1] && counts[1].is_some(), "{error}");
    }
}

#[test]
fn grammars_made_to_explode_are_answered() {
    let server = Server::usual();
    let chain = |n: usize| -> String {
        let rules = (0..n).map(|i| format!("r{i}: r{}\n", i + 1));
        format!("start: r0\n{}r{n}: \"a\"\n", rules.collect::<String>())
    };
    let rules = [
        json!({ "grammar": chain(300) }),
        json!({ "grammar": chain(3000) }),
        json!({ "grammar": "start: start start | \"a\"" }),
        json!({ "guided_regex": "a?".repeat(20_000) }),
        json!({ "guided_regex": "(a|aa)+(b|bb)+$".repeat(100) }),
    ];
    for rule in rules {
        let start = Instant::now();
        let mut body = rule.clone();
        body["prompt"] = json!(vec!["1+1="; 16]);
        body["max_tokens"] = json!(4);
        let answer = server.post("/v1/completions", &body);
        assert!([200, 400].contains(&answer.status), "{}", answer.text);
        assert!(!answer.text.contains("panic"), "{}", answer.text);
        assert!(start.elapsed() < Duration::from_secs(10), "{rule}");
    }
    assert_eq!(server.get("/health").status, 200);
}
