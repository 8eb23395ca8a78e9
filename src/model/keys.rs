//! Typed, ranged reading of one architecture's metadata keys; records values read or defaulted, for
//! `inspect`.

use std::ops::RangeInclusive;

use gguf_rs_lite::{Gguf, Value};
use serde::Serialize;

use crate::error::Error;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A key of the file.
    File,
    /// A documented default: the file lacks the key.
    Default,
}

/// A hyperparameter and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sourced<T> {
    /// The value in use.
    pub value: T,
    /// File or default.
    pub source: Source,
}

impl<T> Sourced<T> {
    pub(super) fn file(value: T) -> Sourced<T> {
        Sourced {
            value,
            source: Source::File,
        }
    }

    pub(super) fn default(value: T) -> Sourced<T> {
        Sourced {
            value,
            source: Source::Default,
        }
    }
}

/// One line of the hyperparameter report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// The key as GGUF spells it.
    pub key: String,
    /// The value in use.
    pub value: serde_json::Value,
    /// File or default.
    pub source: Source,
}

/// A count for each layer; there is at least one layer.
pub(super) struct PerLayer(Vec<usize>);

impl PerLayer {
    /// Creates the same count for `n_layer` layers.
    pub(super) fn same(value: usize, n_layer: usize) -> PerLayer {
        PerLayer(vec![value; n_layer])
    }

    pub(super) fn set(&mut self, layer: usize, value: usize) {
        self.0[layer] = value;
    }

    pub(super) fn of(&self, layer: usize) -> usize {
        self.0[layer]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Returns one number where all layers have the same, or else the list.
    fn shown(&self) -> serde_json::Value {
        match self.0.first() {
            Some(&first) if self.iter().all(|n| n == first) => first.into(),
            _ => self.0.clone().into(),
        }
    }
}

/// Reader of `<arch>.*` keys.
pub struct Keys<'a> {
    /// The file.
    pub gguf: &'a Gguf,
    arch: &'static str,
    /// Layers at the end of the file that are not part of the forward pass; per-layer keys include
    /// them.
    pub n_behind: usize,
    /// Values read or assumed, in order.
    pub entries: Vec<Entry>,
    /// Warnings about values assumed or left out, one line each.
    pub warnings: Vec<String>,
}

impl<'a> Keys<'a> {
    /// Creates a reader for a file and an architecture.
    pub fn new(gguf: &'a Gguf, arch: &'static str) -> Keys<'a> {
        Keys {
            gguf,
            arch,
            n_behind: 0,
            entries: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns a key as GGUF spells it.
    pub fn full(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    /// Returns a key's value, if the file has it.
    pub fn get(&self, suffix: &str) -> Option<Value<'a>> {
        self.gguf.get(&self.full(suffix))
    }

    /// Builds the error for an invalid value.
    pub fn bad(&self, key: String, expected: impl Into<String>, got: impl Into<String>) -> Error {
        Error::BadValue {
            file: self.gguf.name().to_owned(),
            key,
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// Builds the error for a missing key.
    pub fn missing(&self, key: String, expected: impl Into<String>) -> Error {
        Error::MissingKey {
            file: self.gguf.name().to_owned(),
            key,
            expected: expected.into(),
        }
    }

    /// Builds the error for a value that asks for an unimplemented feature.
    pub fn unsupported(
        &self,
        suffix: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Error {
        Error::Unsupported {
            file: self.gguf.name().to_owned(),
            key: self.full(suffix),
            arch: self.arch,
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// Removes the recorded defaults of keys that begin with `prefix`: nothing uses them.
    pub fn forget_defaults(&mut self, prefix: &str) {
        let prefix = self.full(prefix);
        let assumed = |e: &Entry| e.source == Source::Default && e.key.starts_with(&prefix);
        self.entries.retain(|entry| !assumed(entry));
    }

    /// Records a value in use.
    pub fn note(&mut self, key: String, value: impl Into<serde_json::Value>, source: Source) {
        self.entries.push(Entry {
            key,
            value: value.into(),
            source,
        });
    }

    /// Records a warning about something assumed or left out.
    pub fn warn(&mut self, text: String) {
        self.warnings.push(format!("{}: {text}", self.gguf.name()));
    }

    /// Warns about a key that llama.cpp reads for other architectures only, unless its value is one
    /// of the neutral ones.
    pub(super) fn warn_of_unheard(&mut self, suffix: &str, neutral: &[f64]) {
        if let Some(value) = self.get(suffix).filter(|v| !is_one_of(v, neutral)) {
            let key = self.full(suffix);
            self.warn(format!(
                "{key} = {} is not applied, as in llama.cpp",
                show(&value)
            ));
        }
    }

    fn ranged(
        &self,
        key: &str,
        v: &Value<'_>,
        range: &RangeInclusive<usize>,
    ) -> Result<usize, Error> {
        v.as_int()
            .and_then(|i| usize::try_from(i).ok())
            .filter(|i| range.contains(i))
            .ok_or_else(|| self.bad(key.to_owned(), an_integer(range), show(v)))
    }

    /// Reads a count or size; `default` is the meaning of an absent key, `None` makes the key
    /// required.
    pub fn count(
        &mut self,
        suffix: &str,
        range: RangeInclusive<usize>,
        default: Option<usize>,
    ) -> Result<Sourced<usize>, Error> {
        let key = self.full(suffix);
        let got = match (self.gguf.get(&key), default) {
            (Some(v), _) => Sourced::file(self.ranged(&key, &v, &range)?),
            (None, Some(d)) => Sourced::default(d),
            (None, None) => return Err(self.missing(key, an_integer(&range))),
        };
        self.note(key, got.value, got.source);
        Ok(got)
    }

    /// Reads a count that some files store once per layer; `default` is the meaning of an absent
    /// key, `None` makes it required.
    pub(super) fn per_layer(
        &mut self,
        suffix: &str,
        n_layer: usize,
        range: RangeInclusive<usize>,
        default: Option<&PerLayer>,
    ) -> Result<PerLayer, Error> {
        let key = self.full(suffix);
        let (values, source) = match (self.gguf.get(&key), default) {
            (Some(Value::Array(array)), _) => {
                let n_block = n_layer + self.n_behind;
                if array.len() != n_block {
                    let got = format!("an array of {}", array.len());
                    return Err(self.bad(key, format!("one value per layer ({n_block})"), got));
                }
                let forward = array.iter().take(n_layer);
                let values = forward.map(|v| self.ranged(&key, &v, &range));
                (values.collect::<Result<Vec<_>, _>>()?, Source::File)
            }
            (Some(v), _) => (vec![self.ranged(&key, &v, &range)?; n_layer], Source::File),
            (None, Some(default)) => (default.0.clone(), Source::Default),
            (None, None) => return Err(self.missing(key, an_integer(&range))),
        };
        let all = PerLayer(values);
        self.note(key, all.shown(), source);
        Ok(all)
    }

    /// Reads a count that is the same in all layers that `counts` marks, stored once or per layer;
    /// other layers may have 0.
    pub(super) fn uniform(
        &mut self,
        suffix: &str,
        counts: &[bool],
        range: RangeInclusive<usize>,
        default: Option<usize>,
    ) -> Result<usize, Error> {
        let default = default.map(|value| PerLayer::same(value, counts.len()));
        let (least, most) = (*range.start(), *range.end());
        let least = if counts.contains(&false) { 0 } else { least };
        let all = self.per_layer(suffix, counts.len(), least..=most, default.as_ref())?;
        let counted = || all.iter().zip(counts).filter(|(_, counts)| **counts);
        let first = counted().next().map_or(all.of(0), |(n, _)| n);
        if counted().any(|(n, _)| n != first) {
            let got: String = all.shown().to_string().chars().take(60).collect();
            return Err(self.unsupported(suffix, "one number for all layers", got));
        }
        if !range.contains(&first) {
            return Err(self.bad(self.full(suffix), an_integer(&range), first.to_string()));
        }
        Ok(first)
    }

    /// Reads a finite positive number below `below`; `None` as default makes the key required.
    pub fn positive(
        &mut self,
        suffix: &str,
        below: f32,
        default: Option<f32>,
    ) -> Result<Sourced<f32>, Error> {
        let key = self.full(suffix);
        let expected = || match below {
            f32::INFINITY => "a finite number above 0".to_owned(),
            b => format!("a number above 0 and below {b}"),
        };
        let got = match (self.gguf.get(&key), default) {
            (Some(v), _) => {
                let x = float(&v)
                    .map(|x| x as f32)
                    .filter(|x| x.is_finite() && *x > 0.0 && *x < below);
                Sourced::file(x.ok_or_else(|| self.bad(key.clone(), expected(), show(&v)))?)
            }
            (None, Some(d)) => Sourced::default(d),
            (None, None) => return Err(self.missing(key, expected())),
        };
        self.note(key, json_f32(got.value), got.source);
        Ok(got)
    }

    /// Reads a finite number; a missing key or 0 means `default`, or is an error without one.
    pub fn factor(&mut self, suffix: &str, default: Option<f32>) -> Result<f32, Error> {
        let key = self.full(suffix);
        let got = match self.gguf.get(&key) {
            Some(v) => match float(&v).map(|x| x as f32).filter(|x| x.is_finite()) {
                Some(x) => Some(x).filter(|x| *x != 0.0),
                None => return Err(self.bad(key, "a finite number", show(&v))),
            },
            None => None,
        };
        let source = got.map_or(Source::Default, |_| Source::File);
        let value = got.or(default);
        let value = value.ok_or_else(|| self.missing(key.clone(), "a number other than 0"))?;
        self.note(key, json_f32(value), source);
        Ok(value)
    }

    /// Reads a finite number of at least 0.
    pub fn not_negative(&mut self, suffix: &str, default: f32) -> Result<f32, Error> {
        let key = self.full(suffix);
        let (value, source) = match self.gguf.get(&key) {
            Some(v) => {
                let x = float(&v).map(|x| x as f32);
                let x = x.filter(|x| x.is_finite() && *x >= 0.0);
                let bad = || self.bad(key.clone(), "a finite number from 0 on", show(&v));
                (x.ok_or_else(bad)?, Source::File)
            }
            None => (default, Source::Default),
        };
        self.note(key, json_f32(value), source);
        Ok(value)
    }

    /// Reads a finite number for each layer that some files store once; 0 or an absent key means
    /// none.
    pub(super) fn limits(
        &mut self,
        suffix: &str,
        n_layer: usize,
    ) -> Result<Vec<Option<f32>>, Error> {
        let range = ("finite numbers from 0 on", 0.0);
        let all = self.numbers(self.full(suffix), n_layer, range)?;
        let limit = |x: f32| Some(x).filter(|x| *x > 1e-6);
        Ok(match all {
            Some(all) => all.into_iter().map(limit).collect(),
            None => vec![None; n_layer],
        })
    }

    /// Reads a finite number for each layer that some files store once, of at least some number
    /// that `expected` describes; `None` if there is no such key.
    pub(super) fn numbers(
        &mut self,
        key: String,
        n_layer: usize,
        (expected, least): (&str, f64),
    ) -> Result<Option<Vec<f32>>, Error> {
        let number = |v: &Value<'_>| number(v).filter(|x| x.is_finite() && *x >= least);
        let bad = |v: &Value<'_>| self.bad(key.clone(), expected, show(v));
        let all: Vec<f32> = match self.gguf.get(&key) {
            None => return Ok(None),
            Some(v @ Value::Array(array)) => {
                if ![n_layer, n_layer + self.n_behind].contains(&array.len()) {
                    let got = format!("an array of {}", array.len());
                    return Err(self.bad(key, format!("one value per layer ({n_layer})"), got));
                }
                let numbers = array.iter().take(n_layer).map(|v| number(&v));
                let numbers: Option<Vec<f64>> = numbers.collect();
                let numbers = numbers.ok_or_else(|| bad(&v))?;
                numbers.into_iter().map(|x| x as f32).collect()
            }
            Some(v) => vec![number(&v).ok_or_else(|| bad(&v))? as f32; n_layer],
        };
        let shown: Vec<serde_json::Value> = all.iter().map(|x| json_f32(*x)).collect();
        self.note(key, shown, Source::File);
        Ok(Some(all))
    }

    /// Reads a boolean; `default` is the meaning of an absent key.
    pub fn flag(&mut self, suffix: &str, default: bool) -> Result<bool, Error> {
        let key = self.full(suffix);
        let (value, source) = match self.gguf.get(&key) {
            Some(Value::Bool(value)) => (value, Source::File),
            Some(v) => return Err(self.bad(key, "true or false", show(&v))),
            None => (default, Source::Default),
        };
        self.note(key, value, source);
        Ok(value)
    }

    /// Reads a string.
    pub fn text(&self, suffix: &str) -> Result<Option<&'a str>, Error> {
        let key = self.full(suffix);
        match self.gguf.get(&key) {
            None => Ok(None),
            Some(Value::Str(s)) => match std::str::from_utf8(s) {
                Ok(s) => Ok(Some(s)),
                Err(_) => Err(self.bad(key, "a UTF-8 string", show(&Value::Str(s)))),
            },
            Some(v) => Err(self.bad(key, "a string", show(&v))),
        }
    }
}

/// Returns whether a value (or every element of an array) is one of a few numbers; a bool counts as
/// 0 or 1.
pub(super) fn is_one_of(v: &Value<'_>, numbers: &[f64]) -> bool {
    match v {
        Value::Array(a) => a.iter().all(|v| is_one_of(&v, numbers)),
        Value::Bool(b) => numbers.contains(&f64::from(u8::from(*b))),
        v => v
            .as_int()
            .map(|i| i as f64)
            .or(float(v))
            .is_some_and(|x| numbers.contains(&x)),
    }
}

fn an_integer(range: &RangeInclusive<usize>) -> String {
    format!("an integer from {} to {}", range.start(), range.end())
}

/// Returns a floating-point value as a number; `None` for other types.
pub(super) fn float(v: &Value<'_>) -> Option<f64> {
    match *v {
        Value::F32(x) => Some(x.into()),
        Value::F64(x) => Some(x),
        _ => None,
    }
}

/// Returns an integer or a floating-point value as a number; `None` for other types.
pub fn number(v: &Value<'_>) -> Option<f64> {
    float(v).or_else(|| v.as_int().map(|n| n as f64))
}

/// Formats a value for an error message: at most 60 characters, on one line.
pub fn show(v: &Value<'_>) -> String {
    let text = match v {
        Value::Str(s) => format!("{:?}", String::from_utf8_lossy(&s[..s.len().min(60)])),
        Value::Bool(b) => b.to_string(),
        Value::Array(a) => format!("an array of {} values", a.len()),
        v => match (v.as_int(), float(v)) {
            (Some(i), _) => i.to_string(),
            (None, Some(_)) if matches!(v, Value::F32(_)) => {
                float(v).map_or(String::new(), |x| (x as f32).to_string())
            }
            (None, x) => x.map_or(String::new(), |x| x.to_string()),
        },
    };
    text.chars().take(60).collect()
}

/// Returns a JSON number that prints as the f32 does (`1e-6`, not `9.999999974752427e-7`).
pub fn json_f32(x: f32) -> serde_json::Value {
    x.to_string()
        .parse::<f64>()
        .ok()
        .and_then(serde_json::Number::from_f64)
        .map_or(serde_json::Value::Null, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neutral_values() {
        assert!(is_one_of(&Value::U32(0), &[0.0]));
        assert!(!is_one_of(&Value::U32(8), &[0.0]));
        assert!(is_one_of(&Value::Bool(true), &[1.0]));
        assert!(!is_one_of(&Value::F32(f32::NAN), &[0.0]));
        assert!(!is_one_of(&Value::Str(b"0"), &[0.0]));
    }
}
