//! Values that formats write without their JSON types.

use octavo_text::chat::answer::AnswerParser;
use octavo_text::chat::answer::CallFormat::*;
use serde_json::{Value, json};

use super::{ALL, answer, read, template};

#[test]
fn values_in_tags_become_json() {
    let read = |value: &str, key: &str| {
        let text = format!("<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>");
        let answer = answer(FunctionTag, &text);
        let arguments: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        arguments[key].to_string()
    };
    // The schema gives the type.
    assert_eq!(read("5", "city"), "\"5\"");
    assert_eq!(read("5", "days"), "5");
    assert_eq!(read("True", "exact"), "true");
    assert_eq!(read("five", "days"), "\"five\"");
    assert_eq!(
        read("a\n\"b\"\\\n</param\n", "city"),
        r#""a\n\"b\"\\\n</param\n""#
    );
    assert_eq!(read("", "city"), "\"\"");
    // No schema gives the type.
    assert_eq!(read("5", "other"), "5");
    assert_eq!(read("{\"a\": [1]}", "other"), "{\"a\":[1]}");
    assert_eq!(read("\"5\"", "other"), r#""\"5\"""#);
    assert_eq!(read("True", "other"), "\"True\"");
}

/// Parses the value of the parameter `x` with a schema, as Qwen3-Coder writes it.
fn typed(schema: Value, value: &str) -> Value {
    let parameters = json!({
        "type": "object",
        "$defs": {"Code": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {"x": schema},
    });
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
    let text = format!("<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>");
    let new = || AnswerParser::new(template(FunctionTag), "", ALL).with_tools(&tools);
    let answer = read(new(), [text.as_str()]);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(answer, read(new(), characters.iter().map(String::as_str)));
    let arguments: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
    arguments["x"].clone()
}

#[test]
fn values_follow_their_schema() {
    let texts = [
        json!({"type": "string"}),
        json!({"type": ["string", "null"]}),
        json!({"type": ["null", "string"]}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Code"}]}),
        json!({"$ref": "#/$defs/Code"}),
        json!({"allOf": [{"$ref": "#/$defs/Code"}, {"minLength": 1}]}),
        json!({"enum": ["3.10", "12345", "{\"a\": 1}", "true"]}),
        json!({"enum": ["3.10", null]}),
        json!({"const": "3.10"}),
        json!({"pattern": "^.*$"}),
    ];
    for schema in texts {
        for text in ["3.10", "12345", "{\"a\": 1}", "true", "[]", "\"q\"", "True"] {
            assert_eq!(typed(schema.clone(), text), text, "{schema}");
        }
    }
    let nullable = json!({"type": ["string", "null"]});
    assert_eq!(typed(nullable, "null"), Value::Null);
    // A value that only looks like a number is a text where one is allowed; a number is not.
    let either = json!({"type": ["string", "integer"]});
    assert_eq!(typed(either.clone(), "42"), 42);
    for text in ["2 dollars", "007", "4.0", "true", "null", "{}"] {
        assert_eq!(typed(either.clone(), text), text);
    }
    let either = json!({"type": ["string", "number"]});
    assert_eq!(typed(either.clone(), "3.10"), "3.10");
    assert_eq!(typed(either, "3.1"), 3.1);
    let either = json!({"type": ["string", "object"]});
    assert_eq!(typed(either.clone(), "{\"a\": 1}"), json!({"a": 1}));
    assert_eq!(typed(either, "{not JSON"), "{not JSON");
    let count = json!({"type": ["integer", "null"]});
    assert_eq!(typed(count, "None"), Value::Null);
    let object = json!({"properties": {}});
    assert_eq!(typed(object, "{\"a\": 1}"), json!({"a": 1}));
}

#[test]
fn references_are_followed_within_bounds() {
    // A dangling or circular reference gives no information.
    for schema in [
        json!({"$ref": "#/$defs/Loop"}),
        json!({"$ref": "#/$defs/None"}),
        json!({"$ref": "https://example.org/schema"}),
        json!(true),
        json!(5),
        json!({"type": 5, "enum": 5, "anyOf": 5}),
    ] {
        assert_eq!(typed(schema.clone(), "5"), 5, "{schema}");
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..12 {
        deep = json!({"anyOf": [deep.clone(), deep]});
    }
    assert_eq!(typed(deep, "5"), 5);
}

#[test]
fn the_last_line_break_of_a_text_stays() {
    for (format, text) in [
        (
            FunctionTag,
            "<function=f>\n<parameter=city>\n\na\n\n</parameter>\n</function>",
        ),
        (
            SeedTag,
            "<function=f>\n<parameter=city>\na\n</parameter>\n</function>",
        ),
        (
            ArgKey,
            "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>\na\n</arg_value>\n</tool_call>",
        ),
        (
            Invoke,
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">\na\n</parameter>\n\
             </invoke>\n</minimax:tool_call>",
        ),
        (
            Dsml,
            "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"city\" string=\"true\">\na\n\
             </｜DSML｜parameter>\n</｜DSML｜invoke>",
        ),
        (
            ParamTag,
            "<function name=\"f\"><param name=\"city\">\na\n</param></function>",
        ),
        (
            ParamTag,
            "<function name=\"f\"><param name=\"city\"><![CDATA[\na\n]]></param></function>",
        ),
        (
            KimiK3,
            "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"city\" \
             type=\"string\"<|sep|>\na\n<|close|>argument<|sep|><|close|>call<|sep|>",
        ),
        (
            MiniMaxM3,
            "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>\na\n]<]minimax[>[</city>\
             ]<]minimax[>[</invoke>",
        ),
    ] {
        let answer = answer(format, text);
        let found: Value = serde_json::from_str(&answer.calls[0].1).expect("JSON");
        assert_eq!(found, json!({"city": "\na\n"}), "{format:?}");
    }
    // A text in CDATA may contain another end tag.
    let text = "<function name=\"f\"><param name=\"city\"><![CDATA[a</param>]]></param></function>";
    let calls = answer(ParamTag, text).calls;
    assert_eq!(calls[0].1, "{\"city\": \"a</param>\"}");
}
