//! `config.json`: hyperparameters under their GGUF keys, and the quantization of weights.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;

use gguf_rs_lite::View;
use serde_json::Value;

use super::Error;
use super::quantization::Awq;
use super::settings::Settings;
use super::types::{self, Is, Key, Kind, ModelType, WRAPPERS, Wrapper};

/// Flag that says whether the output matrix is the embedding.
const TIED: &str = "tie_word_embeddings";

/// Settings of a folder's language model, and values derived from them.
pub(super) struct Config {
    pub(super) settings: Settings,
    /// Row of its `model_type`.
    pub(super) row: &'static ModelType,
    /// The folder's `model_type`, if that of the language model is another.
    pub(super) wrapper: Option<&'static Wrapper>,
    /// Number of query heads.
    pub(super) heads: usize,
    /// Number of KV heads.
    pub(super) heads_kv: usize,
    /// Values per head.
    pub(super) head_dim: usize,
    /// Whether the output matrix is the embedding, even if there is a tensor for it.
    pub(super) tied: bool,
    /// Whether there must be an output matrix.
    pub(super) untied: bool,
    /// Quantization of the weights, if they are quantized.
    pub(super) awq: Option<Awq>,
}

/// Gives access to the settings as if they were the folder's own.
impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Config {
    pub(super) fn read(dir: &Path) -> Result<Config, Error> {
        let mut settings = Settings::read(dir)?;
        let (row, wrapper) = row(&settings)?;
        let outer = settings.flag(TIED)?;
        settings.root = merged(settings.root, row, wrapper);
        let mut config = Config {
            settings,
            row,
            wrapper,
            heads: 0,
            heads_kv: 0,
            head_dim: 0,
            tied: false,
            untied: false,
            awq: None,
        };
        if row.attention {
            config.read_heads()?;
        }
        // versions of transformers differ in which of two nested flags they heed; if the flags
        // disagree, there may be an output matrix or not
        let inner = config.flag(TIED)?;
        config.tied = inner.unwrap_or(false) && outer.unwrap_or(true);
        config.untied = !row.embeds && !inner.unwrap_or(row.tied) && !outer.unwrap_or(false);
        config.awq = config.quantization(dir)?;
        Ok(config)
    }

    /// Reads the numbers of heads and their width.
    fn read_heads(&mut self) -> Result<(), Error> {
        self.heads = self.count("num_attention_heads")?;
        self.heads_kv = (self.row.heads_kv)(self, self.heads)?;
        let hidden = self.count("hidden_size")?;
        self.head_dim = match self.optional_count("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(self.heads) => hidden / self.heads,
            None => {
                let expected = "a number, since heads do not divide hidden_size";
                return Err(self.bad("head_dim", expected, "nothing"));
            }
        };
        Ok(())
    }

    /// Returns a key of the architecture.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.row.arch)
    }

    /// Returns the number of entries of the vocabulary, including padding.
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
        view.set(&self.key("attention.head_count"), as_u32(self.heads));
        if self.row.attention {
            for (name, value) in [
                ("attention.head_count_kv", self.heads_kv),
                ("attention.key_length", self.head_dim),
                ("attention.value_length", self.head_dim),
            ] {
                view.set(&self.key(name), as_u32(value));
            }
        }
        for key in self.row.keys {
            self.declare_key(key, view)?;
        }
        self.refuse_others()?;
        self.windows(view)?;
        if self.row.rope {
            self.rope(view)?;
        }
        (self.row.extra)(self, view)
    }

    /// Sets the key of one setting.
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

    /// Refuses settings that would change results, unless they have the one implemented value.
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
        let (expected, unset) = match is {
            Is::True(unset) => (true, unset),
            Is::False(unset) => (false, unset),
            Is::Number(number) => return self.number_is(key, number),
            Is::Text(text) => return self.text_is(key, text),
            Is::Nothing => {
                let empty = |v: &&Value| !v.as_array().is_some_and(Vec::is_empty);
                return match self.get(key).filter(empty) {
                    Some(value) => Err(self.bad(key, "nothing", value)),
                    None => Ok(()),
                };
            }
        };
        match self.flag(key)? {
            Some(flag) if flag != expected => Err(self.bad(key, expected.to_string(), flag)),
            None if unset != expected => Err(self.bad(key, expected.to_string(), "nothing")),
            _ => Ok(()),
        }
    }

    /// Refuses a setting that is there and is another text.
    fn text_is(&self, key: &str, expected: &str) -> Result<(), Error> {
        match self.string(key)?.filter(|text| text != expected) {
            Some(text) => Err(self.bad(key, format!("nothing, or {expected}"), text)),
            None => Ok(()),
        }
    }

    /// Refuses a setting that is there and is another number, up to rounding.
    pub(super) fn number_is(&self, key: &str, expected: f64) -> Result<(), Error> {
        let other = |x: &f32| (f64::from(*x) - expected).abs() > 1e-4 * expected.abs().max(1.0);
        match self.float(key)?.filter(other) {
            Some(x) => Err(self.bad(key, format!("nothing, or {expected}"), x)),
            None => Ok(()),
        }
    }
}

/// Returns the row of the `model_type` that the settings name, and what is around its model.
fn row(settings: &Settings) -> Result<(&'static ModelType, Option<&'static Wrapper>), Error> {
    const KEY: &str = "model_type";
    let expected = || {
        let rows = types::all().map(|row| row.name);
        let names: BTreeSet<&str> = rows.chain(WRAPPERS.iter().map(|w| w.name)).collect();
        let names: Vec<&str> = names.into_iter().collect();
        format!("one of {}", names.join(", "))
    };
    let model_type = settings.string(KEY)?;
    let model_type = settings.must(KEY, &expected(), model_type)?;
    if let Some(wrapper) = WRAPPERS.iter().find(|w| w.name == model_type) {
        let key = format!("{}.{KEY}", wrapper.section);
        let expected = format!("one of {}", wrapper.texts.join(", "));
        let text = settings.must(&key, &expected, settings.string(&key)?)?;
        let row = Some(&*text).filter(|text| wrapper.texts.contains(text));
        let row = row.and_then(|text| types::of_settings(text, settings));
        let row = row.ok_or_else(|| settings.bad(&key, expected, text))?;
        return Ok((row, Some(wrapper)));
    }
    let row = types::of_settings(&model_type, settings);
    let row = row.ok_or_else(|| settings.bad(KEY, expected(), model_type))?;
    Ok((row, None))
}

/// Returns the settings with those of the language model merged in, if they are nested, under their
/// usual names too, and with transformers' default values for settings that are not given.
fn merged(mut root: Value, row: &ModelType, wrapper: Option<&Wrapper>) -> Value {
    let section = wrapper.map_or("text_config", |wrapper| wrapper.section);
    let text = root.get_mut(section).map(Value::take);
    let Value::Object(map) = &mut root else {
        return root;
    };
    if let Some(Value::Object(text)) = text {
        map.extend(text);
    }
    for (own, usual) in row.attribute_map {
        if let Some(value) = map.get(*own).filter(|value| !value.is_null()).cloned() {
            map.insert((*usual).to_owned(), value);
        }
    }
    let defaults = wrapper.map_or(&[][..], |wrapper| wrapper.defaults);
    for (key, value) in row.defaults.iter().chain(defaults) {
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
