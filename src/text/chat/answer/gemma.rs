//! Reads Gemma's arguments, `{city:<|"|>Bern<|"|>,days:2}`: JSON with bare keys and special quote
//! tokens. Keys and texts in JSON quotes are accepted too.

use serde_json::Value;

use super::json::{Scan, escaped, unquoted};
use super::step::{Event, MAX_NAME, Step};

const QUOTE: &str = "<|\"|>";
const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone)]
enum At {
    /// Before or in a key.
    Key(String),
    Value,
    /// In a number or word.
    Scalar,
    /// Text that may be a quote opening a text.
    Opening(String),
    /// In a text; the string may be a quote ending it.
    Text(String),
    /// In a text in JSON quotes.
    JsonText(Scan),
    After,
}

/// Reads arguments from their `{` on, and writes them as JSON.
#[derive(Debug, Clone)]
pub(super) struct GemmaReader {
    open: Vec<char>,
    at: At,
}

impl GemmaReader {
    pub(super) fn new() -> GemmaReader {
        GemmaReader {
            open: Vec::new(),
            at: At::Value,
        }
    }

    pub(super) fn step(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let mut write = |text: &str| events.push(Event::Arguments(text.to_owned()));
        match &mut self.at {
            At::Key(key) => match c {
                ':' => {
                    let bare = key.trim();
                    let inside = bare.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
                    let bare = inside.and_then(unquoted).unwrap_or_else(|| bare.to_owned());
                    write(&format!("{}:", Value::from(bare)));
                    self.at = At::Value;
                }
                '}' if key.trim().is_empty() => return self.close(c, events),
                ',' | '{' | '[' | ']' | '}' => return Step::Wrong,
                c => {
                    key.push(c);
                    if key.len() > MAX_NAME {
                        return Step::Wrong;
                    }
                }
            },
            At::Value => return self.value(c, events),
            At::Scalar => match c {
                c if c.is_ascii_alphanumeric() || "+-.".contains(c) => write(&c.to_string()),
                c if c.is_whitespace() => self.at = At::After,
                ',' | '}' | ']' => {
                    self.at = At::After;
                    return self.step(c, events);
                }
                _ => return Step::Wrong,
            },
            At::Opening(tail) => {
                tail.push(c);
                if tail == QUOTE {
                    write("\"");
                    self.at = At::Text(String::new());
                } else if !QUOTE.starts_with(tail.as_str()) {
                    return Step::Wrong;
                }
            }
            At::Text(held) => {
                held.push(c);
                if held == QUOTE {
                    write("\"");
                    self.at = At::After;
                    return Step::Settled;
                }
                // Characters that cannot start the quote are text.
                while !QUOTE.starts_with(held.as_str()) {
                    write(&escaped(&held.remove(0).to_string()));
                }
            }
            At::JsonText(scan) => {
                let Some(ends) = scan.step(c) else {
                    return Step::Wrong;
                };
                write(&c.to_string());
                if ends {
                    self.at = At::After;
                }
            }
            At::After => match c {
                c if c.is_whitespace() => {}
                ',' => {
                    write(",");
                    let object = self.open.last() == Some(&'}');
                    self.at = if object {
                        At::Key(String::new())
                    } else {
                        At::Value
                    };
                }
                '}' | ']' => return self.close(c, events),
                _ => return Step::Wrong,
            },
        }
        Step::Settled
    }

    fn value(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        let mut write = |text: &str| events.push(Event::Arguments(text.to_owned()));
        match c {
            c if c.is_whitespace() => {}
            '{' | '[' if self.open.len() < MAX_DEPTH => {
                let object = c == '{';
                self.open.push(if object { '}' } else { ']' });
                write(&c.to_string());
                self.at = if object {
                    At::Key(String::new())
                } else {
                    At::Value
                };
            }
            ']' => return self.close(c, events),
            '<' => self.at = At::Opening(c.to_string()),
            '"' => {
                let mut scan = Scan::default();
                scan.step(c);
                write("\"");
                self.at = At::JsonText(scan);
            }
            c if c.is_ascii_alphanumeric() || c == '-' => {
                write(&c.to_string());
                self.at = At::Scalar;
            }
            _ => return Step::Wrong,
        }
        Step::Settled
    }

    fn close(&mut self, c: char, events: &mut Vec<Event>) -> Step {
        if self.open.pop() != Some(c) {
            return Step::Wrong;
        }
        events.push(Event::Arguments(c.to_string()));
        self.at = At::After;
        match self.open.is_empty() {
            true => Step::Over,
            false => Step::Settled,
        }
    }

    /// Completes arguments that were interrupted.
    pub(super) fn break_off(&mut self, complete: bool, events: &mut Vec<Event>) {
        let mut write = |text: &str| events.push(Event::Arguments(text.to_owned()));
        if let At::Text(held) = &self.at {
            write(&escaped(held));
        }
        if !complete || self.open.is_empty() {
            return;
        }
        match &self.at {
            At::Text(_) => write("\""),
            // The text may end with a backslash.
            At::JsonText(scan) if scan.is_escaping() => write("\\\""),
            At::JsonText(_) => write("\""),
            At::Value | At::Opening(_) if self.open.last() == Some(&'}') => write("null"),
            _ => {}
        }
        while let Some(closer) = self.open.pop() {
            write(&closer.to_string());
        }
    }
}
