//! Closes objects: they have only the properties that their schemas name, unless these allow others
//! explicitly.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Maximum depth of references.
const MAX_DEPTH: usize = 16;

/// Maximum schemas copied for the places where they combine with others, and steps of the search
/// for their properties.
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

    /// Closes the schemas nested in an object; schemas of the same value are skipped if they were
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

    /// Returns whether several schemas apply to the value, so that it has the properties of all.
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

    /// Closes schemas of one value together: each alone stays open, and the first lists the names
    /// of all as its properties.
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

    /// Collects the properties that schemas of one value name, and whether one of them allows
    /// others.
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

    /// Marks the schemas that apply beside this one, so that none is closed alone. References
    /// become copies, because their targets are closed elsewhere. Returns false if that takes too
    /// many copies.
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

/// Marks a schema that was closed together with others. No known keyword has this prefix, and
/// unknown ones have been removed by then.
const OPEN: &str = "x-closed-with-others";

/// Closes an object that no other schema applies to.
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
