//! Prepares JSON schemas for the grammar compiler.

mod closed;
mod names;
mod unheld;

use serde_json::{Map, Value, json};

/// Values of `format` the compiler supports; each becomes a pattern.
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

/// Returns the JSON style: fixed separators and no free white space, because small models otherwise
/// generate it endlessly.
pub(crate) fn written() -> Value {
    json!({
        "whitespace_flexible": false,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": true,
    })
}

/// A schema prepared for the compiler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) schema: Value,
    /// The same without the style settings, for the limits.
    pub(crate) checked: Value,
    /// Demands that cannot be enforced, each with its path.
    pub(crate) unheld: Vec<String>,
}

/// Prepares a schema for the compiler: objects are closed, integers have one spelling, and keywords
/// that cannot be enforced are removed.
pub(crate) fn prepare(schema: &Value) -> Prepared {
    let mut prepared = Prepared {
        schema: schema.clone(),
        ..Prepared::default()
    };
    let mut references = Vec::new();
    let mut copies = names::MAX_COPIES;
    visit(&mut prepared.schema, "", &mut |object, path| {
        let mut found = Vec::new();
        take_reference(schema, object, &mut references, &mut found);
        names::hold(schema, object, &mut copies);
        unheld::remove(object, &mut found);
        let place = if path.is_empty() { "/" } else { path };
        prepared
            .unheld
            .extend(found.into_iter().map(|what| format!("{what} at {place}")));
    });
    add_references(schema, &mut prepared, references, &mut copies);
    closed::close(&mut prepared.schema);
    prepared.checked = prepared.schema.clone();
    visit(&mut prepared.schema, "", &mut |object, _| {
        split_integers(object)
    });
    prepared
}

/// Returns the schema with the JSON style added.
pub(crate) fn compact(schema: Value) -> Value {
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(false) => Map::from_iter([("enum".to_owned(), json!([]))]),
        _ => Map::new(),
    };
    object.insert("x-guidance".to_owned(), written());
    Value::Object(object)
}

/// Returns the target of a reference inside a schema.
pub(crate) fn resolve<'r>(root: &'r Value, reference: &Value) -> Option<&'r Value> {
    let path = reference.as_str()?.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(root);
    }
    match root.pointer(path) {
        Some(found) => Some(found),
        None => root.pointer(&decoded(path)),
    }
}

/// Percent-decodes a path.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Renames references that the compiler cannot read; skips those to other documents.
fn take_reference(
    root: &Value,
    object: &mut Map<String, Value>,
    references: &mut Vec<String>,
    unheld: &mut Vec<String>,
) {
    let Some(reference) = object
        .get("$ref")
        .and_then(Value::as_str)
        .map(str::to_owned)
    else {
        return;
    };
    if !reference.starts_with('#') || reference.len() > 1 && !reference.starts_with("#/") {
        object.remove("$ref");
        unheld.push(format!("$ref {}", shortened(&reference)));
        return;
    }
    let is_plain = !reference.contains(['~', '%']);
    if is_plain || resolve(root, &json!(reference)).is_none() {
        return;
    }
    let known = references.iter().position(|known| *known == reference);
    let i = known.unwrap_or_else(|| {
        references.push(reference);
        references.len() - 1
    });
    object.insert("$ref".to_owned(), json!(format!("#/$defs/{REFERENCE}{i}")));
}

/// Prefix of renamed definitions; no other definition has it.
const REFERENCE: &str = "x-reference-";

fn add_references(
    root: &Value,
    prepared: &mut Prepared,
    references: Vec<String>,
    copies: &mut usize,
) {
    let mut all = references;
    let mut i = 0;
    // their targets may have further references
    while let Some(reference) = all.get(i).cloned() {
        let mut target = resolve(root, &json!(reference))
            .cloned()
            .unwrap_or_default();
        let mut unheld = Vec::new();
        visit(&mut target, "", &mut |object, _| {
            take_reference(root, object, &mut all, &mut unheld);
            names::hold(root, object, copies);
            unheld::remove(object, &mut Vec::new());
        });
        if let Value::Object(object) = &mut prepared.schema {
            let definitions = object.entry("$defs").or_insert_with(|| json!({}));
            if let Value::Object(definitions) = definitions {
                definitions.insert(format!("{REFERENCE}{i}"), target);
            }
        }
        i += 1;
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// Visits every schema in a value, with its path, the outer ones first.
fn visit(schema: &mut Value, path: &str, act: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    let Value::Object(object) = schema else {
        return;
    };
    act(object, path);
    for (key, value) in object {
        let path = || format!("{path}/{key}");
        match (key.as_str(), value) {
            // plain values, not schemas
            ("const" | "enum" | "required" | "type", _) => {}
            // schemas under arbitrary names
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => {
                for (name, value) in named {
                    visit(value, &format!("{}/{name}", path()), act);
                }
            }
            (_, Value::Array(list)) => {
                for (i, value) in list.iter_mut().enumerate() {
                    visit(value, &format!("{}/{i}", path()), act);
                }
            }
            (_, value) => visit(value, &path(), act),
        }
    }
}

/// Keywords that apply to numbers only.
const OF_NUMBERS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Splits integer ranges that include both signs in two, because the compiler would allow `-0`.
fn split_integers(object: &mut Map<String, Value>) {
    let is_integer = object.get("type") == Some(&json!("integer"));
    let others = [
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "const",
        "enum",
        "multipleOf",
    ];
    if !is_integer || others.iter().any(|key| object.contains_key(*key)) {
        return;
    }
    let bound = |key: &str| object.get(key).and_then(Value::as_f64);
    let lowest = [
        bound("minimum"),
        bound("exclusiveMinimum").map(|bound| bound + 1.0),
    ];
    let highest = [
        bound("maximum"),
        bound("exclusiveMaximum").map(|bound| bound - 1.0),
    ];
    let reaches_below = lowest.iter().flatten().all(|bound| *bound < 0.0);
    let reaches_above = highest.iter().flatten().all(|bound| *bound >= 0.0);
    let is_old = ["exclusiveMinimum", "exclusiveMaximum"]
        .iter()
        .any(|key| object.get(*key).is_some_and(Value::is_boolean));
    if is_old || !reaches_below || !reaches_above {
        return;
    }
    let mut all = Map::from_iter([("type".to_owned(), json!("integer"))]);
    for key in OF_NUMBERS {
        if let Some(value) = object.remove(key) {
            all.insert(key.to_owned(), value);
        }
    }
    object.remove("type");
    let with = |drop: [&str; 2], key: &str, bound: i64| {
        let mut part = all.clone();
        drop.iter().for_each(|key| {
            part.remove(*key);
        });
        part.insert(key.to_owned(), json!(bound));
        Value::Object(part)
    };
    let parts = vec![
        with(["minimum", "exclusiveMinimum"], "minimum", 0),
        with(["maximum", "exclusiveMaximum"], "maximum", -1),
    ];
    object.insert("anyOf".to_owned(), Value::Array(parts));
}

/// Returns the schema of one parameter, with the definitions it may refer to.
pub(crate) fn alone(schema: &Value, root: &Value) -> Value {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        other => return other.clone(),
    };
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            object.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(object)
}
