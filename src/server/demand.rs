//! Fields that constrain an answer: OpenAI's, llama-server's and vLLM's.

use octavo_grammar::{Demand, Rule};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// Most texts to choose from.
const MAX_CHOICES: usize = 1000;

/// Constraint of an answer, and the field that gives it.
#[derive(Debug)]
pub(crate) struct Demanded {
    pub(crate) demand: Demand,
    pub(crate) param: &'static str,
}

/// Reads the constraint on an answer's text.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Option<Demanded>, ApiError> {
    let mut demands = Vec::new();
    if let Some(value) = fields.get("response_format")
        && let Some(demand) = response_format(value)?
    {
        demands.push(("response_format", demand));
    }
    let mut add = |name: &'static str, rule: Option<Rule>| {
        demands.extend(rule.map(|rule| (name, Demand::from(rule))));
    };
    let schema = fields.get("json_schema").cloned();
    add("json_schema", schema.map(Rule::Schema));
    add("grammar", grammar(fields, "grammar")?);
    add("guided_json", json(fields, "guided_json")?);
    add("guided_regex", fields.str("guided_regex")?.map(regex));
    add("guided_choice", choice(fields, "guided_choice")?);
    add("guided_grammar", grammar(fields, "guided_grammar")?);
    if let Some(value) = fields.get("structured_outputs") {
        add("structured_outputs", structured_outputs(value)?);
    }
    let mut demands = demands.into_iter();
    let first = demands.next();
    if let Some((name, _)) = demands.next() {
        return Err(ApiError::bad_field(
            name,
            "expected one rule for the text, not two",
        ));
    }
    Ok(first.map(|(param, demand)| Demanded { demand, param }))
}

fn response_format(value: &Value) -> Result<Option<Demand>, ApiError> {
    const PATH: &str = "response_format.";
    let fields = Fields::at(value, PATH)?;
    let kind = fields.need("type", fields.str("type")?)?;
    match kind {
        "text" => Ok(None),
        // llama-server has the schema beside the type
        "json_object" => Ok(Some(Demand::from(match fields.get("schema") {
            Some(schema) => Rule::Schema(checked(schema, "response_format.schema")?),
            None => Rule::JsonObject,
        }))),
        "json_schema" => {
            let inner = fields.need("json_schema", fields.get("json_schema"))?;
            let inner = Fields::at(inner, "response_format.json_schema.")?;
            let schema = inner.need("schema", inner.get("schema"))?;
            let schema = checked(schema, "response_format.json_schema.schema")?;
            Ok(Some(Demand {
                strict: inner.bool("strict")?.unwrap_or(false),
                ..Demand::from(Rule::Schema(schema))
            }))
        }
        _ => Err(fields.wrong("type", "text, json_object or json_schema")),
    }
}

/// Reads vLLM's fields, of which exactly one must be given.
fn structured_outputs(value: &Value) -> Result<Option<Rule>, ApiError> {
    let fields = Fields::at(value, "structured_outputs.")?;
    if fields.get("structural_tag").is_some() {
        return Err(fields.wrong(
            "structural_tag",
            "json, regex, choice, grammar or json_object",
        ));
    }
    let object = fields.bool("json_object")?.unwrap_or(false);
    let rules = [
        json(&fields, "json")?,
        fields.str("regex")?.map(regex),
        choice(&fields, "choice")?,
        grammar(&fields, "grammar")?,
        object.then_some(Rule::JsonObject),
    ];
    let mut rules = rules.into_iter().flatten();
    match (rules.next(), rules.next()) {
        (first, None) => Ok(first),
        _ => Err(ApiError::bad_field(
            "structured_outputs",
            "expected one rule for the text, not two",
        )),
    }
}

/// Reads a schema, given as JSON or as a string of JSON.
fn json(fields: &Fields<'_>, name: &str) -> Result<Option<Rule>, ApiError> {
    let wrong = || fields.wrong(name, "a JSON schema");
    let schema = match fields.get(name) {
        None => return Ok(None),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| wrong())?,
        Some(other) => other.clone(),
    };
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(Some(Rule::Schema(schema))),
        _ => Err(wrong()),
    }
}

fn choice(fields: &Fields<'_>, name: &str) -> Result<Option<Rule>, ApiError> {
    match fields.strings(name, MAX_CHOICES)? {
        Some(texts) if texts.is_empty() => Err(fields.wrong(name, "at least one text")),
        texts => Ok(texts.map(Rule::Choice)),
    }
}

fn grammar(fields: &Fields<'_>, name: &str) -> Result<Option<Rule>, ApiError> {
    let text = fields.str(name)?.filter(|text| !text.is_empty());
    Ok(text.map(Rule::of_grammar))
}

fn regex(pattern: &str) -> Rule {
    Rule::Regex(pattern.to_owned())
}

/// Checks that a schema is an object or `true`.
fn checked(schema: &Value, param: &str) -> Result<Value, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(schema.clone()),
        _ => Err(ApiError::bad_field(param, "expected a JSON schema")),
    }
}
