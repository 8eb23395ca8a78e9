//! Finds the parts of a grammar that take long to compile, without compiling it.

use serde_json::{Deserializer, Value};

/// Parts found in a grammar.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Number of operators that intersect or negate.
    pub(super) operators: usize,
    /// Embedded JSON schemas.
    pub(super) schemas: Vec<Value>,
}

/// Scans a grammar in llguidance's dialect of Lark up to the first syntax error, which is left to
/// the compiler to report.
pub(super) fn parts(text: &str) -> Parts {
    let mut parts = Parts::default();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let next = match c {
            '#' => line(rest),
            '/' if after.starts_with('/') => line(rest),
            '"' | '/' => up_to(after, c),
            '<' => after.split_once('>').map(|(_, rest)| rest),
            '%' => directive(rest, &mut parts),
            '&' => {
                parts.operators += 1;
                Some(after)
            }
            '~' => {
                // before a number this character means repetition
                let repeats = |c: char| c.is_ascii_digit() || c == '+' || c == '-';
                parts.operators += usize::from(!after.trim_start().starts_with(repeats));
                Some(after)
            }
            _ => Some(after),
        };
        match next {
            Some(next) => rest = next,
            None => break,
        }
    }
    parts
}

/// Returns the text after a comment.
fn line(text: &str) -> Option<&str> {
    text.split_once('\n').map(|(_, rest)| rest)
}

/// Returns the text after the end of a string or a regular expression.
fn up_to(text: &str, end: char) -> Option<&str> {
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == end {
            return text.get(i + c.len_utf8()..);
        }
    }
    None
}

/// Returns the text after a directive, which may have JSON.
fn directive<'a>(text: &'a str, parts: &mut Parts) -> Option<&'a str> {
    let words = ["%json", "%llguidance", "%regex"];
    let Some(word) = words.into_iter().find(|word| text.starts_with(word)) else {
        return text.get(1..);
    };
    let json = text.get(word.len()..)?;
    let mut values = Deserializer::from_str(json).into_iter();
    let value: Value = values.next()?.ok()?;
    if word == "%json" {
        parts.schemas.push(value);
    }
    json.get(values.byte_offset()..)
}
