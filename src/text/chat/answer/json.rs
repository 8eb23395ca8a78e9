//! JSON as it arrives: where a value ends.

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

/// The text of a string literal without its quotes.
pub(super) fn unquoted(inside: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{inside}\"")).ok()
}
