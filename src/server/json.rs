//! JSON as clients send it.

use serde_json::Value;

/// Parses JSON. A string may contain a lone surrogate escape, as JavaScript writes where a text was
/// cut: it becomes U+FFFD, as in every browser and in Python.
///
/// # Errors
/// If it is not JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| match mend(bytes) {
        Some(mended) => serde_json::from_slice(&mended),
        None => Err(error),
    })
}

/// Replaces lone surrogates by `\\ufffd`; returns `None` if there are none.
fn mend(bytes: &[u8]) -> Option<Vec<u8>> {
    const MENDED: &[u8; 6] = b"\\ufffd";
    let mut mended = None;
    let mut at = 0;
    while let Some(next) = bytes
        .get(at..)
        .and_then(|rest| rest.iter().position(|b| *b == b'\\'))
    {
        at += next;
        let unit = unit(bytes, at);
        let is_first = unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
        let is_second = |unit: Option<u16>| unit.is_some_and(|u| (0xdc00..0xe000).contains(&u));
        at += match unit {
            // a complete surrogate pair
            Some(_) if is_first && is_second(self::unit(bytes, at + 6)) => 12,
            Some(_) if is_first || is_second(unit) => {
                let mended = mended.get_or_insert_with(|| bytes.to_vec());
                mended[at..at + 6].copy_from_slice(MENDED);
                6
            }
            // any other escape has at least one more character
            _ => 2,
        };
    }
    mended
}

/// Returns the code unit of `\\uXXXX` at a position.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at + 6)?;
    let digits = escape.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn halves_of_characters_become_replacement_characters() {
        let cases = [
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ud83d\ude00\ude00""#, "\u{1f600}\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\udE00x\\ud83d""#, "\u{fffd}x\\ud83d"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
        ];
        for (text, expected) in cases {
            let value = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(value, json!(expected), "{text}");
        }
        for text in [r#""\ud83"#, r#""\ud8zz""#, "\"\\", r#"{"a": "\ud83d" 1}"#] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
