//! Optional sampling settings, and the order in which sources fill them: a request, a program's
//! options, the model's own, llama-server's defaults.

use std::hash::{BuildHasher, RandomState};

use gguf_rs_lite::Gguf;
use octavo_model::keys::number;

use super::numbers::{NUMBERS, Number};
use super::{SamplerConfig, SamplerDefaults, Stage};

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
        let mut defaults = SamplerDefaults {
            order: keys.order(),
            ..SamplerDefaults::default()
        };
        for number in &NUMBERS {
            keys.read(number, &mut defaults);
        }
        (defaults, keys.warnings)
    }

    /// Returns whether a setting is given by which tokens are drawn, not only bias or penalties.
    pub fn draws(&self) -> bool {
        let is_penalty =
            |number: &Number| matches!(number.stage, Some(Stage::Penalties | Stage::Dry));
        self.seed.is_some()
            || self.order.is_some()
            || NUMBERS
                .iter()
                .any(|number| !is_penalty(number) && number.get(self).is_some())
    }

    /// Returns the configuration of a text that is greedy unless a setting of drawing is given: the
    /// others are then llama-server's. `seed` is called if one is needed.
    pub fn greedy_unless_drawn(self, seed: impl FnOnce() -> u64) -> SamplerConfig {
        match self.draws() {
            true => self.or(&SamplerDefaults::llama_server()).config(seed),
            false => self.config(|| 0),
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

    /// Reads the key of a setting, if it has one.
    fn read(&mut self, number: &Number, all: &mut SamplerDefaults) {
        let Some(name) = number.key else { return };
        let key = format!("general.sampling.{name}");
        let problem = match self.number(&key) {
            None => return,
            // llama.cpp takes any number below 0 for -1
            Some(Ok(value)) => match number.set(all, number.clamped(value)) {
                Ok(()) => return,
                Err(error) => format!("expected {}, got {}", error.expected, error.got),
            },
            Some(Err(found)) => format!("expected {}, got {found}", number.expected()),
        };
        let warning = format!("key {key}: {problem}; it is passed over");
        self.warnings.push(warning);
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
}
