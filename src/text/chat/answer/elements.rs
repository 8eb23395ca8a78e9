//! Reads calls with one element per parameter, named after it (MiniMax M3): objects and lists are
//! nested elements, and become JSON.

use std::sync::Arc;

use serde_json::Value;

use super::json::{begins, escaped};
use super::schema::{Key, Tools, Types};
use super::step::{Event, MAX_NAME, Step};

/// Marker before every tag.
const SPACE: &str = "]<]minimax[>[";
const END: &str = "</invoke>";
const ITEM: &str = "item";
/// The deepest nesting of elements.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone)]
enum At {
    Name(String),
    /// Before a tag: a prefix of [`SPACE`].
    Space(String),
    /// In a tag, from its `<` on.
    Tag(String),
}

/// Contents of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Not known yet: white space, or a value that is interpreted at its end.
    Unknown,
    /// A verbatim text up to its end tag.
    Text,
    Object,
    List,
}

#[derive(Debug, Clone)]
struct Element {
    tag: String,
    types: Types,
    holds: Holds,
    /// Whether there are no nested elements so far.
    is_empty: bool,
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) struct ElementReader {
    tools: Arc<Tools>,
    at: At,
    name: String,
    begun: bool,
    parameters: usize,
    open: Vec<Element>,
    /// Path of the innermost element.
    path: Vec<Key>,
    /// Part of a value that is not written yet.
    value: String,
    /// Whether a text's opening quote is written.
    quoted: bool,
}

impl ElementReader {
    pub(super) fn new(tools: &Arc<Tools>) -> ElementReader {
        ElementReader {
            tools: Arc::clone(tools),
            at: At::Name(String::new()),
            name: String::new(),
            begun: false,
            parameters: 0,
            open: Vec::new(),
            path: Vec::new(),
            value: String::new(),
            quoted: false,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Name(name) => {
                name.push(c);
                let Some(found) = name.strip_suffix("\">") else {
                    return match name.len() > MAX_NAME {
                        true => Step::Wrong,
                        false => Step::More,
                    };
                };
                if found.is_empty() || found.contains(char::is_whitespace) {
                    return Step::Wrong;
                }
                self.name = found.to_owned();
                self.at = At::Space(String::new());
                Step::More
            }
            At::Space(tail) => {
                tail.push(c);
                if tail == SPACE {
                    self.at = At::Tag(String::new());
                    return Step::More;
                }
                if SPACE.starts_with(tail.as_str()) {
                    return Step::More;
                }
                self.no_space(events)
            }
            At::Tag(tag) => {
                tag.push(c);
                if self.open.last().is_some_and(|e| e.holds == Holds::Text) {
                    return self.tag_in_text(events);
                }
                match c {
                    '>' => {
                        let tag = std::mem::take(tag);
                        self.at = At::Space(String::new());
                        self.found_tag(&tag, events)
                    }
                    _ if !tag.starts_with('<') || tag.len() > MAX_NAME => Step::Wrong,
                    _ => Step::More,
                }
            }
        }
    }

    /// Handles text that turned out not to be [`SPACE`].
    fn no_space(&mut self, events: &mut Vec<Event>) -> Step {
        let At::Space(tail) = &mut self.at else {
            return Step::Wrong;
        };
        let held = (0..=tail.len())
            .find(|&at| tail.get(at..).is_some_and(|rest| SPACE.starts_with(rest)))
            .unwrap_or(tail.len());
        let rest = tail.split_off(held);
        let text = std::mem::replace(tail, rest);
        self.text(&text, events)
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) -> Step {
        match self.open.last().map(|element| element.holds) {
            Some(Holds::Text) => {
                self.write_text(text, events);
                Step::Settled
            }
            Some(Holds::Unknown) => {
                self.value.push_str(text);
                Step::Settled
            }
            _ if text.chars().all(char::is_whitespace) => Step::More,
            _ => Step::Wrong,
        }
    }

    fn write(&self, json: &str, events: &mut Vec<Event>) {
        events.push(Event::Arguments(json.to_owned()));
    }

    fn write_text(&mut self, text: &str, events: &mut Vec<Event>) {
        let quote = if self.quoted { "" } else { "\"" };
        self.quoted = true;
        self.write(&format!("{quote}{}", escaped(text)), events);
    }

    /// Handles a tag within a text, where only the text's own end tag counts.
    fn tag_in_text(&mut self, events: &mut Vec<Event>) -> Step {
        let (At::Tag(tag), Some(element)) = (&self.at, self.open.last()) else {
            return Step::Wrong;
        };
        let end = format!("</{}>", element.tag);
        if *tag == end {
            self.at = At::Space(String::new());
            return self.close(events);
        }
        if begins(&[&end], tag) == Step::More {
            return Step::More;
        }
        // Another tag may begin with the last character.
        let mut text = format!("{SPACE}{tag}");
        let last = text.pop().map(String::from).unwrap_or_default();
        self.at = At::Space(String::new());
        self.write_text(&text, events);
        match last.chars().next() {
            Some(c) => self.step(c, events),
            None => Step::Settled,
        }
    }

    fn found_tag(&mut self, tag: &str, events: &mut Vec<Event>) -> Step {
        if self.open.is_empty() && tag == END {
            if !self.begun {
                events.push(Event::Begins(self.name.clone(), None));
            }
            let rest = if self.parameters == 0 { "{}" } else { "}" };
            self.write(rest, events);
            return Step::Over;
        }
        if let Some(closed) = tag.strip_prefix("</").and_then(|tag| tag.strip_suffix('>')) {
            return match self.open.last() {
                Some(element) if element.tag == closed => self.close(events),
                _ => Step::Wrong,
            };
        }
        match tag.strip_prefix('<').and_then(|tag| tag.strip_suffix('>')) {
            Some(name) if !name.is_empty() && self.open.len() < MAX_DEPTH => {
                self.open(name.to_owned(), events)
            }
            _ => Step::Wrong,
        }
    }

    fn open(&mut self, tag: String, events: &mut Vec<Event>) -> Step {
        if !self.value.trim().is_empty() {
            return Step::Wrong;
        }
        self.value.clear();
        let key = match self.open.last_mut() {
            None => {
                if !self.begun {
                    self.begun = true;
                    events.push(Event::Begins(self.name.clone(), None));
                }
                let before = if self.parameters == 0 { "{" } else { ", " };
                self.parameters += 1;
                self.write(&format!("{before}{}: ", Value::from(tag.as_str())), events);
                Key::Property(tag.clone())
            }
            Some(parent) => {
                let mut before = ", ";
                if parent.holds == Holds::Unknown {
                    let is_list = tag == ITEM && parent.types.may_be_array();
                    parent.holds = if is_list { Holds::List } else { Holds::Object };
                    before = if is_list { "[" } else { "{" };
                } else if parent.is_empty {
                    before = "";
                }
                parent.is_empty = false;
                let is_list = parent.holds == Holds::List;
                if is_list && tag != ITEM {
                    return Step::Wrong;
                }
                self.write(before, events);
                if is_list {
                    Key::Item
                } else {
                    self.write(&format!("{}: ", Value::from(tag.as_str())), events);
                    Key::Property(tag.clone())
                }
            }
        };
        self.path.push(key);
        let types = self.tools.types(&self.name, &self.path);
        self.quoted = false;
        self.open.push(Element {
            tag,
            types,
            holds: match types.may_be_text() {
                true => Holds::Text,
                false => Holds::Unknown,
            },
            is_empty: true,
        });
        Step::Settled
    }

    fn close(&mut self, events: &mut Vec<Event>) -> Step {
        self.path.pop();
        let Some(element) = self.open.pop() else {
            return Step::Wrong;
        };
        match element.holds {
            Holds::Object => self.write("}", events),
            Holds::List => self.write("]", events),
            Holds::Text => {
                self.write_text("", events);
                self.write("\"", events);
            }
            Holds::Unknown => self.write_value(element.types, events),
        }
        Step::Settled
    }

    /// Writes a value without nested elements.
    fn write_value(&mut self, types: Types, events: &mut Vec<Event>) {
        let value = std::mem::take(&mut self.value);
        let is_empty = value.trim().is_empty() && types != Types::ANY;
        match types.json_of(&value, self.tools.is_strict) {
            Some(json) => self.write(json, events),
            None if is_empty && types.may_be_array() => self.write("[]", events),
            None if is_empty && types.may_be_object() => self.write("{}", events),
            None => self.write(&Value::from(value).to_string(), events),
        }
    }

    /// Completes a call that is interrupted by something else (`complete`), or emits the text read
    /// so far if the answer ends.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        if !self.begun {
            return;
        }
        let held = match &self.at {
            At::Space(tail) => tail.clone(),
            At::Tag(tag) => format!("{SPACE}{tag}"),
            At::Name(_) => String::new(),
        };
        if self.open.last().is_some_and(|e| e.holds == Holds::Text) {
            self.write_text(&held, events);
        }
        if !complete {
            if !self.value.is_empty() {
                let value = std::mem::take(&mut self.value);
                self.write(&value, events);
            }
            return;
        }
        while !self.open.is_empty() {
            self.close(events);
        }
        self.write("}", events);
    }
}
