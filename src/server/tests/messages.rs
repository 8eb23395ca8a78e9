//! Anthropic's interface: answers, which must be the same whole and streamed.

mod refusals;

use serde_json::{Value, json};

use crate::client::{Server, ok};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const CHAT: &str = "/v1/chat/completions";

/// Returns a request with a question that the built-in model answers with 2.
fn asked(more: Value) -> Value {
    let mut body = json!({
        "model": "octavo",
        "max_tokens": 12,
        "temperature": 0,
        "messages": [{ "role": "user", "content": "1+1=" }],
    });
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

/// Returns the events of a streamed answer, whose names are their types.
fn events(server: &Server, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let answer = server.post(PATH, &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let pairs = answer.text.split("\n\n").filter(|pair| !pair.is_empty());
    let event = |pair: &str| {
        let (name, data) = pair.split_once('\n').expect("a name and data");
        let data = data.strip_prefix("data: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name.strip_prefix("event: ").expect("a name"));
        data
    };
    pairs.map(event).collect()
}

/// Assembles the message of a stream, as clients do.
fn assembled(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut texts: Vec<String> = Vec::new();
    let mut open = None;
    for event in &events[1..] {
        let at = event["index"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!((at, open), (Some(texts.len()), None), "{event}");
                open = at;
                texts.push(String::new());
                let blocks = message["content"].as_array_mut().expect("blocks");
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(at, open, "{event}");
                let at = at.expect("an index");
                let (block, delta) = (&mut message["content"][at], &event["delta"]);
                let (kind, field) = match block["type"].as_str() {
                    Some("text") => ("text_delta", "text"),
                    Some("tool_use") => ("input_json_delta", "partial_json"),
                    _ if delta["type"] == "signature_delta" => {
                        block["signature"] = delta["signature"].clone();
                        continue;
                    }
                    _ => ("thinking_delta", "thinking"),
                };
                assert_eq!(delta["type"], kind);
                texts[at].push_str(delta[field].as_str().expect("text"));
            }
            "content_block_stop" => {
                let block = &mut message["content"][open.take().expect("an open block")];
                let text = &texts[texts.len() - 1];
                match block["type"].as_str().map(str::to_owned) {
                    Some(kind) if kind != "tool_use" => block[kind] = json!(text),
                    _ if text.is_empty() => {}
                    _ => block["input"] = serde_json::from_str(text).expect("JSON"),
                }
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "ping" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

/// Asserts that an answer is the same whole and streamed, but for what is new in each, and returns
/// it.
fn both(server: &Server, body: &Value) -> Value {
    let mut whole = ok(server, PATH, body);
    let events = events(server, body.clone());
    let mut streamed = assembled(&events);
    let answer = whole.clone();
    for message in [&mut whole, &mut streamed] {
        for name in ["id", "timings", "warnings", "usage"] {
            message[name] = Value::Null;
        }
        for block in message["content"].as_array_mut().expect("blocks") {
            for name in ["id", "signature"] {
                if let Some(value) = block.get_mut(name) {
                    assert!(
                        value.as_str().is_some_and(|value| !value.is_empty()),
                        "{name}"
                    );
                    *value = Value::Null;
                }
            }
        }
    }
    assert_eq!(whole, streamed, "{body}");
    answer
}

#[test]
fn a_message_has_the_text_of_the_chat() {
    let server = Server::usual();
    let message = both(&server, &asked(json!({})));
    let chat = ok(&server, CHAT, &asked(json!({})));
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(
        message["content"],
        json!([{ "type": "text", "text": text }])
    );
    for (name, value) in [
        ("type", json!("message")),
        ("role", json!("assistant")),
        ("stop_reason", json!("end_turn")),
        ("stop_sequence", Value::Null),
    ] {
        assert_eq!(message[name], value, "{name}");
    }
    assert!(
        message["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("msg_"))
    );
    let usage = &chat["usage"];
    assert_eq!(message["usage"]["input_tokens"], usage["prompt_tokens"]);
    assert_eq!(
        message["usage"]["output_tokens"],
        usage["completion_tokens"]
    );

    let events = events(&server, asked(json!({})));
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    let first = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
    ];
    assert_eq!(kinds[..4], first);
    let last = ["content_block_stop", "message_delta", "message_stop"];
    assert_eq!(kinds[kinds.len() - 3..], last);
    let started = &events[0]["message"];
    assert_eq!(started["usage"]["input_tokens"], usage["prompt_tokens"]);
    assert_eq!(started["content"], json!([]));
}

#[test]
fn an_end_has_its_reason() {
    let server = Server::usual();
    let message = both(&server, &asked(json!({ "max_tokens": 1 })));
    assert_eq!(message["stop_reason"], "max_tokens");
    let body = asked(json!({ "stop_sequences": ["x", "", "2"] }));
    let message = both(&server, &body);
    assert_eq!(message["stop_reason"], "stop_sequence", "{message}");
    assert_eq!(message["stop_sequence"], "2");
}

#[test]
fn tools_are_called() {
    let server = Server::usual();
    let tool = |name: &str| {
        json!({
            "name": name,
            "description": "rolls a die",
            "cache_control": { "type": "ephemeral" },
            "input_schema": {
                "type": "object",
                "properties": { "sides": { "enum": [6] } },
                "required": ["sides"],
            },
        })
    };
    for (choice, name) in [
        (
            json!({ "type": "any", "disable_parallel_tool_use": true }),
            "roll",
        ),
        (json!({ "type": "tool", "name": "roll" }), "roll"),
    ] {
        let body = asked(json!({
            "tools": [tool("roll")], "tool_choice": choice, "max_tokens": 200,
        }));
        let message = both(&server, &body);
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let block = &message["content"][0];
        assert_eq!(block["type"], "tool_use");
        assert_eq!(block["name"], name);
        assert_eq!(block["input"], json!({ "sides": 6 }));
        assert_eq!(message["content"].as_array().map(Vec::len), Some(1));
    }
    // the model does not see them
    let without = ok(&server, COUNT, &asked(json!({})));
    let none = asked(json!({ "tools": [tool("roll")], "tool_choice": { "type": "none" } }));
    assert_eq!(ok(&server, COUNT, &none), without);
    let auto = asked(json!({ "tools": [tool("roll")], "tool_choice": { "type": "auto" } }));
    assert!(ok(&server, COUNT, &auto)["input_tokens"].as_u64() > without["input_tokens"].as_u64());
}

#[test]
fn an_answer_has_the_schema_that_is_asked_for() {
    let server = Server::usual();
    let format = json!({ "type": "json_schema", "schema": { "const": { "a": 1 } } });
    for fields in [
        json!({ "output_config": { "format": format, "effort": "low" } }),
        json!({ "output_format": format }),
    ] {
        let mut fields = fields;
        fields["max_tokens"] = json!(60);
        let message = both(&server, &asked(fields));
        assert_eq!(message["content"][0]["text"], "{\"a\": 1}", "{message}");
    }
}

#[test]
fn thoughts_are_blocks_with_a_signature() {
    let template = "{% for m in messages %}<{{ m.role }}>\
        {% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}\
        {% endfor %}{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}\
        {# </think> #}";
    let server = Server::chatting(template);
    let kinds = |thinking: Value| -> Vec<Value> {
        let message = both(
            &server,
            &asked(json!({ "max_tokens": 6, "thinking": thinking })),
        );
        let blocks = message["content"].as_array().expect("blocks").iter();
        blocks.map(|block| block["type"].clone()).collect()
    };
    for thinking in [
        json!({ "type": "enabled", "budget_tokens": 1024 }),
        json!({ "type": "adaptive" }),
        Value::Null,
    ] {
        assert_eq!(kinds(thinking), ["thinking"]);
    }
    assert_eq!(kinds(json!({ "type": "disabled" })), ["text"]);
    let limited = json!({
        "max_tokens": 20, "thinking": { "type": "enabled", "budget_tokens": 2 },
    });
    let message = ok(&server, PATH, &asked(limited));
    assert_eq!(message["content"][1]["type"], "text", "{message}");
    assert_eq!(message["warnings"], Value::Null, "{message}");

    // a thought that is handed back is the template's reasoning_content
    let thought = json!({ "type": "thinking", "thinking": "hm", "signature": "sig" });
    let said = json!({ "type": "text", "text": "yes" });
    let messages = |content: Value| {
        json!([
            { "role": "user", "content": "?" },
            { "role": "assistant", "content": content },
            { "role": "user", "content": "!" },
        ])
    };
    let counted = ok(
        &server,
        COUNT,
        &json!({ "messages": messages(json!([thought, said])) }),
    );
    let mut chat = json!({ "messages": messages(json!("yes")) });
    chat["messages"][1]["reasoning_content"] = json!("hm");
    let expected = ok(&server, "/v1/chat/completions/input_tokens", &chat);
    assert_eq!(counted["input_tokens"], expected["input_tokens"]);
}

#[test]
fn cached_tokens_are_counted_apart() {
    let server = Server::usual();
    let system = |hash: &str| {
        let line = format!(
            "x-anthropic-billing-header: cc_version=2.1.101.{hash}; cc_entrypoint=cli; cch={hash};"
        );
        json!([
            { "type": "text", "text": line },
            {
                "type": "text",
                "text": "You add numbers. ".repeat(40),
                "cache_control": { "type": "ephemeral", "ttl": "1h" },
            },
        ])
    };
    let usage = |hash: &str| {
        let body = asked(json!({ "system": system(hash), "metadata": { "user_id": "a" } }));
        let usage = ok(&server, PATH, &body)["usage"].clone();
        server.idle();
        let number = |name: &str| usage[name].as_u64().expect("a number");
        assert_eq!(number("cache_creation_input_tokens"), 0);
        (number("input_tokens"), number("cache_read_input_tokens"))
    };
    let (first, none) = usage("a51b7");
    assert_eq!(none, 0);
    let (again, cached) = usage("0c3ef");
    assert_eq!(again + cached, first);
    assert!(cached > first - 32, "{cached} of {first}");
    let body = asked(json!({ "system": system("fffff") }));
    assert_eq!(ok(&server, COUNT, &body), json!({ "input_tokens": first }));
    let started = events(&server, body)[0]["message"]["usage"].clone();
    assert_eq!(started["cache_read_input_tokens"], cached);
}
