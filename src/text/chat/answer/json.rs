//! Incremental JSON: finds the end of a value.

use serde_json::Value;

use super::step::Step;

/// Deepest nesting of a call's arguments.
const MAX_DEPTH: usize = 256;

/// Scans one object, list or string, character by character.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    open: Vec<char>,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Reads a character: `Some(true)` if it ends the value, `None` if it cannot belong to it.
    pub(super) fn step(&mut self, c: char) -> Option<bool> {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return Some(self.open.is_empty());
                }
                _ => {}
            }
            return Some(false);
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' if self.open.len() < MAX_DEPTH => {
                self.open.push(if c == '{' { '}' } else { ']' });
            }
            '{' | '[' => return None,
            '}' | ']' => {
                if self.open.pop() != Some(c) {
                    return None;
                }
                return Some(self.open.is_empty());
            }
            ',' | ':' | '+' | '-' | '.' => {}
            c if c.is_ascii_alphanumeric() || c.is_ascii_whitespace() => {}
            _ => return None,
        }
        Some(false)
    }
}

impl Scan {
    /// Returns whether the last character of a string was a backslash.
    pub(super) fn is_escaping(&self) -> bool {
        self.escaped
    }
}

/// Decodes a string literal without its quotes.
pub(super) fn unquoted(inside: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{inside}\"")).ok()
}

/// Escapes a text for a string literal, without the quotes.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted
        .get(1..quoted.len() - 1)
        .unwrap_or_default()
        .to_owned()
}

/// Returns whether the text is a prefix of one of the tags.
pub(super) fn begins(tags: &[&str], text: &str) -> Step {
    match tags.iter().any(|tag| tag.starts_with(text)) {
        true => Step::More,
        false => Step::Wrong,
    }
}
