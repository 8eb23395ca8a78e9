//! Gemma's arguments, `{city:<|"|>Bern<|"|>,days:2}`: JSON with bare keys and quotes of its own.

use serde_json::Value;

use super::call::{Event, MAX_NAME, Step};

const QUOTE: &str = "<|\"|>";
const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone)]
enum At {
    /// Before a key, and inside one.
    Key(String),
    Value,
    /// Inside a number or a word.
    Scalar,
    /// What could be a quote that opens a text.
    Opening(String),
    /// Inside a text: what could be the quote that ends it.
    Text(String),
    After,
}

/// Reads arguments, from their `{` on, and writes them as JSON.
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
                    let quoted = Value::from(key.trim()).to_string();
                    write(&format!("{quoted}:"));
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
                // What cannot become the quote is text.
                while !QUOTE.starts_with(held.as_str()) {
                    let escaped = Value::from(held.remove(0).to_string()).to_string();
                    write(escaped.get(1..escaped.len() - 1).unwrap_or_default());
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
}
