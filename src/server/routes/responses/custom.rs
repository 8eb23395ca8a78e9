//! Custom tools, whose input is a text and not JSON. Models know functions only: a custom tool
//! becomes a function with the text as its one argument.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Name of the argument.
const ARGUMENT: &str = "input";

/// A custom tool as a function.
pub(super) struct CustomTool {
    pub(super) function: Value,
    /// A demand of the tool that is not held.
    pub(super) warning: Option<String>,
}

impl CustomTool {
    /// Reads a tool; `path` is that of its fields.
    pub(super) fn of(tool: &Value, path: &str) -> Result<CustomTool, ApiError> {
        let fields = Fields::at(tool, path)?;
        let name = fields.need("name", fields.str("name")?)?;
        let mut description = fields.str("description")?.unwrap_or_default().to_owned();
        let mut input = json!({ "type": "string" });
        let (mut is_strict, mut warning) = (false, None);
        if let Some(format) = fields.get("format") {
            let inner = format!("{path}format.");
            match Format::of(&Fields::at(format, &inner)?)? {
                Format::Text => {}
                Format::Regex(pattern) => {
                    input["pattern"] = json!(format!("^(?:{pattern})$"));
                    is_strict = true;
                }
                Format::Lark(grammar) => {
                    let line = "The input follows this Lark grammar:";
                    description = format!("{description}\n\n{line}\n{grammar}");
                    warning = Some(format!(
                        "{inner}definition: the model is told of the grammar, but not held to it: \
                         only regex is held in a call"
                    ));
                }
            }
        }
        let parameters = json!({
            "type": "object",
            "properties": { (ARGUMENT): input },
            "required": [ARGUMENT],
            "additionalProperties": false,
        });
        let mut function = json!({ "name": name, "parameters": parameters });
        let description = description.trim();
        if !description.is_empty() {
            function["description"] = json!(description);
        }
        if is_strict {
            function["strict"] = json!(true);
        }
        Ok(CustomTool { function, warning })
    }
}

/// Form of the input.
enum Format<'a> {
    Text,
    Regex(&'a str),
    Lark(&'a str),
}

impl<'a> Format<'a> {
    fn of(fields: &Fields<'a>) -> Result<Format<'a>, ApiError> {
        match fields.need("type", fields.str("type")?)? {
            "text" => Ok(Format::Text),
            "grammar" => {
                let text = fields.need("definition", fields.str("definition")?)?;
                match fields.need("syntax", fields.str("syntax")?)? {
                    "regex" => Ok(Format::Regex(text)),
                    "lark" => Ok(Format::Lark(text)),
                    _ => Err(fields.wrong("syntax", "regex or lark")),
                }
            }
            _ => Err(fields.wrong("type", "text or grammar")),
        }
    }
}

/// Returns the arguments of the function for an input, as JSON text.
pub(super) fn arguments(input: &Value) -> Value {
    json!(json!({ (ARGUMENT): input }).to_string())
}

/// Reads the input from the arguments of a call, as they come.
#[derive(Default)]
pub(super) struct InputReader {
    /// JSON text that is not decoded yet.
    pending: String,
    place: Place,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before the text.
    #[default]
    Before,
    Inside,
    After,
}

impl InputReader {
    /// Takes more of the arguments; returns more of the input.
    pub(super) fn push(&mut self, more: &str) -> String {
        self.pending.push_str(more);
        if self.place == Place::Before {
            let Some(begin) = beginning(&self.pending) else {
                return String::new();
            };
            self.pending.drain(..begin);
            self.place = Place::Inside;
        }
        if self.place == Place::After {
            self.pending.clear();
            return String::new();
        }
        let (end, is_end) = whole_characters(&self.pending);
        let text = decoded(&self.pending[..end]);
        self.pending.drain(..end);
        if is_end {
            self.place = Place::After;
        }
        text
    }
}

/// Returns where the text of the argument begins, after its quote.
fn beginning(json: &str) -> Option<usize> {
    let rest = json.trim_start().strip_prefix('{')?.trim_start();
    let rest = rest
        .strip_prefix('"')?
        .strip_prefix(ARGUMENT)?
        .strip_prefix('"')?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let rest = rest.strip_prefix('"')?;
    Some(json.len() - rest.len())
}

/// Returns the length of what can be decoded: characters whose escapes are complete, of pairs of
/// surrogates both; and whether the text ends there.
fn whole_characters(json: &str) -> (usize, bool) {
    let bytes = json.as_bytes();
    let mut i = 0;
    while let Some(byte) = bytes.get(i) {
        let n = match byte {
            b'"' => return (i, true),
            b'\\' if bytes.get(i + 1) != Some(&b'u') => 2,
            b'\\' if is_high(bytes.get(i + 2), bytes.get(i + 3)) => {
                // a pair, unless something else than an escape follows
                match (bytes.get(i + 6), bytes.get(i + 7)) {
                    (Some(b'\\') | None, Some(b'u') | None) => 12,
                    _ => 6,
                }
            }
            b'\\' => 6,
            _ => 1,
        };
        if i + n > bytes.len() {
            break;
        }
        i += n;
    }
    // within a character only if the text is no JSON
    (floor(json, i), false)
}

/// Returns whether the first digits of an escape make it a high surrogate, or may.
fn is_high(first: Option<&u8>, second: Option<&u8>) -> bool {
    matches!(first, Some(b'd' | b'D'))
        && matches!(second, Some(b'8' | b'9' | b'a' | b'A' | b'b' | b'B') | None)
}

fn floor(text: &str, mut i: usize) -> usize {
    while !text.is_char_boundary(i) {
        i -= 1;
    }
    i
}

/// Decodes JSON text without its quotes; what is none stays as it is.
fn decoded(json: &str) -> String {
    serde_json::from_str(&format!("\"{json}\"")).unwrap_or_else(|_| json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_the_same_however_it_is_cut() {
        let input = "a \"b\"\\n\n\t\u{1}é漢🦀 \\u0041 {}";
        let plain = json!({ "input": input }).to_string();
        let escaped: String = input
            .encode_utf16()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        let escaped = format!("{{ \"input\" : \"{escaped}\" }}");
        for json in [plain, escaped] {
            for n in 1..12 {
                let chars: Vec<char> = json.chars().collect();
                let mut reader = InputReader::default();
                let pieces = chars
                    .chunks(n)
                    .map(|piece| piece.iter().collect::<String>());
                let text: String = pieces.map(|piece| reader.push(&piece)).collect();
                assert_eq!(text, input, "{json} in pieces of {n}");
            }
        }
    }

    #[test]
    fn what_is_no_such_call_is_no_input() {
        for json in ["", "{", "[1]", "{\"other\": \"a\"}", "{\"input\": 1}"] {
            assert_eq!(InputReader::default().push(json), "", "{json}");
        }
        // a lone surrogate, an escape that is none
        for json in ["{\"input\": \"\\ud800\\n\"}", "{\"input\": \"\\x\"}"] {
            let mut reader = InputReader::default();
            assert!(!reader.push(json).is_empty(), "{json}");
        }
    }
}
