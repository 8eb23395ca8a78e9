//! Notations other than JSON: Python literals, and nested elements.

use octavo_text::chat::answer::AnswerParser;
use octavo_text::chat::answer::CallFormat::*;
use serde_json::{Value, json};

use super::{ALL, answer, read, template};

#[test]
fn python_becomes_json() {
    let value_of = |literal: &str| {
        let text = format!("<|tool_call_start|>[f(x={literal})]<|tool_call_end|>");
        let answer = answer(Lfm2, &text);
        let arguments: Value = serde_json::from_str(&answer.calls[0].1)
            .unwrap_or_else(|error| panic!("{literal}: {error}: {}", answer.calls[0].1));
        arguments["x"].clone()
    };
    for (literal, value) in [
        ("1", json!(1)),
        ("-2.5e3", json!(-2500.0)),
        ("1_000", json!(1000)),
        (".5", json!(0.5)),
        ("True", json!(true)),
        ("false", json!(false)),
        ("None", json!(null)),
        ("''", json!("")),
        ("\"it's\"", json!("it's")),
        (
            r"'a\n\'b\' \x41\u00e9\ud83d\ude00\q'",
            json!("a\n'b' Aé😀\\q"),
        ),
        ("\"\"\"a \"b\"\nc\"\"\"", json!("a \"b\"\nc")),
        ("[]", json!([])),
        ("[1, 'a', [2,],]", json!([1, "a", [2]])),
        ("(1, 2)", json!([1, 2])),
        ("{}", json!({})),
        (
            "{'a': 1, \"b\": {'c': None,}}",
            json!({"a": 1, "b": {"c": null}}),
        ),
    ] {
        assert_eq!(value_of(literal), value, "{literal}");
    }
    // An interrupted call is completed.
    for cut in ["x=1, y=[", "x={\"a\"", "x=[1, ", "x=", "x={\"a\": ", ""] {
        let text = format!("<|tool_call_start|>[f({cut}\u{7f}");
        let calls = answer(Lfm2, &text).calls;
        let json: Result<Value, _> = serde_json::from_str(&calls[0].1);
        assert!(json.is_ok(), "{cut}: {}", calls[0].1);
    }
    let cut = answer(Lfm2, "<|tool_call_start|>[f(city='Be");
    assert_eq!(cut.calls[0].1, "{\"city\": \"Be");
}

#[test]
fn elements_become_json() {
    let parameters = json!({"type": "object", "properties": {
        "tags": {"type": "array", "items": {"type": "string"}},
        "entries": {"type": "array", "items": {"type": "object", "properties": {
            "id": {"type": "integer"}, "label": {"type": "string"},
        }}},
        "limit": {"oneOf": [{"type": "integer"}, {"type": "object", "properties": {
            "max": {"type": "integer"},
        }}]},
        "label": {"oneOf": [{"type": "string"}, {"type": "object"}]},
    }});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
    let arguments_of = |inside: &str| {
        let inside = inside.replace('<', "]<]minimax[>[<");
        let text = format!("]<]minimax[>[<invoke name=\"f\">{inside}]<]minimax[>[</invoke>");
        let parser = AnswerParser::new(template(MiniMaxM3), "", ALL).with_tools(&tools);
        let answer = read(parser, [text.as_str()]);
        let arguments: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        arguments
    };
    for (inside, value) in [
        (
            "<tags><item>a</item><item>3.10</item></tags>",
            json!({"tags": ["a", "3.10"]}),
        ),
        ("<tags></tags>", json!({"tags": []})),
        (
            "<entries><item><id>1</id><label>one</label></item></entries>",
            json!({"entries": [{"id": 1, "label": "one"}]}),
        ),
        ("<limit>5</limit>", json!({"limit": 5})),
        (
            "<limit><max>10</max></limit>",
            json!({"limit": {"max": 10}}),
        ),
        ("<other>true</other>", json!({"other": true})),
        ("<other><a>x</a></other>", json!({"other": {"a": "x"}})),
    ] {
        assert_eq!(arguments_of(inside), value, "{inside}");
    }
    let expected = "]]<]minimax[>[<text>hi]<]minimax[>[</text>";
    let found = arguments_of("<label>]<text>hi</text></label>");
    assert_eq!(found, json!({ "label": expected }));
}
