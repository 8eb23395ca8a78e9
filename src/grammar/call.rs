//! Grammars of tool calls, in the format that the model's chat template uses.

use std::collections::HashMap;

use llguidance::api::TopLevelGrammar;
use octavo_text::chat::answer::{Arguments, CallFormat, is_written_as_text};
use serde_json::{Value, json};

use crate::built::Built;
use crate::notation;
use crate::rule::Calls;
use crate::schema::{self, Prepared};
use crate::vocabulary::{Vocabulary, quoted};

/// Returns the name of a tool, as requests define it.
pub fn tool_name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Lark rules of tool calls. The rule named `calls` matches all calls of an answer.
pub(crate) struct Rules {
    pub(crate) rules: String,
    pub(crate) schemas: Vec<Value>,
    pub(crate) unheld: Vec<String>,
}

/// A tool call, from the end of its opening text on.
pub(crate) struct Begun {
    pub(crate) opener: String,
    /// Whether the opener counts only at the beginning of an answer.
    pub(crate) at_start: bool,
    pub(crate) built: Built,
}

/// Builds the rules of all calls of an answer.
pub(crate) fn whole(vocabulary: &Vocabulary, calls: &Calls) -> Rules {
    let mut writer = Writer::new(vocabulary, calls);
    let section = calls.format.section();
    let open = vocabulary.literal(section.open);
    let starts = writer.alternatives("call", |before| Some(before.to_owned()));
    let more = writer.more("call");
    let close = vocabulary.literal(section.close);
    writer
        .rules
        .push_str(&format!("calls: {open} call{more} {close}\n{starts}"));
    writer.finish()
}

/// Builds, for each opening text, the grammar of the calls after it.
pub(crate) fn begun(vocabulary: &Vocabulary, calls: &Calls) -> Vec<Begun> {
    openers(calls)
        .into_iter()
        .filter_map(|(opener, at_start)| {
            let mut writer = Writer::new(vocabulary, calls);
            let section = calls.format.section();
            let rest = |before: &str| {
                let whole = format!("{}{before}", section.open);
                let at = whole.find(&opener)?;
                Some(whole[at + opener.len()..].to_owned())
            };
            let first = writer.alternatives("first", rest);
            if first.is_empty() {
                return None;
            }
            let more = writer.more("call");
            let others = match more.is_empty() {
                true => String::new(),
                false => writer.alternatives("call", |before| Some(before.to_owned())),
            };
            let close = vocabulary.literal(section.close);
            let start = format!("start: first{more} {close}\n{first}{others}");
            writer.rules.insert_str(0, &start);
            let Rules {
                rules,
                schemas,
                unheld,
            } = writer.finish();
            Some(Begun {
                opener,
                at_start,
                built: Built {
                    n_call_bytes: rules.len(),
                    grammar: TopLevelGrammar::from_lark(rules),
                    schemas,
                    rule: None,
                    unheld,
                },
            })
        })
        .collect()
}

/// Returns the texts that open calls, and whether each counts only at the beginning of an answer.
fn openers(calls: &Calls) -> Vec<(String, bool)> {
    let openers = calls.format.openers();
    if !openers.is_empty() {
        return openers
            .iter()
            .map(|opener| ((*opener).to_owned(), false))
            .collect();
    }
    // the whole answer is a call: for example an object that begins with the name
    const PLACE: &str = "placeholder";
    const SHORTEST: usize = 4;
    let before = calls.format.call(PLACE).before;
    let whole = format!("{}{before}", calls.format.section().open);
    let opener = whole.split(PLACE).next().unwrap_or_default();
    match opener.len() >= SHORTEST {
        true => vec![(opener.to_owned(), true)],
        false => Vec::new(),
    }
}

/// Builder of call rules.
struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    calls: &'a Calls,
    rules: String,
    schemas: Vec<Value>,
    unheld: Vec<String>,
    /// Names of the rules for texts up to an end marker, by that marker.
    texts: HashMap<String, String>,
}

impl<'a> Writer<'a> {
    /// Creates a builder with the rules of every tool's arguments, named `args_0` and so on.
    fn new(vocabulary: &'a Vocabulary, calls: &'a Calls) -> Writer<'a> {
        let mut writer = Writer {
            vocabulary,
            calls,
            rules: String::new(),
            schemas: Vec::new(),
            unheld: Vec::new(),
            texts: HashMap::new(),
        };
        for (i, tool) in calls.tools.iter().enumerate() {
            writer.arguments(i, tool);
        }
        writer
    }

    fn finish(self) -> Rules {
        Rules {
            rules: self.rules,
            schemas: self.schemas,
            unheld: self.unheld,
        }
    }

    /// Returns rules of one call of any tool. `begin` gets the text before the arguments and
    /// returns the part of it that is still to be generated; `None` skips the tool.
    fn alternatives(&self, name: &str, begin: impl Fn(&str) -> Option<String>) -> String {
        let mut names = Vec::new();
        let mut rules = String::new();
        for (i, tool) in self.calls.tools.iter().enumerate() {
            let call = self.calls.format.call(tool_name(tool));
            let Some(before) = begin(&call.before) else {
                continue;
            };
            let before = self.counted(&before);
            // a token that ends the answer may follow any call
            let after = match self.vocabulary.ends_with(call.after) {
                true => String::new(),
                false => self.vocabulary.literal(call.after),
            };
            names.push(format!("{name}_{i}"));
            rules.push_str(&format!("{name}_{i}: {before} args_{i} {after}\n"));
        }
        match names.is_empty() {
            true => String::new(),
            false => format!("{name}: {}\n{rules}", names.join(" | ")),
        }
    }

    /// Returns the text before arguments, allowing any number where the format counts calls.
    fn counted(&self, before: &str) -> String {
        let numbers = [
            (CallFormat::Kimi, ":0<|"),
            (CallFormat::Cohere, "\"tool_call_id\": \"0\""),
        ];
        if let Some(header) = self.header(before) {
            return header;
        }
        let number = numbers
            .iter()
            .find(|(format, _)| *format == self.calls.format);
        let found = number.and_then(|(_, text)| {
            let at = before.rfind(text)? + text.find('0')?;
            Some((before.get(..at)?, before.get(at + 1..)?))
        });
        match found {
            Some((left, right)) => {
                let (left, right) = (
                    self.vocabulary.literal(left),
                    self.vocabulary.literal(right),
                );
                format!("{left} /[0-9]{{1,3}}/ {right}")
            }
            None => self.vocabulary.literal(before),
        }
    }

    /// Returns gpt-oss's header of a call, which may state the channel and the content type in
    /// several ways.
    fn header(&self, before: &str) -> Option<String> {
        const TYPE: &str = " <|constrain|>json<|message|>";
        let to = before
            .strip_suffix(TYPE)
            .filter(|_| self.calls.format == CallFormat::Harmony)?;
        let word = |text: &str| self.vocabulary.literal(text);
        let (channel, constrain) = (word("<|channel|>"), word("<|constrain|>"));
        let part = format!(
            "(/ [a-z ]{{0,15}}/ | {channel} /[a-z ]{{1,16}}/ | {constrain} /[a-z ]{{1,16}}/)"
        );
        Some(format!(
            "{} {part}? {part}? {part}? {}",
            word(to),
            word("<|message|>")
        ))
    }

    /// Returns the rule for further calls, if several are allowed.
    fn more(&self, name: &str) -> String {
        let tool = self.calls.tools.first().map_or("", tool_name);
        let is_last = self
            .vocabulary
            .ends_with(self.calls.format.call(tool).after);
        match self.calls.several && !is_last {
            true => {
                let between = self.vocabulary.literal(self.calls.format.section().between);
                format!(" ({between} {name})*")
            }
            false => String::new(),
        }
    }

    fn arguments(&mut self, i: usize, tool: &Value) {
        let name = tool_name(tool);
        let parameters = &tool["function"]["parameters"];
        let parameters = match parameters {
            Value::Object(object) if !object.is_empty() => parameters.clone(),
            // a tool without a parameter schema has no parameters
            _ => json!({ "properties": {} }),
        };
        let Prepared {
            mut schema,
            checked,
            unheld,
        } = schema::prepare(&parameters);
        self.unheld
            .extend(unheld.into_iter().map(|what| format!("{what} of {name}")));
        if let Value::Object(object) = &mut schema {
            object.entry("type").or_insert(json!("object"));
        }
        match self.calls.format.call(name).arguments {
            Arguments::Json => {
                let schema = schema::compact(schema.clone());
                self.rules.push_str(&format!("args_{i}: %json {schema}\n"));
            }
            Arguments::Parameters { between } => self.parameters(i, between, &schema, &parameters),
        }
        self.schemas.push(checked);
    }

    /// Adds rules for parameters in sequence, in the order of the schema, each at most once.
    fn parameters(&mut self, i: usize, between: &str, schema: &Value, parameters: &Value) {
        let required = schema["required"].as_array();
        let is_required = |key: &str| required.is_some_and(|names| names.iter().any(|n| n == key));
        let properties = schema["properties"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        let between = self.vocabulary.literal(between);
        let n = properties.len();
        let mut rules = format!("args_{i}: first_{i}_0\n");
        for (k, (key, schema_of_value)) in properties.iter().enumerate() {
            let next = k + 1;
            let (first, then) = (format!("first_{i}_{k}"), format!("then_{i}_{k}"));
            let param = format!("param_{i}_{k}");
            let skip = match is_required(key) {
                true => (String::new(), ""),
                false => (format!(" | first_{i}_{next}"), "?"),
            };
            rules.push_str(&format!("{first}: {param} then_{i}_{next}{}\n", skip.0));
            rules.push_str(&format!(
                "{then}: ({between} {param}){} then_{i}_{next}\n",
                skip.1
            ));
            let value = self.parameter((i, k), key, schema_of_value, schema, parameters);
            rules.push_str(&format!("{param}: {value}\n"));
        }
        rules.push_str(&format!("first_{i}_{n}: \"\"\nthen_{i}_{n}: \"\"\n"));
        self.rules.push_str(&rules);
    }

    /// Returns the rule of a parameter, with the text around its value.
    fn parameter(
        &mut self,
        place: (usize, usize),
        key: &str,
        schema: &Value,
        root: &Value,
        parameters: &Value,
    ) -> String {
        let format = self.calls.format;
        let end = format.text_end(key);
        let original = parameters["properties"].get(key).unwrap_or(schema);
        let is_text = is_written_as_text(original, parameters);
        let (before, after) = format.around_value(key, is_text && end.is_some());
        let before = self.vocabulary.literal(&before);
        if let Some(notation) = notation::of(format) {
            let mut values = notation::Writer::new(notation, self.vocabulary, root, place);
            let value = values.value(schema);
            let (before, _) = format.around_value(key, false);
            let before = self.vocabulary.literal(&before);
            self.rules.push_str(&values.finish());
            return format!("{before} {value}");
        }
        match end.filter(|_| is_text) {
            None => {
                let value = schema::compact(schema::alone(schema, root));
                format!("{before} %json {value} {}", self.vocabulary.literal(&after))
            }
            Some(end) => match choices(schema, root, 0) {
                Some(values) => self.one_of(key, values),
                None => {
                    let text = self.text(&end);
                    let rest = after.split_once(end.as_str()).map_or("", |(_, rest)| rest);
                    format!("{before} {text} {}", self.vocabulary.literal(rest))
                }
            },
        }
    }

    /// Returns the rule of a parameter with enumerated values: strings without quotes, others as
    /// JSON.
    fn one_of(&self, key: &str, values: Vec<Value>) -> String {
        let (texts, others): (Vec<Value>, Vec<Value>) =
            values.into_iter().partition(Value::is_string);
        // some formats mark beside the name whether the value is a string
        let around = |values: &[Value], is_text: bool| {
            let written = |value: &Value| match value {
                Value::String(text) => quoted(text),
                other => quoted(&other.to_string()),
            };
            let values: Vec<String> = values.iter().map(written).collect();
            let (before, after) = self.calls.format.around_value(key, is_text);
            let before = self.vocabulary.literal(&before);
            let after = self.vocabulary.literal(&after);
            (!values.is_empty()).then(|| format!("{before} ({}) {after}", values.join(" | ")))
        };
        let both = [around(&texts, true), around(&others, false)];
        both.into_iter().flatten().collect::<Vec<_>>().join(" | ")
    }

    /// Returns the name of a rule that matches text up to and including `end`.
    fn text(&mut self, end: &str) -> String {
        if let Some(name) = self.texts.get(end) {
            return name.clone();
        }
        let name = format!("text_{}", self.texts.len());
        let rule = match self.vocabulary.has_control(end) {
            true => format!("{name}: /(?s:.+)/? {}\n", self.vocabulary.literal(end)),
            false => format!("{name}[suffix={}]: /(?s:.*)/\n", quoted(end)),
        };
        self.rules.push_str(&rule);
        self.texts.insert(end.to_owned(), name.clone());
        name
    }
}

/// Returns the values of a schema that enumerates them all; `None` for other schemas.
fn choices(schema: &Value, root: &Value, depth: usize) -> Option<Vec<Value>> {
    const MAX_DEPTH: usize = 8;
    if depth == MAX_DEPTH {
        return None;
    }
    let object = schema.as_object()?;
    if let Some(value) = object.get("const") {
        return Some(vec![value.clone()]);
    }
    if let Some(Value::Array(values)) = object.get("enum") {
        return Some(values.clone());
    }
    if let Some(target) = object.get("$ref") {
        return choices(schema::resolve(root, target)?, root, depth + 1);
    }
    let several = ["anyOf", "oneOf"]
        .iter()
        .find_map(|key| object.get(*key)?.as_array());
    match several {
        Some(several) => {
            let all = several
                .iter()
                .map(|schema| choices(schema, root, depth + 1));
            Some(all.collect::<Option<Vec<_>>>()?.concat())
        }
        None if object.get("type") == Some(&json!("null")) => Some(vec![Value::Null]),
        None if object.get("type") == Some(&json!("boolean")) => {
            Some(vec![Value::Bool(true), Value::Bool(false)])
        }
        None => None,
    }
}
