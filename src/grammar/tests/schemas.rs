//! Enforcement of JSON schema keywords.

use octavo_grammar::{Demand, Rule};
use serde_json::{Value, json};

use crate::support::{meets, refusal, schema, warning};

#[test]
fn objects_have_the_properties_that_they_name_and_no_others() {
    let a = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    assert!(meets(&schema(a.clone()), "{\"a\": 1}"));
    assert!(meets(&schema(a.clone()), "{}"));
    assert!(!meets(&schema(a.clone()), "{\"b\": 1}"));
    assert!(!meets(&schema(a.clone()), "{\"a\": 1, \"a\": 2}"));
    let mut open = a.clone();
    open["additionalProperties"] = json!(true);
    assert!(meets(&schema(open.clone()), "{\"a\": 1, \"b\": 2}"));
    assert!(!meets(&schema(open), "{\"a\": 1, \"a\": 2}"));
    // objects without named properties may have any
    assert!(meets(&schema(json!({ "type": "object" })), "{\"b\": 1}"));
    assert!(meets(&schema(json!({ "items": a })), "[{\"a\": 1}]"));
    let needed = json!({ "type": "object", "required": ["z"] });
    assert!(meets(&schema(needed), "{\"z\": [1]}"));
}

#[test]
fn schemas_that_hold_together_are_closed_together() {
    let part = |name: &str| {
        json!({
            "type": "object",
            "properties": { name: { "type": "integer" } },
            "required": [name],
        })
    };
    let both = json!({ "allOf": [part("a"), part("b")] });
    let referred = json!({
        "$defs": { "a": part("a") },
        "type": "object",
        "properties": { "b": { "type": "integer" }, "again": { "$ref": "#/$defs/a" } },
        "required": ["b"],
        "allOf": [{ "$ref": "#/$defs/a" }],
    });
    let chosen = json!({
        "type": "object",
        "properties": { "a": { "type": "integer" } },
        "anyOf": [part("b"), part("c")],
        "required": ["a"],
    });
    for schema_of_both in [both, chosen] {
        assert!(meets(
            &schema(schema_of_both.clone()),
            "{\"a\": 1, \"b\": 2}"
        ));
        assert!(!meets(
            &schema(schema_of_both),
            "{\"a\": 1, \"b\": 2, \"d\": 3}"
        ));
    }
    let referred = schema(referred);
    assert!(meets(&referred, "{\"b\": 2, \"a\": 1}"));
    assert!(meets(
        &referred,
        "{\"b\": 2, \"again\": {\"a\": 3}, \"a\": 1}"
    ));
    assert!(!meets(
        &referred,
        "{\"b\": 2, \"again\": {\"a\": 3, \"b\": 1}, \"a\": 1}"
    ));
}

#[test]
fn integers_are_written_in_one_way() {
    for bounds in [
        json!({}),
        json!({ "minimum": -5 }),
        json!({ "maximum": 5 }),
        json!({ "minimum": -5, "maximum": 5 }),
        json!({ "exclusiveMinimum": -5, "exclusiveMaximum": 5 }),
    ] {
        let mut integer = bounds.clone();
        integer["type"] = json!("integer");
        let integer = schema(integer);
        for text in ["0", "4", "-4"] {
            assert!(meets(&integer, text), "{bounds} {text}");
        }
        assert!(!meets(&integer, "-0"), "{bounds}");
    }
    assert!(meets(
        &schema(json!({ "type": "integer", "minimum": 3 })),
        "12"
    ));
    assert!(!meets(
        &schema(json!({ "type": "integer", "maximum": -3 })),
        "-2"
    ));
}

#[test]
fn what_no_grammar_holds_is_passed_over_with_one_warning() {
    let text = json!({ "type": "string" });
    let cases: [(Value, &str, &str); 12] = [
        (
            json!({ "type": "array", "items": text, "uniqueItems": true }),
            "uniqueItems",
            "[\"a\"]",
        ),
        (
            json!({ "type": "object", "propertyNames": { "minLength": 2 } }),
            "propertyNames",
            "{}",
        ),
        (
            json!({ "type": "string", "not": { "const": "a" } }),
            "not",
            "\"a\"",
        ),
        (
            json!({ "type": "array", "contains": { "const": 1 } }),
            "contains",
            "[2]",
        ),
        (
            json!({ "type": "integer", "if": { "const": 1 }, "then": false }),
            "if",
            "1",
        ),
        (
            json!({ "type": "string", "pattern": "^(?=a)b" }),
            "look-around",
            "\"c\"",
        ),
        (
            json!({ "type": "string", "pattern": "(a)\\1" }),
            "back-references",
            "\"c\"",
        ),
        (
            json!({ "type": "integer", "maximum": 9_223_372_036_854_775_807_i64 }),
            "64 bits",
            "1",
        ),
        (
            json!({ "type": "integer", "minimum": -9_223_372_036_854_775_808_i64 }),
            "64 bits",
            "1",
        ),
        (
            json!({ "$ref": "https://example.org/schema.json" }),
            "$ref",
            "1",
        ),
        (
            json!({ "type": "object", "dependentRequired": { "a": ["b"] } }),
            "dependent",
            "{}",
        ),
        (
            json!({
                "type": "object",
                "properties": { "a": { "const": 1 }, "b": { "const": 2 } },
                "minProperties": 2,
            }),
            "minProperties",
            "{\"a\": 1}",
        ),
    ];
    for (case, what, example) in cases {
        let mut demand = schema(json!({ "type": "array", "prefixItems": [case] }));
        let warning = warning(&demand).unwrap_or_default();
        assert!(warning.contains(what), "{what}: {warning}");
        assert!(!warning.contains('\n'), "{warning}");
        assert!(meets(&demand, &format!("[{example}]")), "{what}");
        demand.strict = true;
        assert!(refusal(&demand).contains(what), "{what}");
    }
}

#[test]
fn names_of_properties_are_held() {
    let truth = json!({ "type": "boolean" });
    let names = |names: Value| {
        let mut demand = schema(json!({
            "$defs": { "Colour": { "title": "Colour", "enum": ["red", "green"] } },
            "type": "object", "propertyNames": names, "additionalProperties": truth,
        }));
        demand.strict = true;
        demand
    };
    // every name is a string: zod's records state this
    let any = names(json!({ "type": "string" }));
    assert_eq!(warning(&any), None);
    assert!(meets(&any, "{\"a\": true}"));
    for listed in [
        json!({ "type": "string", "enum": ["red", "green"] }),
        json!({ "$ref": "#/$defs/Colour" }),
        json!({ "pattern": "^(red|green)$" }),
    ] {
        let demand = names(listed);
        assert_eq!(warning(&demand), None);
        assert!(meets(&demand, "{\"red\": true}"));
        assert!(!meets(&demand, "{\"blue\": true}"));
        assert!(!meets(&demand, "{\"red\": 1}"));
    }
    // too many listed names: schemas are copied for each
    let many: Vec<String> = (0..1000).map(|i| i.to_string()).collect();
    let mut demand = names(json!({ "enum": many }));
    demand.strict = false;
    let warning = warning(&demand).expect("a warning");
    assert!(warning.contains("propertyNames"), "{warning}");
}

#[test]
fn what_tells_people_something_is_no_demand() {
    let fine = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/a",
        "title": "a",
        "type": "object",
        "properties": {
            "a": {
                "type": "string", "format": "password", "deprecated": true, "nullable": false,
                "example": "x", "uniqueItems": false,
            },
            "not": { "const": 1 },
        },
        "unevaluatedProperties": false,
        "additionalProperties": false,
    });
    let mut demand = schema(fine);
    demand.strict = true;
    assert_eq!(warning(&demand), None);
    assert!(meets(&demand, "{\"a\": \"b\", \"not\": 1}"));
}

#[test]
fn references_are_followed_however_they_are_spelled() {
    let spelled = json!({
        "$defs": { "a/b c": { "const": 1 } },
        "prefixItems": [{ "$ref": "#/$defs/a~1b%20c" }],
        "type": "array",
    });
    assert!(meets(&schema(spelled.clone()), "[1]"));
    assert!(!meets(&schema(spelled), "[2]"));
    assert!(refusal(&schema(json!({ "$ref": "#/nowhere" }))).contains("nowhere"));
}

#[test]
fn a_bad_regular_expression_is_told_whole() {
    let refusal_text = refusal(&schema(json!({ "type": "string", "pattern": "a(b" })));
    assert!(
        refusal_text.contains("a(b") && refusal_text.contains("unclosed group"),
        "{refusal_text}"
    );
    let refusal_text = refusal(&Demand::from(Rule::Regex("x[".to_owned())));
    assert!(
        refusal_text.contains("x[") && refusal_text.contains("unclosed"),
        "{refusal_text}"
    );
    assert!(!refusal_text.contains('\n'), "{refusal_text}");
}

#[test]
fn one_of_several_texts_is_chosen() {
    let choice = Demand::from(Rule::Choice(vec!["yes".to_owned(), "ye \"s\"".to_owned()]));
    assert!(meets(&choice, "yes") && meets(&choice, "ye \"s\""));
    assert!(!meets(&choice, "ye"));
}
