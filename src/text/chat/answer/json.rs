//! JSON as it arrives: where a value ends.

use serde_json::Value;

use super::call::Step;

/// How deep a call's arguments may be nested.
const MAX_DEPTH: usize = 256;

/// Reads one object, list or string, character by character.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    open: Vec<char>,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Takes a character: `Some(true)` if it ends the value, `None` if it cannot belong to it.
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
    /// Whether a backslash was the last character of a string.
    pub(super) fn is_escaping(&self) -> bool {
        self.escaped
    }
}

/// The text of a string literal without its quotes.
pub(super) fn unquoted(inside: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{inside}\"")).ok()
}

/// A text as it stands in a string literal, without the quotes.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted
        .get(1..quoted.len() - 1)
        .unwrap_or_default()
        .to_owned()
}

/// Whether text can still become one of several tags.
pub(super) fn begins(tags: &[&str], text: &str) -> Step {
    match tags.iter().any(|tag| tag.starts_with(text)) {
        true => Step::More,
        false => Step::Wrong,
    }
}
