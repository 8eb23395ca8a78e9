//! Reads a call that is an object with the name and arguments of a function.

use super::json::{Scan, unquoted};
use super::step::{Event, MAX_NAME, Step};
use super::syntax::{Body, Syntax};

const NAME_KEYS: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENT_KEYS: [&str; 3] = ["arguments", "parameters", "args"];
/// Keys that may hold the call id.
const ID_KEYS: [&str; 3] = ["id", "tool_call_id", "call_id"];
/// Other keys that a call object may begin with.
const OTHER_KEYS: [&str; 2] = ["type", "index"];

#[derive(Debug, Clone)]
enum At {
    /// Before a key, or at the end of an empty object.
    Key,
    InKey,
    Colon,
    Value,
    InName,
    InId,
    InText,
    InArguments,
    InOther(Scan),
    InScalar(String),
    AfterValue,
}

/// An object with a name and arguments.
#[derive(Debug, Clone)]
pub(super) struct Object {
    keyed: bool,
    bare: bool,
    has_late_id: bool,
    at: At,
    key: String,
    /// Contents so far of the string being read, without quotes.
    text: String,
    escaped: bool,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name, or before the id in formats that write it last.
    early: Option<String>,
    begun: bool,
    scan: Scan,
    keys: usize,
}

impl Object {
    pub(super) fn new(syntax: Syntax) -> Object {
        Object {
            keyed: syntax.body == Body::Keyed,
            bare: syntax.is_bare,
            has_late_id: syntax.has_late_ids,
            at: At::Key,
            key: String::new(),
            text: String::new(),
            escaped: false,
            name: None,
            id: None,
            early: None,
            begun: false,
            scan: Scan::default(),
            keys: 0,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Key | At::Colon | At::Value | At::AfterValue if c.is_whitespace() => Step::More,
            At::Key => match c {
                '"' => self.to(At::InKey),
                '}' => self.end(events),
                _ => Step::Wrong,
            },
            At::InKey => match self.string(c) {
                None => self.short(),
                Some(key) => self.found_key(key),
            },
            At::Colon => match c {
                ':' => self.to(At::Value),
                _ => Step::Wrong,
            },
            At::Value => self.value(c, events),
            At::InName => match self.string(c) {
                None => self.short(),
                Some(name) if !name.is_empty() => {
                    self.name = Some(name);
                    self.at = At::AfterValue;
                    match self.early.take_if(|_| !self.has_late_id) {
                        Some(arguments) => self.begin(arguments, events),
                        None => Step::More,
                    }
                }
                Some(_) => Step::Wrong,
            },
            At::InId => match self.string(c) {
                None => self.short(),
                Some(id) => {
                    self.id = Some(id).filter(|id| !id.is_empty());
                    self.to(At::AfterValue)
                }
            },
            At::InText => match self.string(c) {
                None => Step::More,
                Some(arguments) => self.arguments(arguments, events),
            },
            At::InArguments => self.inside(c, events),
            At::InOther(scan) => match scan.step(c) {
                None => Step::Wrong,
                Some(true) => self.to(At::AfterValue),
                Some(false) => Step::More,
            },
            At::InScalar(scalar) => match c {
                ',' | '}' => {
                    let is_id = ID_KEYS.contains(&self.key.as_str());
                    if is_id && scalar.bytes().any(|b| b.is_ascii_digit()) {
                        self.id = Some(scalar.trim().to_owned());
                    }
                    self.at = At::AfterValue;
                    self.step(c, events)
                }
                c if c.is_ascii_alphanumeric() || "+-. \n".contains(c) => {
                    scalar.push(c);
                    match scalar.len() > MAX_NAME {
                        true => Step::Wrong,
                        false => Step::More,
                    }
                }
                _ => Step::Wrong,
            },
            At::AfterValue => match c {
                ',' => self.to(At::Key),
                '}' => self.end(events),
                _ => Step::Wrong,
            },
        }
    }

    fn to(&mut self, at: At) -> Step {
        self.at = at;
        self.text.clear();
        Step::More
    }

    /// Reads a string; returns its contents once it ends.
    fn string(&mut self, c: char) -> Option<String> {
        if c == '"' && !self.escaped {
            let text = std::mem::take(&mut self.text);
            return Some(unquoted(&text).unwrap_or(text));
        }
        self.escaped = c == '\\' && !self.escaped;
        self.text.push(c);
        None
    }

    /// Refuses overlong names.
    fn short(&self) -> Step {
        match self.text.len() > MAX_NAME {
            true => Step::Wrong,
            false => Step::More,
        }
    }

    fn found_key(&mut self, key: String) -> Step {
        self.keys += 1;
        let key_name = key.as_str();
        let known = NAME_KEYS.contains(&key_name)
            || ARGUMENT_KEYS.contains(&key_name)
            || ID_KEYS.contains(&key_name)
            || OTHER_KEYS.contains(&key_name);
        // An answer that is JSON for another reason is soon distinguished from a call.
        if self.bare && self.keys == 1 && !known {
            return Step::Wrong;
        }
        self.key = key;
        self.to(At::Colon)
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let key = self.key.as_str();
        let is_name = NAME_KEYS.contains(&key) && self.name.is_none() && !self.keyed;
        let is_id = ID_KEYS.contains(&key) && self.id.is_none();
        let is_arguments = ARGUMENT_KEYS.contains(&key) && !self.begun && self.early.is_none();
        if self.keyed && self.name.is_none() && c == '{' {
            self.name = Some(self.key.clone());
            return self.arguments_begin(c, events);
        }
        match c {
            '"' if is_name => self.to(At::InName),
            '"' if is_id => self.to(At::InId),
            '{' if is_arguments => self.arguments_begin(c, events),
            '"' if is_arguments => self.to(At::InText),
            // `null` means no arguments.
            _ if is_arguments && c != 'n' => Step::Wrong,
            '{' | '[' | '"' => {
                let mut scan = Scan::default();
                scan.step(c);
                self.to(At::InOther(scan))
            }
            _ => {
                self.at = At::InScalar(String::new());
                self.step(c, events)
            }
        }
    }

    fn arguments_begin(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        self.scan = Scan::default();
        self.at = At::InArguments;
        match self.name.clone() {
            Some(name) if !self.has_late_id => {
                self.begun = true;
                events.push(Event::Begins(name, self.id.take()));
            }
            _ => self.early = Some(String::new()),
        }
        self.inside(c, events)
    }

    fn inside(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let Some(over) = self.scan.step(c) else {
            return Step::Wrong;
        };
        if over {
            self.at = At::AfterValue;
        }
        match &mut self.early {
            Some(early) => {
                early.push(c);
                Step::More
            }
            None => {
                events.push(Event::Arguments(c.to_string()));
                Step::Settled
            }
        }
    }

    /// Handles arguments that are completely known.
    fn arguments(&mut self, arguments: String, events: &mut Vec<Event>) -> Step {
        self.at = At::AfterValue;
        match self.name {
            Some(_) if !self.has_late_id => self.begin(arguments, events),
            _ => {
                self.early = Some(arguments);
                Step::More
            }
        }
    }

    fn begin(&mut self, arguments: String, events: &mut Vec<Event>) -> Step {
        self.begun = true;
        let name = self.name.clone().unwrap_or_default();
        events.push(Event::Begins(name, self.id.take()));
        events.push(Event::Arguments(arguments));
        Step::Settled
    }

    fn end(&mut self, events: &mut Vec<Event>) -> Step {
        if self.name.is_none() {
            return Step::Wrong;
        }
        if !self.begun {
            let arguments = self.early.take().unwrap_or_else(|| "{}".to_owned());
            self.begin(arguments, events);
        }
        Step::Over
    }

    /// Emits a call that was interrupted before its id came.
    pub(super) fn break_off(&mut self, events: &mut Vec<Event>) {
        if self.name.is_some()
            && !self.begun
            && let Some(arguments) = self.early.take()
        {
            self.begin(arguments, events);
        }
    }
}
