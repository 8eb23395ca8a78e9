//! Values of keys as arguments, and as text.

use gguf_rs_lite::{OwnedArray, OwnedValue, Value};
use octavo_analysis::facts::value_json;

use crate::args::{KeyValue, key_value};
use crate::wording::one_line;

/// Longest text of a value on a line, in characters.
const MAX_TEXT: usize = 60;

/// Elements of a longer array that are shown.
const SHOWN: usize = 6;

/// Parses `KEY=TYPE:VALUE`: llama.cpp's types, those of GGUF, or one of these in brackets with a
/// JSON array.
pub(super) fn assignment(text: &str) -> Result<KeyValue, String> {
    let expected = || {
        "expected KEY=TYPE:VALUE with int, float, bool, str, u8, i8, u16, i16, u32, i32, u64, i64, \
         f32, f64 or one of these in brackets as TYPE"
            .to_owned()
    };
    let (key, rest) = text.split_once('=').ok_or_else(expected)?;
    let (ty, value) = rest.split_once(':').ok_or_else(expected)?;
    if key.is_empty() {
        return Err(expected());
    }
    let bad = |what: &str| format!("expected {what} as the value of {key}, got {value:?}");
    if let Some(element) = ty.strip_prefix('[').and_then(|ty| ty.strip_suffix(']')) {
        let all: Vec<serde_json::Value> =
            serde_json::from_str(value).map_err(|_| bad("a JSON array"))?;
        let array = array(element, &all).ok_or_else(expected)?;
        let array =
            array.map_err(|i| bad(&format!("an array of {element} (element {i} is not)")))?;
        return Ok((key.to_owned(), OwnedValue::Array(array)));
    }
    macro_rules! numbers {
        ($($name:literal: $variant:ident),*) => {
            match ty {
                $($name => {
                    let expected = || bad(concat!("a number of type ", $name));
                    OwnedValue::$variant(value.parse().map_err(|_| expected())?)
                })*
                "int" | "float" | "bool" | "str" => return key_value(text),
                _ => return Err(expected()),
            }
        };
    }
    let value = numbers!(
        "u8": U8, "i8": I8, "u16": U16, "i16": I16, "u32": U32, "i32": I32, "u64": U64, "i64": I64,
        "f32": F32, "f64": F64
    );
    Ok((key.to_owned(), value))
}

/// Converts a JSON array to elements of a type: `None` for an unknown type, else the array or the
/// index of an element that is not of the type.
fn array(ty: &str, all: &[serde_json::Value]) -> Option<Result<OwnedArray, usize>> {
    fn convert<T>(
        all: &[serde_json::Value],
        one: impl Fn(&serde_json::Value) -> Option<T>,
    ) -> Result<Vec<T>, usize> {
        let each = all.iter().enumerate();
        each.map(|(i, value)| one(value).ok_or(i)).collect()
    }
    macro_rules! integers {
        ($($name:literal: $variant:ident),*) => {
            match ty {
                $($name => {
                    let int = |v: &serde_json::Value| {
                        let int = v.as_i64().map(i128::from).or(v.as_u64().map(i128::from));
                        int?.try_into().ok()
                    };
                    convert(all, int).map(OwnedArray::$variant)
                })*
                "f32" | "float" => convert(all, |v| Some(v.as_f64()? as f32)).map(OwnedArray::F32),
                "f64" => convert(all, serde_json::Value::as_f64).map(OwnedArray::F64),
                "bool" => convert(all, serde_json::Value::as_bool).map(OwnedArray::Bool),
                "str" | "string" => {
                    convert(all, |v| Some(v.as_str()?.as_bytes().to_vec())).map(OwnedArray::Str)
                }
                _ => return None,
            }
        };
    }
    Some(integers!(
        "u8": U8, "i8": I8, "u16": U16, "i16": I16, "u32": U32, "i32": I32, "int": I32,
        "u64": U64, "i64": I64
    ))
}

/// Returns the name of a value's type: `u32`, `string`, `[f32]`.
pub(super) fn type_name(value: &Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("[{}]", array.elem_type()),
        other => other.value_type().to_string(),
    }
}

/// Formats a value on one line; unless `whole`, long strings are cut and long arrays are counted.
pub(super) fn text(value: &Value<'_>, whole: bool) -> String {
    match value {
        Value::Array(array) if !whole && array.len() > SHOWN => {
            let first = array.iter().take(SHOWN);
            let first: Vec<String> = first.map(|v| text(&v, false)).collect();
            format!("[{}, ...] ({} values)", first.join(", "), array.len())
        }
        Value::Array(array) => {
            let all: Vec<String> = array.iter().map(|v| text(&v, whole)).collect();
            format!("[{}]", all.join(", "))
        }
        Value::Str(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let text = match whole {
                true => text.escape_debug().to_string(),
                false => one_line(&text),
            };
            match text.char_indices().nth(MAX_TEXT) {
                Some((at, _)) if !whole => {
                    format!("{}... ({} characters)", &text[..at], text.chars().count())
                }
                _ => text,
            }
        }
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        other => value_json(other, 0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_have_every_type() {
        let value = |text: &str| assignment(text).map(|(_, value)| value);
        assert_eq!(value("k=u8:7"), Ok(OwnedValue::U8(7)));
        assert_eq!(value("k=f64:0.5"), Ok(OwnedValue::F64(0.5)));
        assert_eq!(value("k=str:a:b=c"), Ok(OwnedValue::Str(b"a:b=c".to_vec())));
        assert_eq!(value("k=int:-7"), Ok(OwnedValue::I64(-7)));
        let strings = OwnedArray::Str(vec![b"a".to_vec(), b"b,c".to_vec()]);
        assert_eq!(
            value(r#"k=[str]:["a","b,c"]"#),
            Ok(OwnedValue::Array(strings))
        );
        let numbers = OwnedArray::U64(vec![0, u64::MAX]);
        assert_eq!(
            value("k=[u64]:[0, 18446744073709551615]"),
            Ok(OwnedValue::Array(numbers))
        );
        for text in [
            "k",
            "k=7",
            "=u8:7",
            "k=u8:256",
            "k=u8:x",
            "k=q:1",
            "k=[q]:[1]",
            "k=[u8]:1",
        ] {
            assert!(value(text).is_err(), "{text}");
        }
        let error = value("k=[u8]:[1, 256]").unwrap_err();
        assert!(
            error.contains("an array of u8 (element 1 is not)"),
            "{error}"
        );
    }
}
