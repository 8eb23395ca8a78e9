//! JSON schemas as their compiler takes them.

use serde_json::{Map, Value, json};

/// Formats that the compiler knows; each becomes a pattern.
pub(crate) const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// How JSON is written: without white space of the model's choice, for small models never stop
/// writing it.
pub(crate) fn written() -> Value {
    json!({
        "whitespace_flexible": false,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": true,
    })
}

/// A schema that says so itself.
pub(crate) fn compact(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    simplify(&mut schema);
    if let Value::Object(object) = &mut schema {
        object.insert("x-guidance".to_owned(), written());
    }
    schema
}

/// Leaves out what demands nothing, at any depth, for the compiler refuses what it does not know:
/// names of formats that only tell people something, and `uniqueItems: false`.
pub(crate) fn simplify(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(simplify),
        Value::Object(object) => simplify_object(object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn simplify_object(object: &mut Map<String, Value>) {
    let format = object.get("format").and_then(Value::as_str);
    if format.is_some_and(|name| !FORMATS.contains(&name)) {
        object.remove("format");
    }
    if object.get("uniqueItems") == Some(&Value::Bool(false)) {
        object.remove("uniqueItems");
    }
    for (name, value) in object {
        match (name.as_str(), value) {
            // values, which are no schemas
            ("const" | "enum" | "default" | "examples", _) => {}
            // schemas with names of their own
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => {
                named.values_mut().for_each(simplify);
            }
            (_, value) => simplify(value),
        }
    }
}
