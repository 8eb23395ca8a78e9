//! `config.json`: hyperparameters under their GGUF keys, and how weights are quantized.

use std::path::Path;

use gguf_rs_lite::View;
use serde_json::Value;

use super::quantization::Awq;
use super::types::{self, Is, Key, Kind, ModelType};
use super::{Error, MAX_SETTINGS, read_json};

/// A folder's settings.
pub(super) struct Config {
    /// Its path, for messages.
    pub(super) file: String,
    root: Value,
    /// What is known of its `model_type`.
    pub(super) row: &'static ModelType,
    /// Query heads.
    pub(super) heads: usize,
    /// Key and value heads.
    pub(super) heads_kv: usize,
    /// Values of a head.
    pub(super) head_dim: usize,
    /// Whether the output matrix is the embedding, whatever stands beside it.
    pub(super) tied: bool,
    /// Whether there must be an output matrix.
    pub(super) untied: bool,
    /// How weights are quantized, if they are.
    pub(super) awq: Option<Awq>,
}

impl Config {
    pub(super) fn read(dir: &Path) -> Result<Config, Error> {
        let file = dir.join("config.json").display().to_string();
        let expected =
            "the settings of a Hugging Face model; or give a GGUF file instead of a folder";
        let root = read_json(dir, "config.json", MAX_SETTINGS)?.ok_or_else(|| Error::Missing {
            file: file.clone(),
            expected,
        })?;
        let row = row(&file, &root)?;
        let mut config = Config {
            file,
            root: merged(root, row),
            row,
            heads: 0,
            heads_kv: 0,
            head_dim: 0,
            tied: false,
            untied: false,
            awq: None,
        };
        config.heads = config.count("num_attention_heads")?;
        config.heads_kv = (row.heads_kv)(&config, config.heads)?;
        let hidden = config.count("hidden_size")?;
        config.head_dim = match config.optional_count("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(config.heads) => hidden / config.heads,
            None => {
                return Err(config.bad(
                    "head_dim",
                    "a number, since heads do not divide hidden_size",
                    "nothing",
                ));
            }
        };
        let tied = config.flag("tie_word_embeddings")?;
        config.tied = tied.unwrap_or(false);
        config.untied = !tied.unwrap_or(row.tied);
        config.awq = config.quantization()?;
        Ok(config)
    }

    /// A key of the architecture.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.row.arch)
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

    /// The value at a path with dots; null is as good as nothing.
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

    /// A number without a fraction, 0 among them.
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

    /// A number from which others are computed: rounding it first would show.
    pub(super) fn double(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", |v| {
            v.as_f64().filter(|v| (*v as f32).is_finite())
        })
    }

    /// Token ids: one, or a list.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        Ok(self
            .typed(key, "a token id or a list of them", super::tokenizer::ids)?
            .unwrap_or_default())
    }

    /// The number of entries of the vocabulary, padding included.
    pub(super) fn vocab_size(&self) -> Result<usize, Error> {
        self.count("vocab_size")
    }

    /// Sets the keys that the architecture reads.
    pub(super) fn declare(&self, view: &mut View) -> Result<(), Error> {
        let as_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        view.set("general.architecture", self.row.arch);
        for (name, from) in [
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("block_count", "num_hidden_layers"),
            ("vocab_size", "vocab_size"),
        ] {
            view.set(&self.key(name), as_u32(self.count(from)?));
        }
        if let Some(n_ff) = (self.row.n_ff)(self)? {
            view.set(&self.key("feed_forward_length"), as_u32(n_ff));
        }
        for (name, value) in [
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.heads_kv),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            view.set(&self.key(name), as_u32(value));
        }
        for key in self.row.keys {
            self.declare_key(key, view)?;
        }
        self.refuse_others()?;
        self.windows(view)?;
        self.rope(view)?;
        (self.row.extra)(self, view)
    }

    /// Sets the key of a setting.
    fn declare_key(&self, key: &Key, view: &mut View) -> Result<(), Error> {
        let from = key.from.iter().find(|name| self.get(name).is_some());
        let Some(from) = from else {
            return match key.optional {
                true => Ok(()),
                false => Err(self.bad(key.from[0], "a value", "nothing")),
            };
        };
        let name = self.key(key.key);
        let narrow = |n: Option<usize>| n.and_then(|n| u32::try_from(n).ok());
        match key.kind {
            Kind::Count => narrow(self.optional_count(from)?).map(|n| view.set(&name, n)),
            Kind::CountOrNone => narrow(self.whole(from)?).map(|n| view.set(&name, n)),
            Kind::Number => self.float(from)?.map(|x| view.set(&name, x)),
            Kind::Flag => self.flag(from)?.map(|flag| view.set(&name, flag)),
        };
        Ok(())
    }

    /// Settings that would change what comes out, with the one value that is implemented.
    fn refuse_others(&self) -> Result<(), Error> {
        let known = self.row.activations;
        for key in ["hidden_activation", "hidden_act", "activation"] {
            if let Some(act) = self
                .string(key)?
                .filter(|act| !known.contains(&act.as_str()))
            {
                return Err(self.bad(key, known.join(" or "), act));
            }
        }
        for only in self.row.only {
            self.check_only(only.key, only.is)?;
        }
        Ok(())
    }

    fn check_only(&self, key: &str, is: Is) -> Result<(), Error> {
        let (wanted, unset) = match is {
            Is::True(unset) => (true, unset),
            Is::False(unset) => (false, unset),
            Is::Number(number) => return self.number_is(key, number),
            Is::Nothing => {
                let empty = |v: &&Value| !v.as_array().is_some_and(Vec::is_empty);
                return match self.get(key).filter(empty) {
                    Some(value) => Err(self.bad(key, "nothing", value)),
                    None => Ok(()),
                };
            }
        };
        match self.flag(key)? {
            Some(flag) if flag != wanted => Err(self.bad(key, wanted.to_string(), flag)),
            None if unset != wanted => Err(self.bad(key, wanted.to_string(), "nothing")),
            _ => Ok(()),
        }
    }

    /// Refuses a setting that is there and another number, up to its rounding.
    pub(super) fn number_is(&self, key: &str, expected: f64) -> Result<(), Error> {
        let other = |x: &f32| (f64::from(*x) - expected).abs() > 1e-4 * expected.abs().max(1.0);
        match self.float(key)?.filter(other) {
            Some(x) => Err(self.bad(key, format!("nothing, or {expected}"), x)),
            None => Ok(()),
        }
    }
}

/// What is known of the `model_type` that the settings name.
fn row(file: &str, root: &Value) -> Result<&'static ModelType, Error> {
    let model_type = root["model_type"].as_str().unwrap_or_default();
    types::all()
        .find(|row| row.name == model_type)
        .ok_or_else(|| {
            let names: Vec<&str> = types::all().map(|row| row.name).collect();
            Error::Value {
                file: file.to_owned(),
                key: "model_type".to_owned(),
                expected: format!("one of {}", names.join(", ")),
                got: model_type.chars().take(80).collect(),
            }
        })
}

/// The settings with those of the language model, where others stand around it, and with values
/// that transformers knows where nothing is said.
fn merged(mut root: Value, row: &ModelType) -> Value {
    let text = root.get_mut("text_config").map(Value::take);
    let Value::Object(map) = &mut root else {
        return root;
    };
    if let Some(Value::Object(text)) = text {
        map.extend(text);
    }
    for (key, value) in row.defaults {
        let unset = map.get(*key).is_none_or(Value::is_null);
        if unset {
            let whole = value.fract() == 0.0;
            let value = if whole {
                (*value as u64).into()
            } else {
                (*value).into()
            };
            map.insert((*key).to_owned(), value);
        }
    }
    root
}
