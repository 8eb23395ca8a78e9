//! Checked reading of keys below an architecture's prefix.

use super::MAX_WIDTH;
use crate::Error;
use gguf_rs_lite::{Gguf, Value};

/// Reads keys below the architecture's prefix.
pub(in super::super) struct Keys<'a> {
    pub(in super::super) gguf: &'a Gguf,
    pub(in super::super) prefix: &'static str,
}

impl Keys<'_> {
    pub(in super::super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(in super::super) fn missing(&self, key: &str) -> Error {
        Error::MissingKey {
            file: self.gguf.name().into(),
            key: self.name(key),
            expected: "a number",
        }
    }

    pub(in super::super) fn bad(
        &self,
        key: &str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Error {
        Error::BadKey {
            file: self.gguf.name().into(),
            key: self.name(key),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    /// Reads an integer that may be 0.
    pub(in super::super) fn integer(&self, key: &str) -> Result<Option<usize>, Error> {
        Ok(self.gguf.u32(&self.name(key))?.map(|v| v as usize))
    }

    /// Reads a positive integer; zero heads or layers would divide by zero later.
    pub(in super::super) fn optional_count(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.integer(key)? {
            Some(0) => Err(self.bad(key, "at least 1", 0)),
            value => Ok(value),
        }
    }

    pub(in super::super) fn count(&self, key: &str) -> Result<usize, Error> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    pub(in super::super) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        Ok(self.gguf.bool(&self.name(key))?)
    }

    /// Reads a float key, or an integer one such as a context length.
    pub(in super::super) fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        let name = self.name(key);
        let value = match self.gguf.get(&name) {
            Some(Value::F32(_) | Value::F64(_)) => self.gguf.f32(&name)?.map(f64::from),
            _ => self.gguf.u32(&name)?.map(f64::from),
        };
        match value {
            Some(v) if !v.is_finite() || v < 0.0 => {
                Err(self.bad(key, "a finite number, not negative", v))
            }
            value => Ok(value),
        }
    }

    /// Reads a factor: 0 counts as missing, as in llama.cpp.
    pub(in super::super) fn factor(&self, key: &str) -> Result<Option<f64>, Error> {
        Ok(self.number(key)?.filter(|&v| v != 0.0))
    }

    /// Reads a count for each layer: one value for all, or an array with at least one for each.
    pub(in super::super) fn per_layer(
        &self,
        key: &str,
        n_layer: usize,
    ) -> Result<Option<Vec<usize>>, Error> {
        self.per_layer_from(1, key, n_layer)
    }

    /// Does the same for counts that may be as low as `least`: 0 or 1.
    pub(in super::super) fn per_layer_from(
        &self,
        least: usize,
        key: &str,
        n_layer: usize,
    ) -> Result<Option<Vec<usize>>, Error> {
        let Some(values) = self.array(key, n_layer)? else {
            let count = match least {
                0 => self.integer(key)?,
                _ => self.optional_count(key)?,
            };
            return Ok(count.map(|count| vec![count; n_layer]));
        };
        let count = |value: &Value<'_>| value.as_int().and_then(|v| usize::try_from(v).ok());
        let counts = values.iter().enumerate().map(|(il, value)| {
            count(value)
                .filter(|&v| v >= least && v <= u32::MAX as usize)
                .ok_or_else(|| {
                    let expected = format!("a count of at least {least} for layer {il}");
                    self.bad(key, expected, "another value")
                })
        });
        counts.collect::<Result<_, _>>().map(Some)
    }

    pub(in super::super) fn required_per_layer(
        &self,
        key: &str,
        n_layer: usize,
    ) -> Result<Vec<usize>, Error> {
        self.per_layer(key, n_layer)?
            .ok_or_else(|| self.missing(key))
    }

    /// Returns the values for the first `n_layer` layers, if the key has an array.
    pub(in super::super) fn array(
        &self,
        key: &str,
        n_layer: usize,
    ) -> Result<Option<Vec<Value<'_>>>, Error> {
        let Some(Value::Array(array)) = self.gguf.get(&self.name(key)) else {
            return Ok(None);
        };
        if array.len() < n_layer {
            let expected = format!("one value for each of {n_layer} layers");
            return Err(self.bad(key, expected, array.len()));
        }
        Ok(Some(array.iter().take(n_layer).collect()))
    }
}

/// Bounds the total width of a layer's heads.
pub(super) fn check_width(
    keys: &Keys<'_>,
    key: &str,
    n_head: &[usize],
    head_dim: usize,
) -> Result<(), Error> {
    let widest = n_head
        .iter()
        .max()
        .and_then(|&heads| heads.checked_mul(head_dim));
    if widest.is_none_or(|width| width > MAX_WIDTH) {
        let expected = format!("heads of at most {MAX_WIDTH} elements together");
        return Err(keys.bad(key, expected, head_dim));
    }
    Ok(())
}
