//! Reads the fields of a request: a field that is absent or `null` is not given, an unknown one is
//! ignored, and one of a wrong type or out of range is an error that names it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object of a request.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Path in the request: `messages[2].`
    path: &'a str,
}

type Read<T> = Result<Option<T>, ApiError>;

impl<'a> Fields<'a> {
    /// Wraps the request itself.
    pub(crate) fn of(value: &'a Value) -> Result<Fields<'a>, ApiError> {
        Fields::at(value, "")
    }

    /// Wraps an object inside a request; `path` leads to it and ends with a dot, or is empty.
    pub(crate) fn at(value: &'a Value, path: &'a str) -> Result<Fields<'a>, ApiError> {
        match value.as_object() {
            Some(object) => Ok(Fields { object, path }),
            None if path.is_empty() => {
                Err(ApiError::bad_request("expected a JSON object as the body"))
            }
            None => Err(ApiError::bad_field(
                path.trim_end_matches('.'),
                "expected an object",
            )),
        }
    }

    /// Returns whether there is such a field, `null` or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// Returns a field of any type.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Returns an error about a field.
    pub(crate) fn wrong(&self, name: &str, expected: &str) -> ApiError {
        ApiError::bad_field(
            format!("{}{name}", self.path),
            format!("expected {expected}"),
        )
    }

    /// Returns an error if a field is missing.
    pub(crate) fn need<T>(&self, name: &str, found: Option<T>) -> Result<T, ApiError> {
        found.ok_or_else(|| {
            ApiError::bad_field(format!("{}{name}", self.path), "the field is required")
        })
    }

    /// Reads a number in a range.
    pub(crate) fn f64(&self, name: &str, range: RangeInclusive<f64>) -> Read<f64> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|number| range.contains(number));
        let (from, to) = (range.start(), range.end());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, &format!("a number from {from} to {to}"))),
        }
    }

    /// Reads an integer in a range.
    pub(crate) fn int(&self, name: &str, range: RangeInclusive<i64>) -> Read<i64> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let (from, to) = (range.start(), range.end());
        match whole(value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, &format!("a whole number from {from} to {to}"))),
        }
    }

    /// Reads a number of tokens to generate, at least `least`; `Some(None)` for -1, limited by the
    /// context only.
    pub(crate) fn limit(&self, name: &str, least: i64) -> Read<Option<usize>> {
        const MAX_TOKENS: i64 = 1 << 30;
        match self.get(name).map(whole) {
            Some(Some(-1)) => Ok(Some(None)),
            Some(Some(n)) if (least..=MAX_TOKENS).contains(&n) => Ok(Some(usize::try_from(n).ok())),
            None => Ok(None),
            Some(_) => {
                let expected =
                    format!("a whole number from {least} to {MAX_TOKENS}, or -1 for no limit");
                Err(self.wrong(name, &expected))
            }
        }
    }

    /// Reads a count from `least` to `most`.
    pub(crate) fn count(&self, name: &str, least: usize, most: usize) -> Read<usize> {
        let range = least as i64..=i64::try_from(most).unwrap_or(i64::MAX);
        Ok(self.int(name, range)?.and_then(|n| usize::try_from(n).ok()))
    }

    /// Reads true or false.
    pub(crate) fn bool(&self, name: &str) -> Read<bool> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// Reads a string.
    pub(crate) fn str(&self, name: &str) -> Read<&'a str> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// Reads a list of at most `most` elements.
    pub(crate) fn list(&self, name: &str, most: usize) -> Read<&'a [Value]> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() <= most => Ok(Some(list)),
            Some(Value::Array(list)) => {
                let expected = format!("at most {most} elements, got {}", list.len());
                Err(self.wrong(name, &expected))
            }
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    /// Reads an object.
    pub(crate) fn object(&self, name: &str) -> Read<&'a Map<String, Value>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(self.wrong(name, "an object")),
        }
    }

    /// Reads a string, or a list of at most `most` strings.
    pub(crate) fn strings(&self, name: &str, most: usize) -> Read<Vec<String>> {
        if let Some(Value::String(one)) = self.get(name) {
            return Ok(Some(vec![one.clone()]));
        }
        let Some(list) = self.list(name, most)? else {
            return Ok(None);
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match list.iter().map(text).collect() {
            Some(strings) => Ok(Some(strings)),
            None => Err(self.wrong(name, "a string or a list of strings")),
        }
    }

    /// Reads a list of token ids below `n_vocab`.
    pub(crate) fn ids(&self, name: &str, most: usize, n_vocab: usize) -> Read<Vec<u32>> {
        let Some(list) = self.list(name, most)? else {
            return Ok(None);
        };
        match list.iter().map(|value| token_id(value, n_vocab)).collect() {
            Some(ids) => Ok(Some(ids)),
            None => Err(self.wrong(name, &format!("token ids from 0 to {}", n_vocab - 1))),
        }
    }
}

/// Returns a number without a fraction, such as 3.0, as an integer.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        // beyond this, not every integer is a float
        (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
    })
}

/// Returns a token id below `n_vocab`.
pub(crate) fn token_id(value: &Value, n_vocab: usize) -> Option<u32> {
    let id = u32::try_from(whole(value)?).ok()?;
    ((id as usize) < n_vocab).then_some(id)
}
