//! Errors of Anthropic's interface, and its images.

use octavo_server::Options;
use serde_json::{Value, json};

use super::{CHAT, COUNT, PATH, asked, ok};
use crate::client::{Answer, Server, read, small};
use crate::images::{self, image_path, seeing};

/// Asserts the form of an error, and returns its type and its message.
fn error(answer: &Answer, status: u16) -> (String, String) {
    assert_eq!(answer.status, status, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["type"], "error");
    let id = body["request_id"].as_str().expect("an id");
    assert!(
        answer.head.contains(&format!("\r\nRequest-Id: {id}\r\n")),
        "{}",
        answer.head
    );
    let text = |name: &str| body["error"][name].as_str().expect("text").to_owned();
    (text("type"), text("message"))
}

#[test]
fn errors_have_anthropics_form() {
    let options = Options {
        keys: vec!["right".to_owned()],
        strict_model: true,
        ..Options::default()
    };
    let server = Server::new(small(), options);
    let ask = |method: &str, path: &str, headers: &str, body: &Value| {
        let headers =
            format!("{headers}anthropic-version: 2023-06-01\r\nanthropic-beta: a-2025-01-01,b\r\n");
        let path = format!("{path}?beta=true");
        read(server.send(method, &path, &headers, body.to_string().as_bytes()))
    };
    let key = "x-api-key: right\r\n";
    for (answer, status, kind) in [
        (
            ask("POST", PATH, "", &asked(json!({}))),
            401,
            "authentication_error",
        ),
        (
            ask("POST", COUNT, "x-api-key: wrong\r\n", &json!({})),
            401,
            "authentication_error",
        ),
        (
            ask("POST", PATH, key, &asked(json!({ "model": "other" }))),
            404,
            "not_found_error",
        ),
        (
            ask("POST", PATH, key, &json!([])),
            400,
            "invalid_request_error",
        ),
        (
            ask("GET", PATH, key, &json!({})),
            405,
            "invalid_request_error",
        ),
        (
            ask("POST", PATH, key, &json!("x".repeat(9 << 20))),
            413,
            "request_too_large",
        ),
    ] {
        assert_eq!(error(&answer, status).0, kind);
    }
    for headers in [key, "authorization: Bearer right\r\n"] {
        assert_eq!(ask("POST", PATH, headers, &asked(json!({}))).status, 200);
    }
    let long = asked(json!({ "messages": [{ "role": "user", "content": "1+1=".repeat(9000) }] }));
    let (kind, message) = error(&ask("POST", PATH, key, &long), 400);
    assert_eq!(kind, "invalid_request_error");
    assert!(message.starts_with("prompt is too long: "), "{message}");
}

#[test]
fn errors_name_the_fields_that_were_sent() {
    let server = Server::usual();
    let said = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let tool = json!({ "name": "a b", "input_schema": {} });
    let search = json!({ "type": "web_search_20250305", "name": "web_search" });
    let schema = json!({ "type": "json_schema", "schema": { "multipleOf": 99991 } });
    let png = json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" });
    let image = json!([{ "type": "image", "source": png }]);
    let result = json!([{ "type": "tool_result", "tool_use_id": "1", "content": image }]);
    for (field, more) in [
        ("messages", json!({ "messages": [] })),
        (
            "messages[0].role",
            json!({ "messages": [{ "role": "tool", "content": "a" }] }),
        ),
        ("messages[0].content", said(json!(1))),
        (
            "messages[0].content[0].type",
            said(json!([{ "type": "document" }])),
        ),
        (
            "messages[0].content[0].text",
            said(json!([{ "type": "text" }])),
        ),
        ("messages[0].content[0].type", said(image)),
        ("messages[0].content[0].content[0].type", said(result)),
        ("system[0].type", json!({ "system": [{ "type": "image" }] })),
        ("tools[0].type", json!({ "tools": [search] })),
        ("tools[0].name", json!({ "tools": [tool] })),
        (
            "tools[0].input_schema",
            json!({ "tools": [{ "name": "f" }] }),
        ),
        (
            "tool_choice.type",
            json!({ "tool_choice": { "type": "required" } }),
        ),
        ("tool_choice", json!({ "tool_choice": { "type": "any" } })),
        (
            "tool_choice.name",
            json!({ "tool_choice": { "type": "tool", "name": "f" } }),
        ),
        ("stop_sequences", json!({ "stop_sequences": [1] })),
        ("max_tokens", json!({ "max_tokens": 0 })),
        ("metadata", json!({ "metadata": 1 })),
        ("mcp_servers", json!({ "mcp_servers": [{ "type": "url" }] })),
        (
            "thinking.type",
            json!({ "thinking": { "type": "sometimes" } }),
        ),
        (
            "output_config.format",
            json!({ "output_config": { "format": schema } }),
        ),
        ("output_format", json!({ "output_format": schema })),
    ] {
        let answer = server.post(PATH, &asked(more));
        let (kind, message) = error(&answer, 400);
        assert_eq!(kind, "invalid_request_error");
        assert!(
            message.starts_with(&format!("{field}: ")),
            "{field}: {message}"
        );
    }
}

#[test]
fn images_are_seen_in_messages_and_in_results() {
    use base64::Engine as _;
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    let data = std::fs::read(image_path("wide")).expect("a file");
    let data = base64::engine::general_purpose::STANDARD.encode(data);
    let image = |data: &str| {
        let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
        json!({ "type": "image", "source": source })
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let parts = json!([text("What is in "), image(&data), text("?")]);
    let body = asked(json!({ "messages": [{ "role": "user", "content": parts }] }));
    let message = ok(&server, PATH, &body);
    let question = vec![
        images::text("What is in "),
        images::image("wide"),
        images::text("?"),
    ];
    let chat = ok(
        &server,
        CHAT,
        &asked(json!({
            "messages": [{ "role": "user", "content": question }],
        })),
    );
    assert_eq!(
        message["content"][0]["text"],
        chat["choices"][0]["message"]["content"]
    );
    let counted = ok(&server, COUNT, &body);
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"]);
    let result = |data: &str| {
        let content = json!([text("it is"), image(data)]);
        let call = json!({ "type": "tool_use", "id": "1", "name": "look", "input": {} });
        let result = json!({ "type": "tool_result", "tool_use_id": "1", "content": content });
        json!([
            { "role": "user", "content": "?" },
            { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] },
        ])
    };
    ok(&server, PATH, &asked(json!({ "messages": result(&data) })));
    let bad = server.post(PATH, &asked(json!({ "messages": result("AAAA") })));
    let (_, message) = error(&bad, 400);
    let field = "messages[2].content[0].content[1].source: ";
    assert!(message.starts_with(field), "{message}");
    let url = json!({ "type": "url", "url": "https://example.org/a.png" });
    let url = json!([{ "type": "image", "source": url }]);
    let body = asked(json!({ "messages": [{ "role": "user", "content": url }] }));
    let (_, message) = error(&server.post(PATH, &body), 400);
    assert!(
        message.starts_with("messages[0].content[0].source: "),
        "{message}"
    );
}
