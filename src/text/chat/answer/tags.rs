//! Calls whose parameters stand in tags: their arguments become JSON.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::call::{Event, MAX_NAME, Step};
use super::format::Tags;
use super::json::Scan;

#[derive(Debug, Clone)]
enum At {
    Name(String),
    /// Between parameters; what could be the beginning of a tag.
    Between(String),
    Key(String),
    /// Between a key and the tag that opens its value.
    ValueOpen(String),
    Value,
    /// Arguments as JSON after all.
    Json(Scan),
    JsonAfter(String),
}

/// What is known of tools: their names, and what schemas say about their parameters.
#[derive(Debug, Default, Clone)]
pub(super) struct Kinds {
    names: HashSet<String>,
    parameters: HashMap<(String, String), Kind>,
    /// Whether what is no text by its schema is JSON, because a grammar says so.
    is_strict: bool,
}

impl Kinds {
    /// Whether a function may be called: any may where none are known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.contains(name)
    }

    /// From now on, what is no text by its schema is JSON.
    pub(super) fn be_strict(&mut self) {
        self.is_strict = true;
    }

    fn of(&self, name: &str, key: &str) -> Kind {
        let place = (name.to_owned(), key.to_owned());
        match self.parameters.get(&place) {
            None | Some(Kind::Unknown) if self.is_strict => Kind::Other,
            found => found.copied().unwrap_or(Kind::Unknown),
        }
    }
}

/// What a schema says about a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Other,
    Unknown,
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) struct TagReader {
    tags: &'static Tags,
    kinds: Arc<Kinds>,
    at: At,
    name: String,
    begun: bool,
    parameters: usize,
    kind: Kind,
    /// What of a value is not written yet.
    value: String,
    /// Whether a text's quote is written.
    quoted: bool,
}

impl TagReader {
    pub(super) fn new(tags: &'static Tags, kinds: &Arc<Kinds>) -> TagReader {
        TagReader {
            tags,
            kinds: Arc::clone(kinds),
            at: At::Name(String::new()),
            name: String::new(),
            begun: false,
            parameters: 0,
            kind: Kind::Unknown,
            value: String::new(),
            quoted: false,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Name(_) => self.in_name(c, events),
            At::Between(tail) => {
                if tail.is_empty() && c.is_whitespace() {
                    return Step::More;
                }
                if tail.is_empty() && c == '{' && !self.begun {
                    self.begun = true;
                    events.push(Event::Begins(self.name.clone()));
                    self.at = At::Json(Scan::default());
                    return self.step(c, events);
                }
                tail.push(c);
                if tail == self.tags.open {
                    self.at = At::Key(String::new());
                    return Step::More;
                }
                if tail == self.tags.end {
                    return self.end(events);
                }
                begins([self.tags.open, self.tags.end], tail)
            }
            At::Key(key) => {
                key.push(c);
                if !key.ends_with(self.tags.key_end) {
                    return too_long(key);
                }
                let key = key[..key.len() - self.tags.key_end.len()].to_owned();
                self.found_key(&key, events)
            }
            At::ValueOpen(tail) => {
                if tail.is_empty() && c.is_whitespace() {
                    return Step::More;
                }
                tail.push(c);
                if tail == self.tags.value_open {
                    self.at = At::Value;
                    return Step::Settled;
                }
                begins([self.tags.value_open, self.tags.value_open], tail)
            }
            At::Value => self.in_value(c, events),
            At::Json(scan) => match scan.step(c) {
                None => Step::Wrong,
                Some(over) => {
                    events.push(Event::Arguments(c.to_string()));
                    if over {
                        self.at = At::JsonAfter(String::new());
                    }
                    Step::Settled
                }
            },
            At::JsonAfter(tail) => {
                if tail.is_empty() && c.is_whitespace() {
                    return Step::More;
                }
                tail.push(c);
                match tail == self.tags.end {
                    true => Step::Over,
                    false => begins([self.tags.end, self.tags.end], tail),
                }
            }
        }
    }

    fn in_name(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let At::Name(name) = &mut self.at else {
            return Step::Wrong;
        };
        name.push(c);
        // The name of a call without parameters ends with the call.
        let end = [self.tags.name_end, self.tags.end]
            .into_iter()
            .find(|end| name.ends_with(end));
        let Some(end) = end else {
            return too_long(name);
        };
        let found = name[..name.len() - end.len()].trim().to_owned();
        if found.is_empty() || found.contains(char::is_whitespace) {
            return Step::Wrong;
        }
        self.name = found;
        if end == self.tags.end {
            return self.end(events);
        }
        self.at = match self.tags.name_end == self.tags.open {
            true => At::Key(String::new()),
            false => At::Between(String::new()),
        };
        Step::More
    }

    /// A parameter begins: with the first one, the call does.
    fn found_key(&mut self, raw: &str, events: &mut Vec<Event>) -> Step {
        // Between quotes and followed by attributes, or bare.
        let (key, attributes) = raw.split_once('"').unwrap_or((raw, ""));
        let key = key.trim();
        if !self.begun {
            self.begun = true;
            events.push(Event::Begins(self.name.clone()));
        }
        let open = if self.parameters == 0 { "{" } else { ", " };
        self.parameters += 1;
        events.push(Event::Arguments(format!("{open}{}: ", Value::from(key))));
        self.kind = match attributes {
            a if a.contains("string=\"true\"") => Kind::Text,
            a if a.contains("string=\"false\"") => Kind::Other,
            _ => self.kinds.of(&self.name, key),
        };
        self.value.clear();
        self.quoted = false;
        self.at = match self.tags.value_open {
            "" => At::Value,
            _ => At::ValueOpen(String::new()),
        };
        Step::Settled
    }

    fn in_value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.value.push(c);
        if self.value.ends_with(self.tags.value_end) {
            self.value
                .truncate(self.value.len() - self.tags.value_end.len());
            self.write_value(events);
            self.at = At::Between(String::new());
        } else if self.kind == Kind::Text {
            self.write_settled_text(events);
        }
        Step::Settled
    }

    /// Writes what of a text can no longer be the tag that ends it, or the line break before that.
    fn write_settled_text(&mut self, events: &mut Vec<Event>) {
        if !self.quoted && matches!(self.value.as_str(), "\n" | "\r") {
            return;
        }
        let end = self.tags.value_end;
        let longest = self.value.len().min(end.len() + 1);
        let held = (1..=longest).rev().find(|n| {
            let Some(tail) = self.value.get(self.value.len() - n..) else {
                return false;
            };
            let tag = tail.strip_prefix('\n').unwrap_or(tail);
            end.starts_with(tag)
        });
        let settled = self.value.len() - held.unwrap_or(0);
        if settled > 0 {
            let rest = self.value.split_off(settled);
            let text = std::mem::replace(&mut self.value, rest);
            self.write_text(&text, events);
        }
    }

    fn write_text(&mut self, text: &str, events: &mut Vec<Event>) {
        let text = match self.quoted {
            true => text,
            false => text.strip_prefix('\n').unwrap_or(text),
        };
        let quote = if self.quoted { "" } else { "\"" };
        self.quoted = true;
        let escaped = Value::from(text).to_string();
        let inside = escaped.get(1..escaped.len() - 1).unwrap_or_default();
        events.push(Event::Arguments(format!("{quote}{inside}")));
    }

    /// Writes a whole value, or the rest of a text.
    fn write_value(&mut self, events: &mut Vec<Event>) {
        let value = std::mem::take(&mut self.value);
        if self.kind != Kind::Text {
            let trimmed = value.trim();
            let python = match trimmed {
                "True" => "true",
                "False" => "false",
                "None" => "null",
                other => other,
            };
            let trimmed = if self.kind == Kind::Other {
                python
            } else {
                trimmed
            };
            let json: Option<Value> = serde_json::from_str(trimmed).ok();
            let taken = json.is_some_and(|json| self.kind == Kind::Other || !json.is_string());
            if taken {
                return events.push(Event::Arguments(trimmed.to_owned()));
            }
        }
        let text = value.strip_suffix('\n').unwrap_or(&value);
        self.write_text(text, events);
        events.push(Event::Arguments("\"".to_owned()));
    }

    fn end(&mut self, events: &mut Vec<Event>) -> Step {
        if !self.begun {
            events.push(Event::Begins(self.name.clone()));
        }
        let rest = if self.parameters == 0 { "{}" } else { "}" };
        events.push(Event::Arguments(rest.to_owned()));
        Step::Over
    }

    /// Ends a call that something else broke off with what makes its arguments complete, or writes
    /// what is there of one that ends with the answer.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        if !self.begun || self.parameters == 0 {
            return;
        }
        match (&self.at, complete) {
            (At::Value, true) => self.write_value(events),
            (At::Value, false) => {
                let value = std::mem::take(&mut self.value);
                match self.kind {
                    Kind::Text => self.write_text(&value, events),
                    _ => events.push(Event::Arguments(value)),
                }
            }
            (At::ValueOpen(_), true) => events.push(Event::Arguments("null".to_owned())),
            _ => {}
        }
        if complete {
            events.push(Event::Arguments("}".to_owned()));
        }
    }
}

fn too_long(text: &str) -> Step {
    match text.len() > MAX_NAME {
        true => Step::Wrong,
        false => Step::More,
    }
}

fn begins(tags: [&str; 2], tail: &str) -> Step {
    match tags.iter().any(|tag| tag.starts_with(tail)) {
        true => Step::More,
        false => Step::Wrong,
    }
}

/// What the schemas of tools say about their parameters.
pub(super) fn kinds(tools: &[Value]) -> Kinds {
    let mut kinds = Kinds::default();
    for tool in tools {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str);
        kinds.names.extend(name.map(str::to_owned));
        let properties = function
            .get("parameters")
            .and_then(|parameters| parameters.get("properties"))
            .and_then(Value::as_object);
        for (key, schema) in properties.into_iter().flatten() {
            let kind = match schema.get("type") {
                Some(Value::String(kind)) if kind == "string" => Kind::Text,
                Some(Value::String(_)) => Kind::Other,
                _ => Kind::Unknown,
            };
            let place = (name.unwrap_or_default().to_owned(), key.clone());
            kinds.parameters.insert(place, kind);
        }
    }
    kinds
}
