//! Reads calls with parameters in tags: their arguments become JSON.

use std::sync::Arc;

use serde_json::Value;

use super::json::{Scan, begins, escaped};
use super::schema::{Key, Tools, Types};
use super::step::{Event, MAX_NAME, Step};
use super::syntax::Tags;

/// Markers around a text that may contain the tags of its call, as in XML.
const CDATA: (&str, &str) = ("<![CDATA[", "]]>");

#[derive(Debug, Clone)]
enum At {
    Name(String),
    /// Between parameters; text that may start a tag.
    Between(String),
    Key(String),
    /// Between a key and the tag that opens its value.
    ValueOpen(String),
    Value,
    /// In arguments given as JSON instead.
    Json(Scan),
    JsonAfter(String),
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) struct TagReader {
    tags: &'static Tags,
    tools: Arc<Tools>,
    at: At,
    name: String,
    begun: bool,
    parameters: usize,
    types: Types,
    /// Part of a value that is not written yet.
    value: String,
    /// Whether a text's opening quote is written.
    quoted: bool,
    /// Whether the value began with the line break of its format.
    is_padded: bool,
    /// Whether the value is in [`CDATA`].
    is_cdata: bool,
}

impl TagReader {
    pub(super) fn new(tags: &'static Tags, tools: &Arc<Tools>) -> TagReader {
        TagReader {
            tags,
            tools: Arc::clone(tools),
            at: At::Name(String::new()),
            name: String::new(),
            begun: false,
            parameters: 0,
            types: Types::ANY,
            value: String::new(),
            quoted: false,
            is_padded: false,
            is_cdata: false,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Name(_) => self.in_name(c, events),
            At::Between(_) => self.between(c, events),
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
                begins(&[self.tags.value_open], tail)
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
                let json_end = self.tags.json.map_or(self.tags.end, |(_, close)| close);
                if tail == json_end && json_end != self.tags.end {
                    tail.clear();
                    return Step::More;
                }
                match tail == self.tags.end {
                    true => Step::Over,
                    false => begins(&[self.tags.end, json_end], tail),
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
        let found = &name[..name.len() - end.len()];
        // A quote ends the name if attributes follow it.
        let found = found.split('"').next().unwrap_or(found).trim().to_owned();
        if found.is_empty() || found.contains(|c: char| c.is_whitespace() || "{<".contains(c)) {
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

    fn between(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let At::Between(tail) = &mut self.at else {
            return Step::Wrong;
        };
        if tail.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        if tail.is_empty() && c == '{' && !self.begun {
            self.begun = true;
            events.push(Event::Begins(self.name.clone(), None));
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
        let json = self.tags.json.map_or(self.tags.open, |(open, _)| open);
        if tail == json && !self.begun {
            tail.clear();
            return Step::More;
        }
        begins(&[self.tags.open, self.tags.end, json], tail)
    }

    /// Handles the start of a parameter; the first one also begins the call.
    fn found_key(&mut self, raw: &str, events: &mut Vec<Event>) -> Step {
        // In quotes and followed by attributes, or bare.
        let (key, attributes) = raw.split_once('"').unwrap_or((raw, ""));
        let key = key.trim();
        if !self.begun {
            self.begun = true;
            events.push(Event::Begins(self.name.clone(), None));
        }
        let open = if self.parameters == 0 { "{" } else { ", " };
        self.parameters += 1;
        events.push(Event::Arguments(format!("{open}{}: ", Value::from(key))));
        let types = self
            .tools
            .types(&self.name, &[Key::Property(key.to_owned())]);
        let is_text = ["string=\"true\"", "type=\"string\""]
            .iter()
            .any(|attribute| attributes.contains(attribute));
        self.types = match types {
            types if is_text && (types == Types::ANY || types.may_be_text()) => Types::TEXT,
            // The model's attribute says that it is no string, and the schema allows anything.
            Types::ANY if !attributes.is_empty() => Types::NO_TEXT,
            types => types,
        };
        self.value.clear();
        self.quoted = false;
        self.is_padded = false;
        self.is_cdata = false;
        self.at = match self.tags.value_open {
            "" => At::Value,
            _ => At::ValueOpen(String::new()),
        };
        Step::Settled
    }

    fn in_value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.value.push(c);
        if self.tags.has_cdata && !self.quoted && !self.is_cdata && self.value == CDATA.0 {
            self.is_cdata = true;
            self.types = Types::TEXT;
            self.value.clear();
            return Step::Settled;
        }
        let end = self.tags.value_end;
        let ended = self.value.strip_suffix(end);
        let ended = match self.is_cdata {
            true => ended.and_then(|value| value.strip_suffix(CDATA.1)),
            false => ended,
        };
        if let Some(length) = ended.map(str::len) {
            self.value.truncate(length);
            self.write_value(events);
            self.at = At::Between(String::new());
        } else if self.types == Types::TEXT {
            self.write_settled_text(events);
        }
        Step::Settled
    }

    /// Writes the part of a text that cannot be its end tag, or the line break before that.
    fn write_settled_text(&mut self, events: &mut Vec<Event>) {
        let may_open = !self.quoted && !self.is_cdata;
        if may_open && self.tags.has_cdata && CDATA.0.starts_with(self.value.as_str()) {
            return;
        }
        if may_open
            && self.tags.is_padded
            && !self.is_padded
            && let Some(rest) = self.value.strip_prefix('\n')
        {
            self.value = rest.to_owned();
            self.is_padded = true;
        }
        let end = self.tags.value_end;
        let before = match (self.is_cdata, self.is_padded) {
            (true, _) => CDATA.1,
            (false, true) => "\n",
            (false, false) => "",
        };
        let longest = self.value.len().min(before.len() + end.len());
        let held = (1..=longest).rev().find(|n| {
            let Some(tail) = self.value.get(self.value.len() - n..) else {
                return false;
            };
            match tail.strip_prefix(before) {
                Some(tag) => end.starts_with(tag),
                None => before.starts_with(tail) || !self.is_cdata && end.starts_with(tail),
            }
        });
        let settled = self.value.len() - held.unwrap_or(0);
        if settled > 0 {
            let rest = self.value.split_off(settled);
            let text = std::mem::replace(&mut self.value, rest);
            self.write_text(&text, events);
        }
    }

    fn write_text(&mut self, text: &str, events: &mut Vec<Event>) {
        let quote = if self.quoted { "" } else { "\"" };
        self.quoted = true;
        events.push(Event::Arguments(format!("{quote}{}", escaped(text))));
    }

    /// Writes a whole value, or the rest of a text.
    fn write_value(&mut self, events: &mut Vec<Event>) {
        let value = std::mem::take(&mut self.value);
        if !self.quoted
            && !self.is_cdata
            && let Some(json) = self.types.json_of(&value, self.tools.is_strict)
        {
            return events.push(Event::Arguments(json.to_owned()));
        }
        self.write_rest(&value, true, events);
        events.push(Event::Arguments("\"".to_owned()));
    }

    /// Writes the rest of a text, without the line breaks of the format if it is complete.
    fn write_rest(&mut self, value: &str, complete: bool, events: &mut Vec<Event>) {
        let mut text = value;
        if self.tags.is_padded && !self.is_cdata {
            if !self.quoted && !self.is_padded {
                let inside = text.strip_prefix('\n');
                self.is_padded = inside.is_some();
                text = inside.unwrap_or(text);
            }
            if self.is_padded && complete {
                text = text.strip_suffix('\n').unwrap_or(text);
            }
        }
        self.write_text(text, events);
    }

    fn end(&mut self, events: &mut Vec<Event>) -> Step {
        if !self.begun {
            events.push(Event::Begins(self.name.clone(), None));
        }
        let rest = if self.parameters == 0 { "{}" } else { "}" };
        events.push(Event::Arguments(rest.to_owned()));
        Step::Over
    }

    /// Completes the arguments of a call that is interrupted by something else (`complete`), or
    /// emits the text read so far if the answer ends.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        if !self.begun || self.parameters == 0 {
            return;
        }
        match (&self.at, complete) {
            (At::Value, true) => self.write_value(events),
            (At::Value, false) => {
                let value = std::mem::take(&mut self.value);
                match self.types.may_be_text() {
                    true => self.write_rest(&value, false, events),
                    false => events.push(Event::Arguments(value)),
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
