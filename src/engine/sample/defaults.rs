//! Optional sampling settings, and the order in which sources fill them: a request, a program's
//! options, the model's own, llama-server's defaults.

use std::hash::{BuildHasher, RandomState};

use gguf_rs_lite::Gguf;
use octavo_model::keys::number;

use super::{SamplerConfig, Stage};

/// Keys of samplers that are not implemented, with the value that switches each off.
const UNSUPPORTED: [(&str, f64); 2] = [
    ("general.sampling.xtc_probability", 0.0),
    ("general.sampling.mirostat", 0.0),
];

/// Settings of a sampler; those that are `None` are left to another source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplerDefaults {
    /// See [`SamplerConfig::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplerConfig::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplerConfig::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplerConfig::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplerConfig::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
    /// See [`SamplerConfig::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`SamplerConfig::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`SamplerConfig::penalty_window`].
    pub penalty_window: Option<usize>,
    /// See [`SamplerConfig::logit_bias`].
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// See [`SamplerConfig::seed`]; drawn anew for each text if `None`.
    pub seed: Option<u64>,
    /// See [`SamplerConfig::order`].
    pub order: Option<Vec<Stage>>,
}

impl SamplerDefaults {
    /// Returns llama-server's own defaults.
    pub fn llama_server() -> SamplerDefaults {
        SamplerDefaults {
            temperature: Some(0.8),
            top_k: Some(40),
            top_p: Some(0.95),
            min_p: Some(0.05),
            ..SamplerDefaults::default()
        }
    }

    /// Reads a file's recommended settings, llama.cpp's `general.sampling.*`. Unusable values are
    /// left open; the second list has a line for each.
    pub fn from_gguf(gguf: &Gguf) -> (SamplerDefaults, Vec<String>) {
        let mut keys = Keys {
            gguf,
            warnings: Vec::new(),
        };
        let finite = |x: f64| x.is_finite() && (x as f32).is_finite();
        let defaults = SamplerDefaults {
            temperature: keys.f32("temp", "a number of at least 0", |t| finite(t) && t >= 0.0),
            // llama.cpp writes "all" as a value below 0
            top_k: keys.whole("top_k").map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: keys.f32("top_p", "a number above 0 and up to 1", |p| {
                p as f32 > 0.0 && p <= 1.0
            }),
            min_p: keys.f32("min_p", "a number from 0 to 1", |p| {
                (0.0..=1.0).contains(&p)
            }),
            repeat_penalty: keys.f32("penalty_repeat", "a number above 0", |r| {
                finite(r) && r as f32 > 0.0
            }),
            // below 0 means the whole context
            penalty_window: keys
                .whole("penalty_last_n")
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            order: keys.order(),
            ..SamplerDefaults::default()
        };
        keys.check_unsupported();
        (defaults, keys.warnings)
    }

    /// Fills the settings that are open from `other`.
    pub fn or(self, other: &SamplerDefaults) -> SamplerDefaults {
        SamplerDefaults {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repeat_penalty: self.repeat_penalty.or(other.repeat_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            penalty_window: self.penalty_window.or(other.penalty_window),
            logit_bias: self.logit_bias.or_else(|| other.logit_bias.clone()),
            seed: self.seed.or(other.seed),
            order: self.order.or_else(|| other.order.clone()),
        }
    }

    /// Returns whether a setting is given by which tokens are drawn, not only bias or penalties.
    pub fn draws(&self) -> bool {
        self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some()
            || self.seed.is_some()
            || self.order.is_some()
    }

    /// Returns the configuration of a text that is greedy unless a setting of drawing is given: the
    /// others are then llama-server's. `seed` is called if one is needed.
    pub fn greedy_unless_drawn(self, seed: impl FnOnce() -> u64) -> SamplerConfig {
        match self.draws() {
            true => self.or(&SamplerDefaults::llama_server()).config(seed),
            false => self.config(|| 0),
        }
    }

    /// Returns the configuration of these settings; what is open has no effect. `seed` is called if
    /// the seed is open.
    pub fn config(self, seed: impl FnOnce() -> u64) -> SamplerConfig {
        let none = SamplerConfig::default();
        SamplerConfig {
            temperature: self.temperature.unwrap_or(none.temperature),
            top_k: self.top_k.unwrap_or(none.top_k),
            top_p: self.top_p.unwrap_or(none.top_p),
            min_p: self.min_p.unwrap_or(none.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(none.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(none.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(none.frequency_penalty),
            penalty_window: self.penalty_window.unwrap_or(none.penalty_window),
            logit_bias: self.logit_bias.unwrap_or(none.logit_bias),
            seed: self.seed.unwrap_or_else(seed),
            order: self.order.unwrap_or(none.order),
        }
    }
}

/// Returns a random seed.
pub fn random_seed() -> u64 {
    // the standard library's hasher is seeded by the system
    RandomState::new().hash_one(0)
}

/// Reads a file's keys and collects warnings.
struct Keys<'a> {
    gguf: &'a Gguf,
    warnings: Vec<String>,
}

impl Keys<'_> {
    /// Reads a key's value as a number, whatever type it has.
    fn number(&self, key: &str) -> Option<Result<f64, String>> {
        let value = self.gguf.get(key)?;
        Some(number(&value).ok_or_else(|| value.value_type().name().to_owned()))
    }

    fn checked(&mut self, name: &str, expected: &str, ok: impl Fn(f64) -> bool) -> Option<f64> {
        let key = format!("general.sampling.{name}");
        let got = match self.number(&key)? {
            Ok(x) if ok(x) => return Some(x),
            Ok(x) => x.to_string(),
            Err(ty) => ty,
        };
        self.warnings.push(format!(
            "key {key}: expected {expected}, got {got}; it is passed over"
        ));
        None
    }

    fn f32(&mut self, name: &str, expected: &str, ok: impl Fn(f64) -> bool) -> Option<f32> {
        self.checked(name, expected, ok).map(|x| x as f32)
    }

    fn whole(&mut self, name: &str) -> Option<i64> {
        let ok = |x: f64| x.fract() == 0.0 && x.abs() <= f64::from(i32::MAX);
        let n = self.checked(name, "a whole number of 32 bits", ok);
        n.map(|x| x as i64)
    }

    /// Reads which samplers run, in their order.
    fn order(&mut self) -> Option<Vec<Stage>> {
        let key = "general.sampling.sequence";
        let names = match self.gguf.str(key) {
            Ok(names) => names?,
            Err(error) => {
                self.warnings.push(format!("{error}; it is passed over"));
                return None;
            }
        };
        let (order, unknown) = Stage::known_of(names.split([';', ',']));
        if let Some(name) = unknown.first() {
            let name: String = name.escape_debug().take(40).collect();
            self.warnings.push(format!(
                "key {key}: there is no sampler {name}; it is passed over"
            ));
        }
        (!order.is_empty()).then_some(order)
    }

    /// Warns of samplers that the file recommends and that are not implemented.
    fn check_unsupported(&mut self) {
        for (key, off) in UNSUPPORTED {
            let value = self.number(key);
            if value.is_some_and(|value| value.is_ok_and(|x| x != off)) {
                self.warnings.push(format!(
                    "key {key}: this sampler is not implemented; it does not run"
                ));
            }
        }
    }
}
