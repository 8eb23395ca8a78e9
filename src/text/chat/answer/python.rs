//! Reads a Python-style call, `f(city="Bern", days=2)`: its arguments become JSON.

use serde_json::Value;

use super::json::escaped;
use super::step::{Event, MAX_NAME, Step};

const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone)]
enum At {
    /// In the function's name, up to its bracket.
    Name(String),
    /// Before or in a parameter's name.
    Parameter(String),
    /// Before a value, or the end of an empty list, tuple or dict.
    Value,
    /// In a number or word.
    Scalar(String),
    /// After quotes that open a text: the quote character, and their number.
    Quotes(char, usize),
    Text(Text),
    /// After a value.
    After,
}

/// A string literal.
#[derive(Debug, Clone)]
struct Text {
    quote: char,
    is_long: bool,
    /// Number of quotes that may end a triple-quoted string.
    quotes: usize,
    /// Text of an escape after its backslash.
    escape: Option<String>,
    /// First half of a surrogate pair, which JSON writes as two escapes.
    surrogate: Option<u32>,
}

/// Bracket open around a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Call,
    List,
    Tuple,
    /// A dict, before or after the colon of an entry.
    Dict {
        is_key: bool,
    },
}

/// Reads one call.
#[derive(Debug, Clone)]
pub(super) struct PythonReader {
    at: At,
    open: Vec<Open>,
    /// Whether the innermost open bracket has no members yet.
    is_empty: bool,
    begun: bool,
}

impl PythonReader {
    pub(super) fn new() -> PythonReader {
        PythonReader {
            at: At::Name(String::new()),
            open: Vec::new(),
            is_empty: true,
            begun: false,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        match &mut self.at {
            At::Name(name) => match c {
                '(' => {
                    let name = std::mem::take(name);
                    let function = name.strip_suffix(".call").unwrap_or(&name);
                    events.push(Event::Begins(function.to_owned(), None));
                    self.begun = true;
                    self.open.push(Open::Call);
                    self.write("{", events);
                    self.at = At::Parameter(String::new());
                    Step::Settled
                }
                c if c.is_alphanumeric() || "_.-".contains(c) => {
                    name.push(c);
                    short(name)
                }
                _ => Step::Wrong,
            },
            At::Parameter(_) => self.parameter(c, events),
            At::Value => self.value(c, events),
            At::Scalar(scalar) => match c {
                c if c.is_ascii_alphanumeric() || "+-._".contains(c) => {
                    scalar.push(c);
                    short(scalar)
                }
                _ => match json_of(scalar) {
                    None => Step::Wrong,
                    Some(json) => {
                        self.write(&json, events);
                        self.at = At::After;
                        self.after(c, events)
                    }
                },
            },
            At::Quotes(quote, count) => {
                let (quote, count) = (*quote, *count);
                match (c == quote, count) {
                    (true, 1) => self.at = At::Quotes(quote, 2),
                    (true, _) => self.open_text(quote, true, events),
                    (false, 1) => {
                        self.open_text(quote, false, events);
                        return self.step(c, events);
                    }
                    (false, _) => {
                        self.write("\"\"", events);
                        self.at = At::After;
                        return self.after(c, events);
                    }
                }
                Step::Settled
            }
            At::Text(text) => match text.step(c) {
                None => Step::Wrong,
                Some((written, ends)) => {
                    self.write(&written, events);
                    if ends {
                        self.write("\"", events);
                        self.at = At::After;
                    }
                    Step::Settled
                }
            },
            At::After => self.after(c, events),
        }
    }

    fn write(&self, json: &str, events: &mut Vec<Event>) {
        if !json.is_empty() {
            events.push(Event::Arguments(json.to_owned()));
        }
    }

    fn parameter(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let At::Parameter(name) = &mut self.at else {
            return Step::Wrong;
        };
        match c {
            c if c.is_whitespace() => Step::Settled,
            ')' if name.is_empty() => self.close(Open::Call, events),
            '=' if !name.is_empty() => {
                let key = Value::from(std::mem::take(name));
                let before = if self.is_empty { "" } else { ", " };
                self.write(&format!("{before}{key}: "), events);
                self.is_empty = false;
                self.at = At::Value;
                Step::Settled
            }
            c if c.is_alphanumeric() || "_.-".contains(c) => {
                name.push(c);
                match short(name) {
                    Step::More => Step::Settled,
                    wrong => wrong,
                }
            }
            _ => Step::Wrong,
        }
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let innermost = self.open.last().copied();
        match (c, innermost) {
            (c, _) if c.is_whitespace() => return Step::Settled,
            (']', Some(Open::List)) => return self.close(Open::List, events),
            (')', Some(Open::Tuple)) => return self.close(Open::Tuple, events),
            ('}', Some(Open::Dict { is_key: true })) => {
                return self.close(Open::Dict { is_key: true }, events);
            }
            _ => {}
        }
        let is_key = innermost == Some(Open::Dict { is_key: true });
        let begins = match c {
            '"' | '\'' => true,
            '[' | '(' | '{' => !is_key && self.open.len() < MAX_DEPTH,
            c => !is_key && (c.is_ascii_alphanumeric() || "+-.".contains(c)),
        };
        if !begins {
            return Step::Wrong;
        }
        if !self.is_empty && matches!(innermost, Some(open) if is_separated(open)) {
            self.write(", ", events);
        }
        match c {
            '"' | '\'' => self.at = At::Quotes(c, 1),
            '[' => return self.open(Open::List, "[", events),
            '(' => return self.open(Open::Tuple, "[", events),
            '{' => return self.open(Open::Dict { is_key: true }, "{", events),
            c => self.at = At::Scalar(c.to_string()),
        }
        self.is_empty = false;
        Step::Settled
    }

    fn open(&mut self, open: Open, json: &str, events: &mut Vec<Event>) -> Step {
        self.write(json, events);
        self.open.push(open);
        self.is_empty = true;
        self.at = At::Value;
        Step::Settled
    }

    fn open_text(&mut self, quote: char, is_long: bool, events: &mut Vec<Event>) {
        self.write("\"", events);
        self.at = At::Text(Text {
            quote,
            is_long,
            quotes: 0,
            escape: None,
            surrogate: None,
        });
    }

    fn after(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let Some(innermost) = self.open.last_mut() else {
            return Step::Wrong;
        };
        match (c, *innermost) {
            (c, _) if c.is_whitespace() => Step::Settled,
            (':', Open::Dict { is_key: true }) => {
                *innermost = Open::Dict { is_key: false };
                self.write(": ", events);
                self.at = At::Value;
                Step::Settled
            }
            (',', Open::Dict { is_key: false }) => {
                *innermost = Open::Dict { is_key: true };
                self.at = At::Value;
                Step::Settled
            }
            (',', Open::Call) => {
                self.at = At::Parameter(String::new());
                Step::Settled
            }
            (',', Open::List | Open::Tuple) => {
                self.at = At::Value;
                Step::Settled
            }
            (')', Open::Call) => self.close(Open::Call, events),
            (')', Open::Tuple) => self.close(Open::Tuple, events),
            (']', Open::List) => self.close(Open::List, events),
            ('}', open @ Open::Dict { is_key: false }) => self.close(open, events),
            _ => Step::Wrong,
        }
    }

    fn close(&mut self, open: Open, events: &mut Vec<Event>) -> Step {
        self.open.pop();
        self.write(json_closer(open), events);
        self.is_empty = false;
        self.at = At::After;
        match self.open.is_empty() {
            true => Step::Over,
            false => Step::Settled,
        }
    }

    /// Completes a call that was interrupted.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        if !complete || !self.begun {
            if let (true, At::Scalar(scalar)) = (self.begun, &self.at) {
                events.push(Event::Arguments(scalar.clone()));
            }
            return;
        }
        match &self.at {
            At::Scalar(scalar) => {
                let json = json_of(scalar).unwrap_or_else(|| "null".to_owned());
                self.write(&json, events);
            }
            At::Quotes(..) => self.write("\"\"", events),
            At::Text(_) => self.write("\"", events),
            At::Value if !self.is_empty && !self.is_separated() => self.write("null", events),
            _ => {}
        }
        if let Some(Open::Dict { is_key: true }) = self.open.last()
            && matches!(self.at, At::Text(_) | At::Quotes(..) | At::After)
            && !self.is_empty
        {
            self.write(": null", events);
        }
        while let Some(open) = self.open.pop() {
            self.write(json_closer(open), events);
        }
    }

    /// Returns whether the next value is preceded by a comma.
    fn is_separated(&self) -> bool {
        matches!(self.open.last(), Some(open) if is_separated(*open))
    }
}

/// Returns whether [`PythonReader::value`] writes a comma between the members of this bracket.
fn is_separated(open: Open) -> bool {
    matches!(open, Open::List | Open::Tuple | Open::Dict { is_key: true })
}

fn json_closer(open: Open) -> &'static str {
    match open {
        Open::Call | Open::Dict { .. } => "}",
        Open::List | Open::Tuple => "]",
    }
}

fn short(text: &str) -> Step {
    match text.len() > MAX_NAME {
        true => Step::Wrong,
        false => Step::More,
    }
}

/// Returns the JSON of a number or a word.
fn json_of(scalar: &str) -> Option<String> {
    match scalar {
        "True" | "true" => return Some("true".to_owned()),
        "False" | "false" => return Some("false".to_owned()),
        "None" | "null" => return Some("null".to_owned()),
        _ => {}
    }
    let plain = scalar.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    let number: Option<Value> = serde_json::from_str(plain).ok();
    if number.is_some_and(|value| value.is_number()) {
        return Some(plain.to_owned());
    }
    // Numbers such as 1. and .5, which are not JSON.
    let number: f64 = plain.parse().ok()?;
    let is_digits = plain.bytes().any(|b| b.is_ascii_digit());
    (number.is_finite() && is_digits).then(|| Value::from(number).to_string())
}

impl Text {
    /// Reads a character; returns the JSON text it adds, and whether it ends the literal.
    fn step(&mut self, c: char) -> Option<(String, bool)> {
        if let Some(escape) = &mut self.escape {
            escape.push(c);
            let whole = escape.clone();
            return Some((self.unescape(&whole)?, false));
        }
        if c == self.quote {
            if !self.is_long {
                return Some((self.lone_surrogate(), true));
            }
            self.quotes += 1;
            return Some((String::new(), self.quotes == 3));
        }
        // Another escape may be the second half of a surrogate pair.
        let mut written = match c {
            '\\' => String::new(),
            _ => self.lone_surrogate(),
        };
        for _ in 0..std::mem::take(&mut self.quotes) {
            written.push_str(&escaped(&self.quote.to_string()));
        }
        match c {
            '\\' => self.escape = Some(String::new()),
            c => written.push_str(&escaped(&c.to_string())),
        }
        Some((written, false))
    }

    fn lone_surrogate(&mut self) -> String {
        match self.surrogate.take() {
            Some(_) => "\u{fffd}".to_owned(),
            None => String::new(),
        }
    }

    /// Returns the meaning of an escape, once complete.
    fn unescape(&mut self, escape: &str) -> Option<String> {
        let kind = escape.chars().next()?;
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if escape.len() <= digits && escape.len() > 1 || digits > 0 && escape.len() == 1 {
            let is_digit = escape.len() == 1 || escape.ends_with(|c: char| c.is_ascii_hexdigit());
            return is_digit.then(String::new);
        }
        self.escape = None;
        if digits > 0 {
            let code = u32::from_str_radix(&escape[1..], 16).ok()?;
            return Some(self.code_point(code));
        }
        let mut written = self.lone_surrogate();
        let text = match kind {
            'n' => "\n",
            't' => "\t",
            'r' => "\r",
            'b' => "\u{8}",
            'f' => "\u{c}",
            'v' => "\u{b}",
            'a' => "\u{7}",
            '0' => "\0",
            // A line continuation.
            '\n' => "",
            '\\' | '"' | '\'' | '/' => escape,
            // Python preserves a backslash before any other character.
            _ => {
                written.push_str(&escaped(&format!("\\{escape}")));
                return Some(written);
            }
        };
        written.push_str(&escaped(text));
        Some(written)
    }

    fn code_point(&mut self, code: u32) -> String {
        match (self.surrogate.take(), code) {
            (None, 0xd800..=0xdbff) => {
                self.surrogate = Some(code);
                String::new()
            }
            (Some(high), 0xdc00..=0xdfff) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00);
                escaped(&char::from_u32(code).unwrap_or('\u{fffd}').to_string())
            }
            (before, code) => {
                let lone = if before.is_some() { "\u{fffd}" } else { "" };
                let c = char::from_u32(code).unwrap_or('\u{fffd}');
                format!("{lone}{}", escaped(&c.to_string()))
            }
        }
    }
}
