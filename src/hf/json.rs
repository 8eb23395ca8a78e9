//! JSON as Python writes it, which the files of folders come from.

use std::borrow::Cow;

use serde_json::Value;

/// Python's spellings of numbers that JSON cannot express.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Parses a text that may begin with a byte order mark and may have `NaN` and `Infinity` among its
/// values. These become strings, so that a setting that must be a number does not accept them.
pub(super) fn from_slice(text: &[u8]) -> serde_json::Result<Value> {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    serde_json::from_slice(text).or_else(|error| match quoted(text) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(text) => serde_json::from_slice(&text),
    })
}

/// Replaces `{"__float__": "Infinity"}`, the spelling of transformers 5, by the same string.
pub(super) fn without_wrapped_floats(value: &mut Value) {
    match value {
        Value::Object(map) => match map.get_mut("__float__").map(Value::take) {
            Some(word) => *value = word,
            None => map.values_mut().for_each(without_wrapped_floats),
        },
        Value::Array(values) => values.iter_mut().for_each(without_wrapped_floats),
        _ => {}
    }
}

/// Puts quotes around such words where they are not part of a string.
fn quoted(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut copied) = (0, 0);
    while let Some(byte) = text.get(at) {
        if *byte == b'"' {
            at = after_string(text, at);
            continue;
        }
        let rest = &text[at..];
        let Some(word) = WORDS.into_iter().find(|word| rest.starts_with(word)) else {
            at += 1;
            continue;
        };
        out.extend_from_slice(&text[copied..at]);
        out.extend([b"\"", word, b"\""].concat());
        at += word.len();
        copied = at;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// Returns the end of the string that begins at `at`.
fn after_string(text: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = text.get(end) {
        match byte {
            b'"' => return end + 1,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_python_writes_is_read() {
        let text = "\u{FEFF}{\"a\": [0.0, Infinity], \"b\": NaN, \"c\": -Infinity, \
                    \"NaN \\\" Infinity\": \"-Infinity NaN\\\\\", \"d\":NaN}";
        let expected = json!({
            "a": [0.0, "Infinity"], "b": "NaN", "c": "-Infinity",
            "NaN \" Infinity": "-Infinity NaN\\", "d": "NaN",
        });
        assert_eq!(from_slice(text.as_bytes()).expect("it is read"), expected);
        assert_eq!(
            from_slice(b"\xEF\xBB\xBF[1]").expect("it is read"),
            json!([1])
        );
    }

    #[test]
    fn floats_of_transformers_5_are_read() {
        let infinity = json!({ "__float__": "Infinity" });
        let mut value = json!({ "a": [0.0, infinity], "b": { "c": infinity }, "d": 1 });
        without_wrapped_floats(&mut value);
        let expected = json!({ "a": [0.0, "Infinity"], "b": { "c": "Infinity" }, "d": 1 });
        assert_eq!(value, expected);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            "NaN,",
            "{\"a\": NaNs}",
            "[Infinity",
            "\"\\",
            "\"",
            "[-NaN]",
        ] {
            assert!(from_slice(text.as_bytes()).is_err(), "{text}");
        }
        assert!(from_slice(b"\xFE\xFF[1]").is_err());
    }
}
