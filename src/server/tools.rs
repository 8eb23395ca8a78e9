//! Calls of tools that must happen, as grammars in the format that the model's template shows.

use octavo_text::chat::answer::CallFormat;
use serde_json::{Map, Value, json};

use crate::grammar::Rule;
use crate::routes::conversation::tool_name;
use crate::schema::{simplify, written};

/// A grammar of one call of one of these tools and nothing else.
pub(crate) fn call(format: CallFormat, tools: &[&Value]) -> Rule {
    let mut start = Vec::new();
    let mut rules = String::new();
    let mut schemas = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        start.push(format!("call_{i}"));
        let mut parameters = tool["function"]["parameters"].clone();
        simplify(&mut parameters);
        let schema = schema(&parameters);
        let name = tool_name(tool);
        rules.push_str(&match (format.around(name), format.around_tags(name)) {
            (Some((before, after)), _) => {
                let (before, after) = (json!(before), json!(after));
                format!("call_{i}: {before} args_{i} {after}\nargs_{i}: %json {schema}\n")
            }
            (None, around) => {
                let (before, after) = around.unwrap_or_default();
                tagged(format, i, (&before, &after), &parameters)
            }
        });
        schemas.push(parameters);
    }
    Rule::Call {
        grammar: format!("start: {}\n{rules}", start.join(" | ")),
        schemas,
    }
}

/// The arguments of a call: an object, written without white space of the model's choice.
fn schema(parameters: &Value) -> Value {
    let mut object = match parameters {
        Value::Object(object) if !object.is_empty() => object.clone(),
        // a tool that says nothing of parameters has none
        _ => Map::from_iter([("properties".to_owned(), json!({}))]),
    };
    object.entry("type").or_insert(json!("object"));
    // a call has the parameters that the tool has
    if object.contains_key("properties") {
        object.entry("additionalProperties").or_insert(json!(false));
    }
    object.insert("x-guidance".to_owned(), written());
    Value::Object(object)
}

/// A call with tags for each parameter, in the order of the schema and each at most once.
fn tagged(format: CallFormat, i: usize, around: (&str, &str), parameters: &Value) -> String {
    let required = parameters["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|names| names.iter().any(|n| n == key));
    let mut body = String::new();
    let mut rules = String::new();
    let properties = parameters["properties"].as_object();
    for (k, (key, schema)) in properties.into_iter().flatten().enumerate() {
        let mark = if is_required(key) { "" } else { "?" };
        let is_text = schema["type"] == "string";
        let (before, after) = format.around_value(key, is_text);
        let (before, after) = (json!(before), json!(after));
        let value = match is_text {
            true => text(schema),
            false => format!("%json {}", alone(schema, parameters)),
        };
        body.push_str(&format!(" param_{i}_{k}{mark}"));
        rules.push_str(&format!("param_{i}_{k}: {before} value_{i}_{k} {after}\n"));
        rules.push_str(&format!("value_{i}_{k}: {value}\n"));
    }
    let (open, close) = (json!(around.0), json!(around.1));
    format!("call_{i}: {open}{body} {close}\n{rules}")
}

/// A text as it stands between tags: without quotes, so that its schema says no more of it than
/// which texts there are.
fn text(schema: &Value) -> String {
    let one = schema.get("const").map(std::slice::from_ref);
    let several = schema["enum"].as_array().map(Vec::as_slice);
    match one.or(several) {
        None => "/[^<]*/".to_owned(),
        Some(values) => {
            let texts = values.iter().filter(|value| value.is_string());
            let texts: Vec<String> = texts.map(Value::to_string).collect();
            texts.join(" | ")
        }
    }
}

/// The schema of one parameter, with the definitions that it may refer to.
fn alone(schema: &Value, parameters: &Value) -> Value {
    let Value::Object(object) = schema else {
        return schema.clone();
    };
    let mut object = object.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = parameters.get(name) {
            object.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    object.insert("x-guidance".to_owned(), written());
    Value::Object(object)
}
