//! How large a rule for a text may be. Compiling one takes time that grows faster than its size,
//! and nobody else may wait for it.

use serde_json::Value;

use crate::grammar::Rule;

/// Bytes of a schema, of a grammar, and of a regular expression.
const MAX_SCHEMA: usize = 128 << 10;
const MAX_GRAMMAR: usize = 32 << 10;
const MAX_REGEX: usize = 4 << 10;

/// Rules of a grammar: each may lead to the next, on the stack.
const MAX_RULES: usize = 400;

/// Of a schema: all properties and all patterns for their names, optional properties of one
/// object, definitions, alternatives and values of enumerations.
const MAX_PROPERTIES: usize = 1000;
const MAX_PATTERNS: usize = 32;
const MAX_OPTIONAL: usize = 200;
const MAX_DEFINITIONS: usize = 200;
const MAX_ALTERNATIVES: usize = 500;
const MAX_VALUES: usize = 2000;

/// An error if a rule is larger than anybody needs.
pub(crate) fn check(rule: &Rule) -> Result<(), String> {
    let at_most = |n: usize, most: usize, what: &str| match n <= most {
        true => Ok(()),
        false => Err(format!("expected at most {most} {what}, got {n}")),
    };
    match rule {
        Rule::JsonObject => Ok(()),
        Rule::Regex(pattern) => at_most(pattern.len(), MAX_REGEX, "bytes"),
        Rule::Lark(text) => {
            at_most(text.len(), MAX_GRAMMAR, "bytes")?;
            at_most(text.lines().count(), MAX_RULES, "lines")
        }
        Rule::Schema(schema) => check_schema(schema),
        Rule::Call { grammar, schemas } => {
            at_most(grammar.len(), MAX_SCHEMA, "bytes")?;
            schemas.iter().try_for_each(check_schema)
        }
    }
}

fn check_schema(schema: &Value) -> Result<(), String> {
    let bytes = schema.to_string().len();
    let mut counts = Counts::default();
    counts.add(schema);
    let all = [
        (bytes, MAX_SCHEMA, "bytes"),
        (counts.properties, MAX_PROPERTIES, "properties"),
        (
            counts.patterns,
            MAX_PATTERNS,
            "patterns for names of properties",
        ),
        (
            counts.optional,
            MAX_OPTIONAL,
            "optional properties in an object",
        ),
        (counts.definitions, MAX_DEFINITIONS, "definitions"),
        (counts.alternatives, MAX_ALTERNATIVES, "alternatives"),
        (counts.values, MAX_VALUES, "values in enumerations"),
    ];
    match all.into_iter().find(|(n, most, _)| n > most) {
        Some((n, most, what)) => Err(format!("expected at most {most} {what}, got {n}")),
        None => Ok(()),
    }
}

/// What a schema holds, at any depth.
#[derive(Default)]
struct Counts {
    properties: usize,
    patterns: usize,
    /// In the object that has most.
    optional: usize,
    definitions: usize,
    alternatives: usize,
    values: usize,
}

impl Counts {
    /// Adds what stands in a value. JSON is not nested deeper than a stack is.
    fn add(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|value| self.add(value)),
            Value::Object(object) => {
                let n = |name: &str| match object.get(name) {
                    Some(Value::Object(inner)) => inner.len(),
                    Some(Value::Array(inner)) => inner.len(),
                    _ => 0,
                };
                self.properties += n("properties");
                self.patterns += n("patternProperties");
                let optional = n("properties").saturating_sub(n("required"));
                self.optional = self.optional.max(optional);
                self.definitions += n("$defs") + n("definitions");
                self.alternatives += n("anyOf") + n("oneOf") + n("allOf") + n("prefixItems");
                self.values += n("enum");
                object.values().for_each(|value| self.add(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn what_people_write_passes_and_what_explodes_does_not() {
        let fields = |n: usize| -> Map<String, Value> {
            (0..n)
                .map(|i| (format!("p{i}"), json!({ "type": "string" })))
                .collect()
        };
        let fine = json!({ "properties": fields(100), "$defs": fields(20), "enum": vec![1; 500] });
        assert_eq!(check(&Rule::Schema(fine)), Ok(()));
        let explosive = [
            json!({ "properties": fields(5000) }),
            json!({ "properties": fields(300) }),
            json!({ "items": { "patternProperties": fields(40) } }),
            json!({ "$defs": fields(700) }),
            json!({ "anyOf": vec![json!({ "enum": vec![1; 30] }); 100] }),
        ];
        for schema in explosive {
            assert!(check(&Rule::Schema(schema)).is_err());
        }
        let chain: String = (0..800).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        assert!(check(&Rule::Lark(chain)).is_err());
        assert!(check(&Rule::Regex("a?".repeat(20_000))).is_err());
    }
}
