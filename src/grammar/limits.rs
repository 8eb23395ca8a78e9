//! Size limits of rules. Compile time grows faster than a rule's size, and other requests must not
//! wait for it.

mod lark;
mod meeting;

use serde_json::Value;

use crate::built::Built;
use crate::error::Error;
use crate::rule::Rule;

/// Maximum bytes of a schema, of the grammar of all calls, of a grammar, and of a regular
/// expression.
const MAX_SCHEMA: usize = 128 << 10;
const MAX_CALLS: usize = 2 << 20;
const MAX_GRAMMAR: usize = 32 << 10;
const MAX_REGEX: usize = 4 << 10;

/// Maximum rules of a grammar: each may refer to the next, recursing on the stack.
const MAX_RULES: usize = 400;

/// Maximum counts in a schema: all properties, all patterns for their names, optional properties of
/// one object, definitions, alternatives and enumerated values.
const MAX_PROPERTIES: usize = 1000;
const MAX_PATTERNS: usize = 32;
const MAX_OPTIONAL: usize = 200;
const MAX_DEFINITIONS: usize = 200;
const MAX_ALTERNATIVES: usize = 500;
const MAX_VALUES: usize = 2000;

/// Maximum number of texts to choose from.
const MAX_CHOICES: usize = 1000;

/// Maximum operators of a grammar that intersect or negate: each multiplies the states of its
/// operands.
const MAX_OPERATORS: usize = 8;

/// Refuses a grammar that exceeds the limits.
pub(crate) fn check(built: &Built) -> Result<(), Error> {
    let rule = built.rule.as_ref().map_or(Ok(()), check_rule);
    rule.and_then(|()| at_most(built.n_call_bytes, MAX_CALLS, "bytes of calls"))
        .and_then(|()| check_schemas(&built.schemas))
        .map_err(Error::Rule)
}

/// Refuses a rule that exceeds the limits.
fn check_rule(rule: &Rule) -> Result<(), String> {
    match rule {
        Rule::JsonObject => Ok(()),
        Rule::Gbnf(text) => {
            at_most(text.len(), MAX_GRAMMAR, "bytes")?;
            at_most(text.lines().count(), MAX_RULES, "lines")
        }
        Rule::Choice(texts) => {
            at_most(texts.len(), MAX_CHOICES, "choices")?;
            at_most(texts.iter().map(String::len).sum(), MAX_GRAMMAR, "bytes")
        }
        Rule::Regex(pattern) => at_most(pattern.len(), MAX_REGEX, "bytes"),
        Rule::Lark(text) => {
            at_most(text.len(), MAX_GRAMMAR, "bytes")?;
            at_most(text.lines().count(), MAX_RULES, "lines")?;
            let lark::Parts { operators, schemas } = lark::parts(text);
            at_most(operators, MAX_OPERATORS, "operators & and ~")?;
            check_schemas(&schemas)
        }
        Rule::Schema(schema) => check_schemas(std::slice::from_ref(schema)),
    }
}

fn at_most(n: usize, most: usize, what: &str) -> Result<(), String> {
    match n <= most {
        true => Ok(()),
        false => Err(format!("expected at most {most} {what}, got {n}")),
    }
}

fn check_schemas(schemas: &[Value]) -> Result<(), String> {
    schemas.iter().try_for_each(check_schema)?;
    meeting::check(schemas)
}

fn check_schema(schema: &Value) -> Result<(), String> {
    let mut counts = Counts::default();
    counts.add(schema);
    let all = [
        (schema.to_string().len(), MAX_SCHEMA, "bytes"),
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
    all.into_iter()
        .try_for_each(|(n, most, what)| at_most(n, most, what))
}

/// Counts of a schema's elements, at any depth.
#[derive(Default)]
struct Counts {
    properties: usize,
    patterns: usize,
    /// Maximum over all objects.
    optional: usize,
    definitions: usize,
    alternatives: usize,
    values: usize,
}

impl Counts {
    /// Adds the counts of a value. The recursion is safe: the JSON parser limits the depth.
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
        assert_eq!(check_rule(&Rule::Schema(fine)), Ok(()));
        let explosive = [
            json!({ "properties": fields(5000) }),
            json!({ "properties": fields(300) }),
            json!({ "items": { "patternProperties": fields(40) } }),
            json!({ "$defs": fields(700) }),
            json!({ "anyOf": vec![json!({ "enum": vec![1; 30] }); 100] }),
        ];
        for schema in explosive {
            assert!(check_rule(&Rule::Schema(schema)).is_err());
        }
        let chain: String = (0..800).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
        assert!(check_rule(&Rule::Lark(chain)).is_err());
        assert!(check_rule(&Rule::Regex("a?".repeat(20_000))).is_err());
    }

    #[test]
    fn what_holds_for_one_value_together_is_bounded() {
        let multiple = |n: f64| json!({ "type": "number", "multipleOf": n });
        let pattern = |n: usize| json!({ "type": "string", "pattern": format!("a{n}") });
        let some = |n: usize| (0..n).map(pattern).collect::<Vec<_>>();
        let under = |name: &str, schema: Value| json!({ "properties": { name: schema } });
        let objects = |name: fn(usize) -> String| -> Vec<Value> {
            (0..20).map(|n| under(&name(n), pattern(n))).collect()
        };
        let numbers: Map<String, Value> = (0..20)
            .map(|n| (format!("p{n}"), multiple(9900.0 + f64::from(n))))
            .collect();
        let dates = json!({ "allOf": vec![json!({ "format": "date" }); 9] });
        let fine = [
            multiple(9973.0),
            multiple(0.01),
            json!({ "allOf": [multiple(97.0), multiple(89.0), multiple(97.0)] }),
            json!({ "allOf": some(8) }),
            // a single value is matched directly; alternatives need several values
            json!({ "anyOf": some(400) }),
            json!({ "properties": {
                "a": { "anyOf": [multiple(9973.0), { "type": "null" }] },
                "b": { "anyOf": [multiple(9967.0), { "type": "null" }] },
            } }),
            json!({ "properties": { "a": pattern(1), "b": { "allOf": some(8) } } }),
            json!({ "prefixItems": some(20) }),
            json!({ "allOf": objects(|n| format!("p{n}")) }),
            json!({ "$defs": { "a": { "allOf": some(20) } } }),
            json!({ "properties": { "next": { "$ref": "#" }, "a": pattern(1) } }),
        ];
        for schema in fine {
            assert_eq!(
                check_rule(&Rule::Schema(schema.clone())),
                Ok(()),
                "{schema}"
            );
        }
        let explosive = [
            multiple(9_999_991.0),
            multiple(0.000_123_457),
            multiple(1e-12),
            json!({ "allOf": [multiple(9973.0), multiple(9967.0)] }),
            json!({ "allOf": [multiple(0.001), multiple(97.0)] }),
            json!({ "allOf": some(9) }),
            json!({ "allOf": [{ "allOf": some(5) }, { "allOf": [{ "allOf": some(5) }] }] }),
            json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }],
                "$defs": { "a": multiple(997.0), "b": multiple(991.0) } }),
            json!({ "$ref": "#/$defs/a", "multipleOf": 997,
                "$defs": { "a": { "anyOf": [{ "type": "null" }, multiple(991.0)] } } }),
            json!({ "allOf": objects(|_| "p".to_owned()) }),
            json!({ "allOf": [under("p", multiple(997.0)),
                { "patternProperties": { "^.$": multiple(991.0) } }] }),
            json!({ "allOf": [
                { "items": multiple(997.0) },
                { "prefixItems": [multiple(991.0)] },
            ] }),
            json!({ "properties": numbers }),
            json!({ "anyOf": [multiple(997.0), multiple(991.0)] }),
            json!({ "anyOf": [under("a", multiple(997.0)), under("b", multiple(991.0))] }),
            dates,
        ];
        for schema in explosive {
            assert!(
                check_rule(&Rule::Schema(schema.clone())).is_err(),
                "{schema}"
            );
            let grammar = format!("start: \"%json {{\" /[/]#\\/\"/ // %json\n  | %json {schema}\n");
            assert!(
                check_rule(&Rule::Lark(grammar.clone())).is_err(),
                "{grammar}"
            );
        }
    }

    #[test]
    fn operators_of_a_grammar_are_counted_where_they_are_some() {
        let joined = |n: usize| format!("start: A\nA: {}", vec!["/a/"; n + 1].join(" & "));
        assert_eq!(check_rule(&Rule::Lark(joined(8))), Ok(()));
        assert!(check_rule(&Rule::Lark(joined(9))).is_err());
        assert!(check_rule(&Rule::Lark(format!("start: A\nA: {}/a/", "~".repeat(9)))).is_err());
        let none = format!(
            "start: \"{0}\" /{0}/ <{0}> %json {{ \"const\": \"{0}\" }} // {0}\n# {0}",
            "&~".repeat(9)
        );
        assert_eq!(check_rule(&Rule::Lark(none)), Ok(()));
        let repeated = format!("start:{}", " A~3..5 B ~ 2".repeat(9));
        assert_eq!(check_rule(&Rule::Lark(repeated)), Ok(()));
    }
}
