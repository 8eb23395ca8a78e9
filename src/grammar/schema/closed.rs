//! Objects have the properties that their schemas name and no others, unless they say otherwise.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// References that are followed in a row.
const MAX_DEPTH: usize = 16;

/// Schemas that may be copied for the places where they meet others, and steps of looking for
/// their properties.
const MAX_COPIES: usize = 200;
const MAX_STEPS: usize = 10_000;

type Object = Map<String, Value>;

/// Closes every object of a schema.
pub(super) fn close(schema: &mut Value) {
    let root = schema.clone();
    let mut closing = Closing {
        root: &root,
        copies: MAX_COPIES,
        steps: MAX_STEPS,
    };
    closing.value(schema);
}

struct Closing<'r> {
    root: &'r Value,
    copies: usize,
    steps: usize,
}

impl Closing<'_> {
    fn value(&mut self, schema: &mut Value) {
        let Value::Object(object) = schema else {
            return;
        };
        if self.meets_others(object) {
            self.group(object);
        } else {
            close_one(object);
        }
        self.inside(object);
    }

    /// Goes on with the schemas inside of one; those of the same value are left alone if they were
    /// closed together with it.
    fn inside(&mut self, object: &mut Object) {
        for (key, value) in object {
            match (key.as_str(), value) {
                ("const" | "enum" | "required" | "type", _) => {}
                (
                    "properties" | "patternProperties" | "$defs" | "definitions",
                    Value::Object(named),
                ) => named.values_mut().for_each(|schema| self.value(schema)),
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                    for schema in list {
                        match schema {
                            Value::Object(inner) if inner.contains_key(OPEN) => {
                                inner.remove(OPEN);
                                self.inside(inner);
                            }
                            schema => self.value(schema),
                        }
                    }
                }
                (_, Value::Array(list)) => list.iter_mut().for_each(|schema| self.value(schema)),
                (_, value) => self.value(value),
            }
        }
    }

    /// Whether other schemas hold for the same value, so that it has the properties of all.
    fn meets_others(&self, object: &Object) -> bool {
        let own = usize::from(object.contains_key("properties"));
        let all = object
            .get("allOf")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let others = ["$ref", "anyOf", "oneOf"];
        let others = others
            .iter()
            .filter(|key| object.contains_key(**key))
            .count();
        own + all + others > 1 && all + others > 0
    }

    /// Closes schemas of one value together: each alone is open, and the names of all are the
    /// properties of the first.
    fn group(&mut self, object: &mut Object) {
        let mut names = BTreeSet::new();
        let mut is_open = false;
        self.names(object, 0, &mut names, &mut is_open);
        if names.is_empty() {
            return;
        }
        if !self.open(object, 0) {
            return;
        }
        if is_open {
            return;
        }
        let own = object.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(own) = own {
            for name in names {
                own.entry(name).or_insert(Value::Bool(true));
            }
        }
        object.insert("additionalProperties".to_owned(), Value::Bool(false));
    }

    /// The properties that schemas of one value name together, and whether one of them says that
    /// there may be others.
    fn names(
        &mut self,
        object: &Object,
        depth: usize,
        names: &mut BTreeSet<String>,
        is_open: &mut bool,
    ) {
        if depth == MAX_DEPTH || self.steps == 0 {
            *is_open = true;
            return;
        }
        self.steps -= 1;
        let properties = object.get("properties").and_then(Value::as_object);
        names.extend(properties.into_iter().flat_map(Map::keys).cloned());
        let required = object.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        names.extend(required.map(str::to_owned));
        let more = object.get("additionalProperties");
        *is_open |= object.contains_key("patternProperties")
            || more.is_some_and(|more| more != &Value::Bool(false));
        let target = object
            .get("$ref")
            .and_then(|path| super::resolve(self.root, path));
        let lists = ["allOf", "anyOf", "oneOf"];
        let lists = lists.iter().filter_map(|key| object.get(*key)?.as_array());
        for inner in target.into_iter().chain(lists.flatten()) {
            if let Value::Object(inner) = inner {
                self.names(inner, depth + 1, names, is_open);
            }
        }
    }

    /// Marks the schemas that hold beside this one, so that none closes it alone. References become
    /// copies, for what they lead to is closed elsewhere. False where that takes too many.
    fn open(&mut self, object: &mut Object, depth: usize) -> bool {
        if depth == MAX_DEPTH || self.copies == 0 {
            return false;
        }
        if object.get("additionalProperties") == Some(&Value::Bool(false)) {
            object.remove("additionalProperties");
        }
        let target = object
            .get("$ref")
            .and_then(|path| super::resolve(self.root, path));
        if let Some(target) = target.filter(|target| target.is_object()) {
            self.copies -= 1;
            let copy = target.clone();
            object.remove("$ref");
            let all = object.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.push(copy);
            }
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            let list = object.get_mut(key).and_then(Value::as_array_mut);
            for inner in list.into_iter().flatten() {
                if let Value::Object(inner) = inner {
                    if !self.open(inner, depth + 1) {
                        return false;
                    }
                    inner.insert(OPEN.to_owned(), Value::Null);
                }
            }
        }
        true
    }
}

/// Marks a schema that was closed together with others. No keyword begins like this, and none that
/// is unknown is left by then.
const OPEN: &str = "x-closed-with-others";

/// Closes an object that no other schema says anything about.
fn close_one(object: &mut Object) {
    let is_object = object.contains_key("properties")
        || object.contains_key("required") && object.get("type") == Some(&json!("object"));
    if !is_object
        || object.contains_key("additionalProperties")
        || object.contains_key("patternProperties")
    {
        return;
    }
    object.insert("additionalProperties".to_owned(), Value::Bool(false));
    let required = object.get("required").and_then(Value::as_array).cloned();
    let own = object.entry("properties").or_insert_with(|| json!({}));
    for name in required.iter().flatten().filter_map(Value::as_str) {
        if let Value::Object(own) = own {
            own.entry(name).or_insert(Value::Bool(true));
        }
    }
}
