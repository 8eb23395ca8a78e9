//! Texts that must be something: JSON of a schema, a call of a tool.

use serde_json::{Value, json};

use crate::client::Server;

fn content(server: &Server, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "1+1=" }],
        "temperature": 1, "seed": 3, "max_tokens": 200,
    });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["choices"][0].clone()
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
