//! Custom tools of `/v1/responses`: their calls have a text as input.

use serde_json::{Value, json};

use crate::client::{Server, ok};

const PATH: &str = "/v1/responses";

fn asked(format: Value, choice: Value) -> Value {
    let mut tool = json!({ "type": "custom", "name": "note", "description": "Writes a note." });
    if !format.is_null() {
        tool["format"] = format;
    }
    json!({
        "input": "1+1=", "temperature": 0, "max_output_tokens": 200, "tools": [tool],
        "tool_choice": choice,
    })
}

fn regex(definition: &str) -> Value {
    json!({ "type": "grammar", "syntax": "regex", "definition": definition })
}

fn call(response: &Value) -> &Value {
    let mut items = response["output"].as_array().expect("items").iter();
    let found = items.find(|item| item["type"] == "custom_tool_call");
    found.unwrap_or_else(|| panic!("no call: {response}"))
}

/// Asks for a call, whole and streamed, which must be the same; returns its input.
fn input_of(server: &Server, mut body: Value) -> String {
    let response = ok(server, PATH, &body);
    let whole = call(&response);
    assert_eq!(
        (&whole["name"], &whole["status"]),
        (&json!("note"), &json!("completed"))
    );
    assert_eq!(response["tools"], body["tools"]);
    let input = whole["input"].as_str().expect("a text").to_owned();

    body["stream"] = json!(true);
    let pieces = server.stream(PATH, &body);
    let value = |piece: &String| serde_json::from_str::<Value>(piece).expect("JSON");
    let events: Vec<Value> = pieces.iter().map(value).collect();
    let of = |kind: &str| -> Vec<&Value> {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .collect()
    };
    let deltas = of("response.custom_tool_call_input.delta");
    let deltas = deltas.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), input);
    assert_eq!(
        of("response.custom_tool_call_input.done")[0]["input"],
        json!(input)
    );
    assert!(of("response.function_call_arguments.delta").is_empty());
    let last = events.last().expect("an end");
    assert_eq!(call(&last["response"])["input"], json!(input));
    input
}

#[test]
fn a_call_has_an_input_that_its_format_allows() {
    let server = Server::usual();
    let named = json!({ "type": "custom", "name": "note" });
    for choice in [named, json!("required")] {
        let body = asked(regex(r#"[0-9]{3}-"[a-c]\\x"#), choice.clone());
        let input = input_of(&server, body);
        let digits = input.get(..3).expect("digits");
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{input}");
        let (mark, letter) = (input.get(3..5), input.get(5..6));
        assert_eq!(
            (mark, input.get(6..)),
            (Some("-\""), Some("\\x")),
            "{input}"
        );
        assert!(
            ["a", "b", "c"].contains(&letter.expect("a letter")),
            "{input}"
        );
        let either = input_of(&server, asked(regex("a|bb"), choice));
        assert!(["a", "bb"].contains(&either.as_str()), "{either}");
    }
}

#[test]
fn a_call_and_its_output_are_sent_back() {
    let server = Server::usual();
    let first = ok(&server, PATH, &asked(regex("[a-z]{4}"), json!("required")));
    let made = call(&first);
    let output = |kind: &str| json!({ "type": kind, "call_id": made["call_id"], "output": "done" });
    let mut body = asked(json!({ "type": "text" }), json!("auto"));
    body["input"] = json!([output("custom_tool_call_output")]);
    body["previous_response_id"] = first["id"].clone();
    body["max_output_tokens"] = json!(4);
    let second = ok(&server, PATH, &body);
    // the same prompt as with a function whose argument is the input
    let arguments = json!({ "input": made["input"] }).to_string();
    let mut items = vec![json!({ "role": "user", "content": "1+1=" })];
    let as_function = |item: &Value| match item["type"] == "custom_tool_call" {
        false => item.clone(),
        true => json!({
            "type": "function_call", "call_id": item["call_id"], "name": "note",
            "arguments": arguments,
        }),
    };
    items.extend(
        first["output"]
            .as_array()
            .expect("items")
            .iter()
            .map(as_function),
    );
    items.push(output("function_call_output"));
    body["input"] = json!(items);
    body["previous_response_id"] = Value::Null;
    let expected = ok(&server, PATH, &body);
    assert_eq!(
        second["usage"]["input_tokens"],
        expected["usage"]["input_tokens"]
    );
}

#[test]
fn a_lark_grammar_is_told_and_not_held() {
    let server = Server::usual();
    let lark = json!({ "type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/" });
    let count = |format: Value| {
        let body = asked(format, json!("auto"));
        ok(&server, "/v1/responses/input_tokens", &body)["input_tokens"].clone()
    };
    assert_ne!(count(lark.clone()), count(Value::Null));
    let mut body = asked(lark, json!("auto"));
    body["max_output_tokens"] = json!(2);
    let response = ok(&server, PATH, &body);
    let warning = response["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("tools[0].format.definition: "),
        "{warning}"
    );
}

#[test]
fn wrong_tools_are_named() {
    let server = Server::usual();
    let grammar = |syntax: &str| json!({ "type": "grammar", "syntax": syntax, "definition": "a" });
    for (format, param) in [
        (json!("text"), "tools[0].format"),
        (json!({}), "tools[0].format.type"),
        (json!({ "type": "json" }), "tools[0].format.type"),
        (
            json!({ "type": "grammar", "syntax": "regex" }),
            "tools[0].format.definition",
        ),
        (grammar("gbnf"), "tools[0].format.syntax"),
        (regex("(?=a)b"), "tools"),
        (regex("("), "tools"),
    ] {
        let answer = server.post(PATH, &asked(format.clone(), json!("required")));
        assert_eq!(answer.status, 400, "{format}: {}", answer.text);
        assert!(
            answer.param().starts_with(param),
            "{format}: {}",
            answer.text
        );
    }
    let mut unnamed = asked(Value::Null, json!("auto"));
    unnamed["tools"][0] = json!({ "type": "custom" });
    assert_eq!(server.post(PATH, &unnamed).param(), "tools[0].name");
    let other = json!({ "type": "custom", "name": "other" });
    let answer = server.post(PATH, &asked(Value::Null, other));
    assert_eq!(answer.status, 400, "{}", answer.text);
}
