//! Schema keywords: those the compiler enforces, those that do not restrict a text, and those that
//! are ignored.

use serde_json::{Map, Value};

use super::FORMATS;

/// Keywords that the compiler enforces.
const HELD: [&str; 29] = [
    "$defs",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "definitions",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Keywords with demands that no grammar can enforce.
const UNHELD: [&str; 17] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "contentSchema",
];

/// Bounds of this magnitude or more are dropped: the compiler uses 64-bit integers.
const MAX_BOUND: f64 = 1e18;

/// Removes from one schema the keywords that cannot be enforced, and lists them; those without an
/// effect are removed silently.
pub(super) fn remove(object: &mut Map<String, Value>, unheld: &mut Vec<String>) {
    let keys: Vec<String> = object.keys().cloned().collect();
    for key in keys {
        if HELD.contains(&key.as_str()) {
            continue;
        }
        let value = object.remove(&key);
        let demands = match value {
            None | Some(Value::Null | Value::Bool(true)) => key == "uniqueItems",
            Some(Value::Bool(false)) => key.starts_with("unevaluated") || key == "not",
            Some(Value::Object(inner)) => !inner.is_empty() || key == "not",
            Some(_) => true,
        };
        // closed objects already imply `unevaluatedProperties: false`
        let demands = demands && key != "unevaluatedProperties";
        if demands && UNHELD.contains(&key.as_str()) {
            unheld.push(key);
        }
    }
    let format = object.get("format").and_then(Value::as_str);
    if object.contains_key("format") && format.is_none_or(|name| !FORMATS.contains(&name)) {
        object.remove("format");
    }
    let pattern = object.get("pattern").and_then(Value::as_str);
    if let Some(what) = pattern.and_then(unheld_in_pattern) {
        object.remove("pattern");
        unheld.push(format!("pattern with {what}"));
    }
    if let Some(Value::Object(patterns)) = object.get_mut("patternProperties") {
        let n = patterns.len();
        patterns.retain(|pattern, _| unheld_in_pattern(pattern).is_none());
        if patterns.len() < n {
            unheld.push("patternProperties with look-around or back-references".to_owned());
            // properties that match them must remain possible
            object.insert("additionalProperties".to_owned(), Value::Bool(true));
        }
    }
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        let bound = object.get(key).and_then(Value::as_f64);
        if bound.is_some_and(|bound| bound.abs() >= MAX_BOUND) {
            object.remove(key);
            unheld.push(format!("{key} of 64 bits"));
        }
    }
    remove_counts(object, unheld);
}

/// Removes property counts, unless every property is required, or the counts demand exactly one of
/// the optional ones.
fn remove_counts(object: &mut Map<String, Value>, unheld: &mut Vec<String>) {
    let count = |key: &str| object.get(key).and_then(Value::as_u64);
    let (min, max) = (count("minProperties"), count("maxProperties"));
    let required = object.get("required").and_then(Value::as_array);
    let is_required = |name: &String| {
        required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
    };
    let properties = object.get("properties").and_then(Value::as_object);
    let has_optional =
        properties.is_some_and(|properties| properties.keys().any(|name| !is_required(name)));
    let is_one = min.unwrap_or(0) <= 1 && max.unwrap_or(1) == 1;
    let is_open = object.contains_key("patternProperties")
        || object
            .get("additionalProperties")
            .is_some_and(|value| value != &Value::Bool(false));
    if has_optional && (min.is_some() || max.is_some()) && (!is_one || is_open) {
        for key in ["minProperties", "maxProperties"] {
            if object.remove(key).is_some() {
                unheld.push(key.to_owned());
            }
        }
    }
}

/// Returns the feature of a regular expression that is not regular, if there is one.
pub(super) fn unheld_in_pattern(pattern: &str) -> Option<&'static str> {
    let mut chars = pattern.chars();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('1'..='9' | 'k') if !in_class => return Some("back-references"),
                Some('b' | 'B') if !in_class => return Some("word boundaries"),
                _ => {}
            },
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => {
                let rest = chars.as_str();
                let looks = ["?=", "?!", "?<=", "?<!"];
                if looks.iter().any(|look| rest.starts_with(look)) {
                    return Some("look-around");
                }
            }
            _ => {}
        }
    }
    None
}
