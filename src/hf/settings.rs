//! A settings file, read by name: every value has the type it must have, or an error names its key.

use std::path::Path;

use serde_json::Value;

use super::{Error, MAX_SETTINGS, json, read_json};

/// Contents of a JSON file.
pub(super) struct Settings {
    /// Path, for messages.
    pub(super) file: String,
    pub(super) root: Value,
}

impl Settings {
    /// Reads `config.json`.
    pub(super) fn read(dir: &Path) -> Result<Settings, Error> {
        let file = dir.join("config.json").display().to_string();
        let expected =
            "the settings of a Hugging Face model; or give a GGUF file instead of a folder";
        let root = read_json(dir, "config.json", MAX_SETTINGS)?;
        let mut root = root.ok_or_else(|| Error::Missing {
            file: file.clone(),
            expected,
        })?;
        json::without_wrapped_floats(&mut root);
        Ok(Settings { file, root })
    }

    /// Reads another settings file, if the folder has it.
    pub(super) fn beside(dir: &Path, name: &str) -> Result<Option<Settings>, Error> {
        let root = read_json(dir, name, MAX_SETTINGS)?;
        let file = dir.join(name).display().to_string();
        Ok(root.map(|root| Settings { file, root }))
    }

    pub(super) fn bad(&self, key: &str, expected: impl Into<String>, got: impl ToString) -> Error {
        let got = got.to_string().chars().take(80).collect();
        Error::Value {
            file: self.file.clone(),
            key: key.to_owned(),
            expected: expected.into(),
            got,
        }
    }

    /// Returns the value at a path with dots; null counts as missing.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        key.split('.')
            .try_fold(&self.root, |value, part| value.get(part))
            .filter(|value| !value.is_null())
    }

    pub(super) fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| self.bad(key, expected, value))
    }

    pub(super) fn must<T>(&self, key: &str, expected: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.bad(key, expected, "nothing"))
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<String>, Error> {
        self.typed(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, Error> {
        let read = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .map(|n| n as usize)
        };
        self.typed(key, "a positive number of at most 32 bits", read)
    }

    /// Reads an integer, 0 included.
    pub(super) fn whole(&self, key: &str) -> Result<Option<usize>, Error> {
        let read = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let n = self.typed(key, "a number of at most 32 bits", read)?;
        Ok(n.map(|n| n as usize))
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, Error> {
        self.must(key, "a positive number", self.optional_count(key)?)
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.double(key)?.map(|x| x as f32))
    }

    /// Reads a number from which others are computed: rounding it to f32 first would change them.
    pub(super) fn double(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", |v| {
            v.as_f64().filter(|v| (*v as f32).is_finite())
        })
    }

    /// Reads token ids: one, or a list.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        Ok(self
            .typed(key, "a token id or a list of them", super::tokenizer::ids)?
            .unwrap_or_default())
    }
}
