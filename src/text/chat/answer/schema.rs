//! Parameter types from tools' JSON schemas, for formats that write values without their JSON
//! types.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Schemas examined before a parameter's type counts as unknown.
const MAX_SCHEMAS: usize = 256;
/// Deepest nesting of schemas that is followed.
const MAX_DEPTH: usize = 32;

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const NUMBER: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;

impl Types {
    /// All types: nothing is known.
    pub(super) const ANY: Types =
        Types(NULL | BOOLEAN | INTEGER | NUMBER | STRING | ARRAY | OBJECT);
    /// All types except strings.
    pub(super) const NO_TEXT: Types = Types(NULL | BOOLEAN | INTEGER | NUMBER | ARRAY | OBJECT);
    /// Strings only.
    pub(super) const TEXT: Types = Types(STRING);

    fn named(name: &str) -> Types {
        Types(match name {
            "null" => NULL,
            "boolean" => BOOLEAN,
            "integer" => INTEGER,
            "number" => INTEGER | NUMBER,
            "string" => STRING,
            "array" => ARRAY,
            "object" => OBJECT,
            _ => return Types::ANY,
        })
    }

    fn of_value(value: &Value) -> Types {
        Types(match value {
            Value::Null => NULL,
            Value::Bool(_) => BOOLEAN,
            Value::Number(number) if number.is_f64() => NUMBER,
            Value::Number(_) => INTEGER,
            Value::String(_) => STRING,
            Value::Array(_) => ARRAY,
            Value::Object(_) => OBJECT,
        })
    }

    fn union(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    fn intersection(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    /// Returns whether strings are among the allowed types, but not all types are.
    pub(super) fn may_be_text(self) -> bool {
        self != Types::ANY && self.0 & STRING != 0
    }

    pub(super) fn may_be_array(self) -> bool {
        self.0 & ARRAY != 0
    }

    pub(super) fn may_be_object(self) -> bool {
        self.0 & OBJECT != 0
    }

    /// Returns the JSON of a value written without quotes around texts; `None` if it is a text.
    /// With `is_strict`, a value of unknown type is JSON.
    pub(super) fn json_of(self, written: &str, is_strict: bool) -> Option<&str> {
        if self == Types::TEXT {
            return None;
        }
        let trimmed = written.trim();
        let is_known = self != Types::ANY || is_strict;
        let json = match trimmed {
            "True" if is_known => "true",
            "False" if is_known => "false",
            "None" if is_known => "null",
            other => other,
        };
        let value: Value = serde_json::from_str(json).ok()?;
        let is_taken = match self {
            Types::ANY => is_strict || !value.is_string(),
            // A value that only looks like a number, 3.10 or 007, is a text where one is allowed.
            types if types.may_be_text() => {
                let is_exact = !value.is_number() || value.to_string().as_str() == json;
                let found = Types::of_value(&value).intersection(types);
                !value.is_string() && is_exact && json == trimmed && found.0 != 0
            }
            _ => true,
        };
        is_taken.then_some(json)
    }
}

/// Returns whether a parameter is written as an unquoted text, in a format that has tags around
/// parameters: whether its schema, part of the schema `root` of all of the tool's parameters,
/// allows strings.
pub fn is_written_as_text(schema: &Value, root: &Value) -> bool {
    types(schema, root).may_be_text()
}

/// Returns the types that a schema allows; `root` is the document of its references.
fn types(schema: &Value, root: &Value) -> Types {
    let mut look = Look {
        root,
        budget: MAX_SCHEMAS,
    };
    look.types(schema, 0)
}

struct Look<'r> {
    root: &'r Value,
    /// Schemas that may still be examined.
    budget: usize,
}

impl<'r> Look<'r> {
    fn types(&mut self, schema: &'r Value, depth: usize) -> Types {
        let Value::Object(schema) = schema else {
            return Types::ANY;
        };
        if self.budget == 0 || depth == MAX_DEPTH {
            return Types::ANY;
        }
        self.budget -= 1;
        let found = self.said(schema, depth);
        match found {
            Types::ANY => implied(schema),
            // A schema that allows nothing gives no information.
            Types(0) => Types::ANY,
            found => found,
        }
    }

    /// Returns the types allowed by the keywords for types, values and subschemas together.
    fn said(&mut self, schema: &'r Map<String, Value>, depth: usize) -> Types {
        let mut types = match schema.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .fold(Types(0), |types, name| types.union(Types::named(name))),
            _ => Types::ANY,
        };
        if let Some(value) = schema.get("const") {
            types = types.intersection(Types::of_value(value));
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let all = values.iter().map(Types::of_value);
            types = types.intersection(all.fold(Types(0), Types::union));
        }
        if let Some(target) = self.target(schema) {
            types = types.intersection(self.types(target, depth + 1));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(choices)) = schema.get(keyword) {
                let all = choices.iter().fold(Types(0), |all, choice| {
                    all.union(self.types(choice, depth + 1))
                });
                types = types.intersection(all);
            }
        }
        for part in schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            types = types.intersection(self.types(part, depth + 1));
        }
        types
    }

    /// Returns the target of a schema's reference, in the same document.
    fn target(&self, schema: &Map<String, Value>) -> Option<&'r Value> {
        let reference = schema.get("$ref")?.as_str()?;
        self.root.pointer(reference.strip_prefix('#')?)
    }

    /// Finds the schema of a member of values that `schema` describes, in all its alternatives.
    fn member(&mut self, schema: &'r Value, key: &Key, depth: usize) -> Option<&'r Value> {
        let object = schema.as_object()?;
        if self.budget == 0 || depth == MAX_DEPTH {
            return None;
        }
        self.budget -= 1;
        let own = match key {
            Key::Property(name) => object.get("properties").and_then(|all| all.get(name)),
            Key::Item => object.get("items"),
        };
        if own.is_some() {
            return own;
        }
        if let Some(target) = self.target(object) {
            return self.member(target, key, depth + 1);
        }
        ["anyOf", "oneOf", "allOf"]
            .into_iter()
            .filter_map(|keyword| object.get(keyword)?.as_array())
            .flatten()
            .find_map(|part| self.member(part, key, depth + 1))
    }
}

/// Infers the types from other keywords, for a schema without `type`.
fn implied(schema: &Map<String, Value>) -> Types {
    let has = |keywords: &[&str]| keywords.iter().any(|keyword| schema.contains_key(*keyword));
    if has(&["properties", "additionalProperties", "required"]) {
        Types(OBJECT)
    } else if has(&["items", "prefixItems", "minItems", "maxItems"]) {
        Types(ARRAY)
    } else if has(&["pattern", "minLength", "maxLength"]) {
        Types::TEXT
    } else {
        Types::ANY
    }
}

/// A step of a path into a value.
#[derive(Debug, Clone)]
pub(super) enum Key {
    Property(String),
    Item,
}

/// Tools that a model may call, as far as needed to read their calls.
#[derive(Debug, Default, Clone)]
pub(super) struct Tools {
    parameters: HashMap<String, Value>,
    /// Whether values without a schema are JSON, because a grammar enforces it.
    pub(super) is_strict: bool,
}

impl Tools {
    /// Reads the tools of a request.
    pub(super) fn new(tools: &[Value]) -> Tools {
        let mut parameters = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            if let Some(name) = function.get("name").and_then(Value::as_str) {
                let schema = function.get("parameters").cloned().unwrap_or_default();
                parameters.insert(name.to_owned(), schema);
            }
        }
        Tools {
            parameters,
            is_strict: false,
        }
    }

    /// Returns whether a function may be called: any may if no tools are known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.is_empty() || self.parameters.contains_key(name)
    }

    /// Returns whether a function is one of the known tools.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// Returns the allowed types of a function's parameter, or of a value inside it.
    pub(super) fn types(&self, name: &str, path: &[Key]) -> Types {
        let Some(root) = self.parameters.get(name) else {
            return Types::ANY;
        };
        let mut look = Look {
            root,
            budget: MAX_SCHEMAS,
        };
        let mut schema = root;
        for key in path {
            match look.member(schema, key, 0) {
                Some(found) => schema = found,
                None => return Types::ANY,
            }
        }
        look.types(schema, 0)
    }
}
