//! Constrained texts: JSON of a schema, a tool call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::client::{Server, read};

pub(crate) fn content(server: &Server, more: Value) -> Value {
    let answer = server.post("/v1/chat/completions", &with_question(more));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["choices"][0].clone()
}

/// Adds a question to the fields of a chat request.
pub(crate) fn with_question(more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "1+1=" }],
        "temperature": 1, "seed": 3, "max_tokens": 200,
    });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn json_is_what_its_schema_says() {
    let server = Server::usual();
    let schema = json!({
        "type": "object",
        "properties": {
            "n": { "type": "integer", "minimum": 10, "maximum": 99 },
            "word": { "type": "string", "pattern": "^[a-c]{2,4}$" },
            "kind": { "enum": ["left", "right", 3] },
            "list": {
                "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 3
            },
            "tree": { "$ref": "#/$defs/tree" },
        },
        "required": ["n", "word", "kind", "list", "tree"],
        "additionalProperties": false,
        "$defs": { "tree": {
            "anyOf": [{ "const": 0 }, {
                "type": "object",
                "properties": { "next": { "const": 1 } },
                "required": ["next"],
                "additionalProperties": false,
            }],
        } },
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    for seed in 0..4 {
        let choice = content(&server, json!({ "response_format": format, "seed": seed }));
        let text = choice["message"]["content"].as_str().expect("text");
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(choice["finish_reason"], "stop");
        assert!(
            (10..=99).contains(&value["n"].as_i64().expect("a number")),
            "{text}"
        );
        let word = value["word"].as_str().expect("a word");
        assert!((2..=4).contains(&word.len()) && word.bytes().all(|b| b"abc".contains(&b)));
        assert!(
            ["left".into(), "right".into(), json!(3)].contains(&value["kind"]),
            "{text}"
        );
        assert!((1..=3).contains(&value["list"].as_array().expect("a list").len()));
        assert_eq!(value.as_object().map(|object| object.len()), Some(5));
    }
}

#[test]
fn a_call_that_is_demanded_happens() {
    let server = Server::usual();
    let tool = |name: &str| {
        json!({ "type": "function", "function": {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": { "city": { "enum": ["Rome", "Oslo"] } },
            "required": ["city"],
        },
    } })
    };
    let tools = json!([tool("weather"), tool("time")]);
    let named = json!({ "type": "function", "function": { "name": "time" } });
    for (choice, names) in [
        (json!("required"), vec!["weather", "time"]),
        (named, vec!["time"]),
    ] {
        let answer = content(&server, json!({ "tools": tools, "tool_choice": choice }));
        assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
        let call = &answer["message"]["tool_calls"][0]["function"];
        assert!(names.contains(&call["name"].as_str().expect("a name")));
        let arguments = call["arguments"].as_str().expect("text");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        assert!(["Rome", "Oslo"].contains(&arguments["city"].as_str().expect("a city")));
    }
}

#[test]
fn a_known_rule_does_not_wait_for_those_that_are_compiled() {
    let server = Server::usual();
    let ask = |schema: &Value| {
        let body = json!({ "prompt": "1+1=", "max_tokens": 1, "json_schema": schema });
        server.post("/v1/completions", &body).status
    };
    let known = json!({ "type": "boolean" });
    assert_eq!(ask(&known), 200);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for first in 0..5 {
            let (ask, done) = (&ask, &done);
            scope.spawn(move || {
                let multiple = |n: usize| json!({ "type": "integer", "multipleOf": 9900 + n });
                let all = (0..10).map(|n| (format!("p{n}"), multiple(10 * first + n)));
                let all: Map<String, Value> = all.collect();
                let required: Vec<&String> = all.keys().collect();
                let schema = json!({ "type": "object", "properties": all, "required": required });
                // a busy machine may refuse those that would wait for too long
                let status = ask(&schema);
                assert!([200, 429].contains(&status), "{status}");
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        // some of them wait by then
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(ask(&known), 200);
        assert!(done.load(Ordering::SeqCst) < 3);
    });
}

#[test]
fn rules_that_cannot_be_are_refused_at_once() {
    let server = Server::usual();
    let wrong = [
        json!({ "response_format": { "type": "xml" } }),
        json!({ "response_format": { "type": "json_schema" } }),
        json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": 1 } } }),
        json!({ "json_schema": { "type": "colour" } }),
        json!({ "json_schema": { "$ref": "#/nowhere" } }),
        json!({ "json_schema": { "type": "string", "pattern": "(" } }),
        json!({ "grammar": "start: nowhere" }),
        json!({ "grammar": "start: \"a\"", "json_schema": {} }),
    ];
    for fields in wrong {
        let mut body = fields.clone();
        body["prompt"] = json!("1+1=");
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 400, "{fields}: {}", answer.text);
        assert!(!answer.param().is_empty(), "{fields}: {}", answer.text);
    }
}

/// Templates that end with the messages, each with the signs of a call format.
const SIGNS: [(&str, &str); 8] = [
    ("Qwen3-Coder", "<tool_call><function=f><parameter=x>"),
    ("GLM", "<tool_call>f<arg_key>"),
    ("MiniMax", "<minimax:tool_call>"),
    ("DeepSeek", "<｜DSML｜invoke>"),
    ("MiniCPM", "<param name=>"),
    ("Gemma", "<|tool_call>call:"),
    ("Hermes", "<tool_call>"),
    ("none", ""),
];

pub(crate) fn template(sign: &str) -> String {
    // a template that supports tools; otherwise they would make a long system message
    let messages = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}\
                    {% for m in messages %}{{ m.content }}{% endfor %}";
    format!("{messages}{{% if false %}}{sign}{{% endif %}}")
}

#[test]
fn a_call_happens_in_every_format() {
    let roll = json!({ "type": "function", "function": { "name": "roll", "parameters": {
        "type": "object",
        "properties": {
            "sides": { "enum": [6, 20] },
            "why": { "type": "string", "enum": ["fun", "a \"bet\""] },
            "times": { "$ref": "#/$defs/few" },
            "by": { "anyOf": [{ "const": "me" }, { "const": 7 }] },
        },
        "required": ["sides", "why", "times", "by"],
        "$defs": { "few": { "type": "integer", "minimum": 2, "maximum": 9, "format": "int32" } },
    } } });
    let stop = json!({ "type": "function", "function": { "name": "stop" } });
    for (name, sign) in SIGNS {
        let server = Server::chatting(&template(sign));
        for seed in 0..3 {
            let fields = json!({
                "tools": [roll], "tool_choice": "required", "seed": seed, "max_tokens": 450,
                "parallel_tool_calls": false,
            });
            let answer = content(&server, fields);
            assert_eq!(answer["finish_reason"], "tool_calls", "{name}: {answer}");
            let call = &answer["message"]["tool_calls"][0]["function"];
            let arguments = call["arguments"].as_str().expect("text");
            let arguments: Value = serde_json::from_str(arguments).expect("JSON");
            assert!(
                [json!(6), json!(20)].contains(&arguments["sides"]),
                "{name}: {call}"
            );
            assert!(
                [json!("fun"), json!("a \"bet\"")].contains(&arguments["why"]),
                "{name}: {call}"
            );
            assert!((2..=9).contains(&arguments["times"].as_i64().expect("a number")));
            assert!(
                [json!("me"), json!(7)].contains(&arguments["by"]),
                "{name}: {call}"
            );
        }
        let named = json!({ "type": "function", "function": { "name": "stop" } });
        let answer = content(
            &server,
            json!({ "tools": [roll, stop], "tool_choice": named }),
        );
        let call = &answer["message"]["tool_calls"][0]["function"];
        assert_eq!(
            *call,
            json!({ "name": "stop", "arguments": "{}" }),
            "{name}: {answer}"
        );
    }
}

#[test]
fn rules_have_the_names_that_vllm_gives_them() {
    let server = Server::usual();
    let schema = json!({ "const": { "a": 1 } });
    let json = "{\"a\": 1}";
    for (fields, text) in [
        (json!({ "guided_json": schema }), json),
        (json!({ "guided_json": schema.to_string() }), json),
        (json!({ "guided_choice": ["maybe not"] }), "maybe not"),
        (json!({ "guided_regex": "a{3}b" }), "aaab"),
        (json!({ "guided_grammar": "root ::= \"x\" [y]{2}" }), "xyy"),
        (json!({ "grammar": "start: \"x\" \"z\"" }), "xz"),
        (json!({ "structured_outputs": { "json": schema } }), json),
        (
            json!({ "structured_outputs": { "choice": ["maybe not"] } }),
            "maybe not",
        ),
        (
            json!({ "structured_outputs": { "regex": "a{3}b" } }),
            "aaab",
        ),
        (
            json!({ "structured_outputs": { "grammar": "root ::= \"xy\"" } }),
            "xy",
        ),
    ] {
        let answer = content(&server, fields.clone());
        assert_eq!(answer["message"]["content"], text, "{fields}");
        let mut body = fields.clone();
        body["prompt"] = json!("1+1=");
        body["max_tokens"] = json!(50);
        let answer = server.post("/v1/completions", &body).json();
        assert_eq!(answer["choices"][0]["text"], text, "{fields}");
        let answer = server.post("/completion", &body).json();
        assert_eq!(answer["content"], text, "{fields}");
    }
    let object = json!({ "structured_outputs": { "json_object": true } });
    let answer = content(&server, object);
    let text = answer["message"]["content"].as_str().unwrap_or_default();
    assert!(text.starts_with('{'), "{answer}");
    for wrong in [
        json!({ "guided_choice": [] }),
        json!({ "guided_json": "{" }),
        json!({ "structured_outputs": { "json": schema, "regex": "a" } }),
        json!({ "structured_outputs": { "structural_tag": "a" } }),
        json!({ "guided_json": schema, "guided_regex": "a" }),
        json!({ "guided_grammar": "root ::= (" }),
    ] {
        let mut body = wrong.clone();
        body["prompt"] = json!("1+1=");
        assert_eq!(server.post("/v1/completions", &body).status, 400, "{wrong}");
    }
}

#[test]
fn a_text_that_is_whole_ends_whatever_bans_its_end() {
    let server = Server::usual();
    let schema = json!({ "json_schema": { "enum": [{ "a": 1 }] } });
    for (name, value) in [("ignore_eos", json!(true)), ("min_tokens", json!(100))] {
        let mut fields = schema.clone();
        fields[name] = value;
        let answer = content(&server, fields);
        assert_eq!(answer["message"]["content"], "{\"a\": 1}", "{name}");
        assert_eq!(answer["finish_reason"], "stop", "{name}");
    }
}

#[test]
fn what_a_schema_tells_people_alone_is_passed_over() {
    let server = Server::usual();
    let schema = json!({
        "type": "object",
        "properties": {
            "format": { "type": "string", "format": "password", "maxLength": 3 },
            "list": { "type": "array", "items": { "const": 1 }, "uniqueItems": false },
        },
        "required": ["format", "list"],
        "additionalProperties": false,
    });
    let answer = content(&server, json!({ "json_schema": schema }));
    let text = answer["message"]["content"].as_str().expect("text");
    let value: Value = serde_json::from_str(text).expect("JSON");
    assert!(
        value["format"].is_string() && value["list"].is_array(),
        "{text}"
    );
    assert!(answer.get("warnings").is_none(), "{answer}");
}

#[test]
fn what_cannot_be_held_is_told_once_in_the_answer() {
    let server = Server::usual();
    let schema = json!({ "type": "array", "items": { "const": 1 }, "uniqueItems": true });
    let format = |strict: bool| {
        json!({ "type": "json_schema", "json_schema": {
            "name": "a", "schema": schema, "strict": strict,
        } })
    };
    let mut body = json!({
        "messages": [{ "role": "user", "content": "1+1=" }],
        "max_tokens": 20,
        "response_format": format(false),
    });
    let answer = server.post("/v1/chat/completions", &body).json();
    let told = |answer: &Value| {
        let warnings = answer["warnings"].as_array().expect("a list").clone();
        assert_eq!(warnings.len(), 1, "{answer}");
        let warning = warnings[0].as_str().expect("a text").to_owned();
        assert!(warning.contains("uniqueItems"), "{warning}");
    };
    told(&answer);
    body["stream"] = json!(true);
    let pieces = server.stream("/v1/chat/completions", &body);
    let with: Vec<Value> = pieces
        .iter()
        .filter_map(|piece| serde_json::from_str(piece).ok())
        .filter(|piece: &Value| piece.get("warnings").is_some())
        .collect();
    assert_eq!(with.len(), 1, "{pieces:?}");
    told(&with[0]);
    body["stream"] = json!(false);
    body["response_format"] = format(true);
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(
        (answer.status, answer.param().as_str()),
        (400, "response_format")
    );
    let body = json!({ "prompt": "1", "json_schema": schema, "max_tokens": 9 });
    told(&server.post("/v1/completions", &body).json());
    told(&server.post("/completion", &body).json());
    let format = json!({ "type": "json_schema", "name": "a", "schema": schema });
    let body = json!({ "input": "1", "text": { "format": format }, "max_output_tokens": 9 });
    told(&server.post("/v1/responses", &body).json());
}

#[test]
fn strict_of_a_helper_was_asked_for_by_nobody() {
    let server = Server::usual();
    let schema = json!({ "type": "array", "items": { "const": 1 }, "uniqueItems": true });
    let body = json!({
        "messages": [{ "role": "user", "content": "1+1=" }],
        "max_tokens": 20,
        "response_format": { "type": "json_schema", "json_schema": {
            "name": "a", "schema": schema, "strict": true,
        } },
    });
    let ask = |helper: &str| {
        let header = format!("x-stainless-helper-method: {helper}\r\n");
        let body = body.to_string();
        let asked = server.send("POST", "/v1/chat/completions", &header, body.as_bytes());
        read(asked)
    };
    for helper in ["chat.completions.parse", "chat.completions.stream"] {
        let answer = ask(helper);
        assert_eq!(answer.status, 200, "{helper}");
        let warnings = answer.json()["warnings"].to_string();
        assert!(warnings.contains("uniqueItems"), "{warnings}");
    }
    assert_eq!(ask("runTools").status, 400);
}

#[test]
fn hundreds_of_tools_are_taken() {
    // prints a single tool's name, so that the prompt is short
    let server = Server::chatting(
        "{% if tools %}{{ tools[-1].function.name }}{% endif %}\
         {% for m in messages %}{{ m.content }}{% endfor %}",
    );
    let tool = |i: usize| {
        json!({ "type": "function", "function": { "name": format!("t{i}"), "parameters": {
            "type": "object", "properties": { "x": { "type": "string" } },
        } } })
    };
    let tools: Vec<Value> = (0..300).map(tool).collect();
    let mut fields = json!({ "tools": tools, "max_tokens": 2 });
    content(&server, fields.clone());
    let named = json!({ "type": "function", "function": { "name": "t299" } });
    fields["tool_choice"] = named;
    fields["max_tokens"] = json!(100);
    let answer = content(&server, fields);
    let name = &answer["message"]["tool_calls"][0]["function"]["name"];
    assert_eq!(*name, "t299", "{answer}");
}
