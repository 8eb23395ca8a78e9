//! Calls of tools that must happen, as grammars in the format that the model's template shows.

use octavo_text::chat::answer::CallFormat;
use serde_json::{Map, Value, json};

use crate::grammar::{Rule, written};
use crate::routes::conversation::tool_name;

/// A grammar of one call of one of these tools and nothing else.
pub(crate) fn call(format: CallFormat, tools: &[&Value]) -> Rule {
    let mut start = Vec::new();
    let mut rules = String::new();
    for (i, tool) in tools.iter().enumerate() {
        start.push(format!("call_{i}"));
        let parameters = match &tool["function"]["parameters"] {
            Value::Object(object) => object.clone(),
            _ => Map::new(),
        };
        rules.push_str(&match format.around(tool_name(tool)) {
            Some((before, after)) => {
                let schema = schema(parameters);
                let (before, after) = (json!(before), json!(after));
                format!("call_{i}: {before} args_{i} {after}\nargs_{i}: %json {schema}\n")
            }
            None => tagged(i, tool_name(tool), &parameters),
        });
    }
    let parameters = tools
        .iter()
        .map(|tool| tool["function"]["parameters"].clone());
    Rule::Call {
        grammar: format!("start: {}\n{rules}", start.join(" | ")),
        schemas: parameters.collect(),
    }
}

/// The arguments of a call: an object, written without white space of the model's choice.
fn schema(mut parameters: Map<String, Value>) -> Value {
    parameters.entry("type").or_insert(json!("object"));
    // a call has the parameters that the tool has
    if parameters.contains_key("properties") {
        parameters
            .entry("additionalProperties")
            .or_insert(json!(false));
    }
    parameters.insert("x-guidance".to_owned(), written());
    Value::Object(parameters)
}

/// A call with a tag for each parameter, the required ones first and each at most once.
fn tagged(i: usize, name: &str, parameters: &Map<String, Value>) -> String {
    let required: Vec<&str> = parameters
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let none = Map::new();
    let properties = parameters
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&none);
    let mut body = String::new();
    let mut rules = String::new();
    for (k, (key, schema)) in properties.iter().enumerate() {
        let mark = if required.contains(&key.as_str()) {
            ""
        } else {
            "?"
        };
        let (before, after) = (
            json!(format!("<parameter={key}>\n")),
            json!("\n</parameter>\n"),
        );
        let is_text = schema["type"] == "string" && schema.get("enum").is_none();
        let value = if is_text {
            "/[^<]*/".to_owned()
        } else {
            format!("%json {schema}")
        };
        body.push_str(&format!(" param_{i}_{k}{mark}"));
        rules.push_str(&format!("param_{i}_{k}: {before} value_{i}_{k} {after}\n"));
        rules.push_str(&format!("value_{i}_{k}: {value}\n"));
    }
    let (open, close) = (
        json!(format!("<tool_call>\n<function={name}>\n")),
        json!("</function>\n</tool_call>"),
    );
    format!("call_{i}: {open}{body} {close}\n{rules}")
}
