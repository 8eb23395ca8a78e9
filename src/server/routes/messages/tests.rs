//! Requests and the chat requests that they become.

use serde_json::{Value, json};

use super::chat_request;
use crate::fields::Fields;

fn converted(body: &Value) -> Value {
    let fields = Fields::of(body).expect("an object");
    let (chat, _) = chat_request(&fields).expect("a sound request");
    chat
}

#[test]
fn the_blocks_of_a_message_are_messages_of_a_chat() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let image = |source: Value| json!({ "type": "image", "source": source });
    let data = json!({ "type": "base64", "media_type": "image/png", "data": "AQID" });
    let call =
        |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": { "a": [1] } });
    let result = |id: &str, content: Value, is_error: bool| {
        json!({
            "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error,
        })
    };
    let body = json!({
        "system": [text("Be brief."), text("Be kind.")],
        "messages": [
            { "role": "user", "content": [text("?")] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "thinking", "thinking": "so", "signature": "t" },
                text("I look."),
                call("1"),
                call("2"),
            ] },
            { "role": "user", "content": [
                result("1", json!("gone"), true),
                result("2", json!([image(data)]), true),
                result("3", Value::Null, false),
                text("And?"),
                image(json!({ "type": "url", "url": "https://example.org/a.png" })),
            ] },
            { "role": "system", "content": "Hurry." },
            { "role": "assistant", "content": "It is" },
        ],
    });
    let chat_call = |id: &str| {
        let function = json!({ "name": "f", "arguments": { "a": [1] } });
        json!({ "id": id, "type": "function", "function": function })
    };
    let url = |url: &str| json!({ "type": "image_url", "image_url": url });
    let answered = |id: &str, content: Value| {
        json!({
            "role": "tool", "tool_call_id": id, "content": content,
        })
    };
    let expected = json!([
        { "role": "system", "content": [text("Be brief."), text("Be kind.")] },
        { "role": "user", "content": "?" },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm\nso",
            "tool_calls": [chat_call("1"), chat_call("2")],
        },
        answered("1", json!("Error: gone")),
        answered("2", json!([text("Error:"), url("data:image/png;base64,AQID")])),
        answered("3", json!("")),
        { "role": "user", "content": [text("And?"), url("https://example.org/a.png")] },
        { "role": "system", "content": "Hurry." },
        { "role": "assistant", "content": "It is" },
    ]);
    assert_eq!(converted(&body)["messages"], expected);
}

#[test]
fn settings_have_their_names_in_a_chat() {
    let schema = json!({ "type": "object" });
    let body = json!({
        "model": "m",
        "system": "x-anthropic-billing-header: cc_version=1; cch=a51b7;",
        "messages": [{ "role": "user", "content": "a" }],
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stream": true,
        "stop_sequences": ["x"],
        "metadata": { "user_id": "u" },
        "service_tier": "auto",
        "thinking": { "type": "disabled" },
        "tools": [{ "type": "custom", "name": "f", "input_schema": schema, "strict": true }],
        "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
        "output_config": {
            "effort": "high",
            "format": { "type": "json_schema", "schema": schema },
        },
    });
    let function = json!({ "name": "f", "parameters": schema, "strict": true });
    let expected = json!({
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "stream": true,
        "top_k": 7,
        "max_tokens": 5,
        "messages": [{ "role": "user", "content": "a" }],
        "stop": ["x"],
        "tools": [{ "type": "function", "function": function }],
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "parallel_tool_calls": false,
        "enable_thinking": false,
        "reasoning_effort": "high",
        "response_format": { "type": "json_schema", "json_schema": { "schema": schema } },
    });
    assert_eq!(converted(&body), expected);
}
