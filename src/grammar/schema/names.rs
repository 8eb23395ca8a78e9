//! Translates `propertyNames` to keywords the compiler enforces.

use serde_json::{Map, Value};

/// Maximum schemas copied for listed names, over all objects of a schema.
pub(super) const MAX_COPIES: usize = 100;

/// Keywords that do not restrict a name.
const NOTES: [&str; 6] = [
    "$comment",
    "$schema",
    "default",
    "description",
    "examples",
    "title",
];

type Object = Map<String, Value>;

/// Names that `propertyNames` allows.
#[derive(Debug, PartialEq, Eq)]
enum Names {
    Any,
    Listed(Vec<String>),
    Matching(String),
}

/// Replaces an object's `propertyNames`: listed names become properties, a pattern becomes one of
/// `patternProperties`, and the type string is implied. Anything more complex is left in place.
pub(super) fn hold(root: &Value, object: &mut Object, copies: &mut usize) {
    let names = object
        .get("propertyNames")
        .and_then(|names| allowed(root, names));
    let has_patterns = object.contains_key("patternProperties");
    match names {
        Some(Names::Any) => {}
        Some(Names::Listed(listed)) if !has_patterns && listed.len() <= *copies => {
            *copies -= listed.len();
            list(object, listed);
        }
        Some(Names::Matching(pattern)) if !has_patterns => {
            let others = others(object);
            if others != Value::Bool(false) {
                let patterns = Object::from_iter([(pattern, others)]);
                object.insert("patternProperties".to_owned(), Value::Object(patterns));
            }
        }
        _ => return,
    }
    object.remove("propertyNames");
}

fn allowed(root: &Value, names: &Value) -> Option<Names> {
    let names = names.as_object()?;
    let target = names
        .get("$ref")
        .and_then(|path| super::resolve(root, path));
    let names = match target {
        Some(target) if demands(names).eq(["$ref"]) => target.as_object()?,
        _ => names,
    };
    let is_text = match names.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|name| name == "string"),
        Some(name) => name == "string",
    };
    let mut rest = demands(names).filter(|key| *key != "type");
    let only = (rest.next(), rest.next());
    match only {
        _ if !is_text => None,
        (None, _) => Some(Names::Any),
        (Some("const"), None) => Some(Names::Listed(texts(names.get("const")))),
        (Some("enum"), None) => Some(Names::Listed(texts(names.get("enum")?.as_array()?))),
        (Some("pattern"), None) => {
            let pattern = names.get("pattern")?.as_str()?;
            let is_held = super::unheld::unheld_in_pattern(pattern).is_none();
            is_held.then(|| Names::Matching(pattern.to_owned()))
        }
        _ => None,
    }
}

/// Returns the keywords that restrict a name.
fn demands(names: &Object) -> impl Iterator<Item = &str> {
    names
        .keys()
        .map(String::as_str)
        .filter(|key| !NOTES.contains(key))
}

fn texts<'v>(values: impl IntoIterator<Item = &'v Value>) -> Vec<String> {
    let texts = values.into_iter().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Returns the schema of additional properties, and forbids them in the object.
fn others(object: &mut Object) -> Value {
    let is_closed = object.contains_key("properties");
    let others = object.insert("additionalProperties".to_owned(), Value::Bool(false));
    others.unwrap_or(Value::Bool(!is_closed))
}

fn list(object: &mut Object, listed: Vec<String>) {
    let others = others(object);
    let own = object
        .entry("properties")
        .or_insert_with(|| Value::Object(Object::new()));
    let Value::Object(own) = own else {
        return;
    };
    own.retain(|name, _| listed.contains(name));
    if others != Value::Bool(false) {
        for name in listed {
            own.entry(name).or_insert_with(|| others.clone());
        }
    }
}
