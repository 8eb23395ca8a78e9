//! Tool-call arguments in notations other than JSON: Gemma 4's, and Python's.

use octavo_text::chat::answer::CallFormat;
use serde_json::{Map, Value, json};

use crate::schema::{alone, compact, resolve};
use crate::vocabulary::{Vocabulary, quoted};

/// Maximum depth of schemas with rules; deeper values are unrestricted.
const MAX_DEPTH: usize = 12;

/// Maximum rules of one parameter.
const MAX_RULES: usize = 500;

/// Notation of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// `{a:<|"|>text<|"|>,b:[1,true,null]}`.
    Gemma,
    /// `{"a": "text", "b": [1, True, None]}`.
    Python,
}

/// Returns the notation of a format's values, if it is not JSON.
pub(crate) fn of(format: CallFormat) -> Option<Notation> {
    match format {
        CallFormat::Gemma => Some(Notation::Gemma),
        CallFormat::Pythonic | CallFormat::Lfm2 => Some(Notation::Python),
        _ => None,
    }
}

/// Builder of value rules.
pub(crate) struct Writer<'a> {
    notation: Notation,
    vocabulary: &'a Vocabulary,
    root: &'a Value,
    prefix: String,
    n_rules: usize,
    rules: String,
    has_any: bool,
}

impl<'a> Writer<'a> {
    /// Creates a builder for the value of one parameter of one tool.
    pub(crate) fn new(
        notation: Notation,
        vocabulary: &'a Vocabulary,
        root: &'a Value,
        (tool, parameter): (usize, usize),
    ) -> Writer<'a> {
        Writer {
            notation,
            vocabulary,
            root,
            prefix: format!("value_{tool}_{parameter}"),
            n_rules: 0,
            rules: String::new(),
            has_any: false,
        }
    }

    /// Returns the rules built.
    pub(crate) fn finish(self) -> String {
        self.rules
    }

    /// Returns the rule of a schema's value.
    pub(crate) fn value(&mut self, schema: &Value) -> String {
        self.inner(schema, 0)
    }

    fn inner(&mut self, schema: &Value, depth: usize) -> String {
        let Value::Object(object) = schema else {
            return self.any();
        };
        if depth == MAX_DEPTH || self.n_rules >= MAX_RULES {
            return self.any();
        }
        if let Some(value) = object.get("const") {
            return self.constant(value);
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect();
            return format!("({})", values.join(" | "));
        }
        if let Some(target) = object.get("$ref").and_then(|path| resolve(self.root, path)) {
            return self.inner(target, depth + 1);
        }
        let several = ["anyOf", "oneOf"]
            .iter()
            .find_map(|key| object.get(*key)?.as_array());
        if let Some(several) = several {
            let all: Vec<String> = several
                .iter()
                .map(|schema| self.inner(schema, depth + 1))
                .collect();
            return format!("({})", all.join(" | "));
        }
        match object.get("type") {
            Some(Value::Array(types)) => {
                let all: Vec<String> = types
                    .iter()
                    .filter_map(Value::as_str)
                    .map(|name| self.of_type(name, object, depth))
                    .collect();
                match all.is_empty() {
                    true => self.any(),
                    false => format!("({})", all.join(" | ")),
                }
            }
            Some(Value::String(name)) => self.of_type(name, object, depth),
            _ if object.contains_key("properties") => self.of_type("object", object, depth),
            _ => self.any(),
        }
    }

    fn of_type(&mut self, name: &str, object: &Map<String, Value>, depth: usize) -> String {
        match name {
            "string" => self.text(object),
            "integer" | "number" => {
                let mut object = object.clone();
                object.insert("type".to_owned(), json!(name));
                format!("%json {}", compact(Value::Object(object)))
            }
            "boolean" => {
                format!(
                    "({} | {})",
                    self.constant(&json!(true)),
                    self.constant(&json!(false))
                )
            }
            "null" => self.constant(&Value::Null),
            "array" => {
                let item = match object.get("items") {
                    Some(items) => self.inner(items, depth + 1),
                    None => self.any(),
                };
                let separator = quoted(self.separator());
                let least = object.get("minItems").and_then(Value::as_u64).unwrap_or(0);
                let list = format!("{item} ({separator} {item})*");
                let list = match least {
                    0 => format!("\"[\" ({list})? \"]\""),
                    _ => format!("\"[\" {list} \"]\""),
                };
                self.rule(&list)
            }
            "object" => self.object(object, depth),
            _ => self.any(),
        }
    }

    fn object(&mut self, object: &Map<String, Value>, depth: usize) -> String {
        let Some(Value::Object(properties)) = object.get("properties") else {
            return self.any_object();
        };
        let required = object.get("required").and_then(Value::as_array);
        let is_required = |key: &str| required.is_some_and(|names| names.iter().any(|n| n == key));
        let separator = quoted(self.separator());
        // builds from the last property to the first: the remaining ones after no property, and
        // after one
        let (mut first, mut then) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (key, schema) in properties.iter().rev() {
            let value = self.inner(schema, depth + 1);
            let member = format!("{} {value}", quoted(&self.key(key)));
            let member = self.rule(&member);
            let (after_first, after_then);
            match is_required(key) {
                true => {
                    after_first = format!("{member} {then}");
                    after_then = format!("{separator} {member} {then}");
                }
                false => {
                    after_first = format!("{member} {then} | {first}");
                    after_then = format!("({separator} {member})? {then}");
                }
            }
            first = self.rule(&after_first);
            then = self.rule(&after_then);
        }
        self.rule(&format!("\"{{\" {first} \"}}\""))
    }

    /// Adds a rule and returns its name.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("{}_{}", self.prefix, self.n_rules);
        self.n_rules += 1;
        self.rules.push_str(&format!("{name}: {body}\n"));
        name
    }

    fn separator(&self) -> &'static str {
        match self.notation {
            Notation::Gemma => ",",
            Notation::Python => ", ",
        }
    }

    fn key(&self, key: &str) -> String {
        match self.notation {
            Notation::Gemma => format!("{key}:"),
            Notation::Python => format!("{}: ", Value::from(key)),
        }
    }

    fn constant(&self, value: &Value) -> String {
        let text = self.written(value);
        self.vocabulary.literal(&text)
    }

    fn written(&self, value: &Value) -> String {
        let separator = self.separator();
        match (value, self.notation) {
            (Value::String(text), Notation::Gemma) => format!("<|\"|>{text}<|\"|>"),
            (Value::Bool(true), Notation::Python) => "True".to_owned(),
            (Value::Bool(false), Notation::Python) => "False".to_owned(),
            (Value::Null, Notation::Python) => "None".to_owned(),
            (Value::Array(list), _) => {
                let all: Vec<String> = list.iter().map(|value| self.written(value)).collect();
                format!("[{}]", all.join(separator))
            }
            (Value::Object(object), _) => {
                let member = |(key, value): (&String, &Value)| {
                    format!("{}{}", self.key(key), self.written(value))
                };
                let all: Vec<String> = object.iter().map(member).collect();
                format!("{{{}}}", all.join(separator))
            }
            (other, _) => other.to_string(),
        }
    }

    /// Returns the rule of a string schema.
    fn text(&mut self, object: &Map<String, Value>) -> String {
        match self.notation {
            Notation::Python => {
                let mut object = object.clone();
                object.insert("type".to_owned(), json!("string"));
                let schema = alone(&Value::Object(object), &Value::Null);
                format!("%json {}", compact(schema))
            }
            Notation::Gemma => {
                let quote = self.vocabulary.literal("<|\"|>");
                match self.vocabulary.has_control("<|\"|>") {
                    true => format!("{quote} /(?s:.+)/? {quote}"),
                    false => {
                        let name = format!("{}_{}", self.prefix, self.n_rules);
                        self.n_rules += 1;
                        let rule = format!("{name}[suffix={quote}]: /(?s:.*)/\n");
                        self.rules.push_str(&rule);
                        format!("{quote} {name}")
                    }
                }
            }
        }
    }

    /// Returns the rule of any object.
    fn any_object(&mut self) -> String {
        let any = self.any();
        let separator = quoted(self.separator());
        let key = match self.notation {
            Notation::Gemma => "/[A-Za-z0-9_\\-]+:/".to_owned(),
            Notation::Python => format!("%json {} \": \"", compact(json!({ "type": "string" }))),
        };
        let member = self.rule(&format!("{key} {any}"));
        self.rule(&format!(
            "\"{{\" ({member} ({separator} {member})*)? \"}}\""
        ))
    }

    /// Returns the rule of any value.
    fn any(&mut self) -> String {
        let name = format!("{}_any", self.prefix);
        if !std::mem::replace(&mut self.has_any, true) {
            let text = self.text(&Map::new());
            let number = format!("%json {}", compact(json!({ "type": "number" })));
            let words = [json!(true), json!(false), Value::Null];
            let words: Vec<String> = words.iter().map(|value| self.constant(value)).collect();
            let words = words.join(" | ");
            let separator = quoted(self.separator());
            let list = format!("\"[\" ({name} ({separator} {name})*)? \"]\"");
            let object = self.any_object();
            self.rules.push_str(&format!(
                "{name}: {text} | {number} | {words} | {list} | {object}\n"
            ));
        }
        name
    }
}
