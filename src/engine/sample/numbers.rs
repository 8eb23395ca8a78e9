//! The settings that are numbers: one table for the command line, requests, Python and model files.

use super::{ConfigError, SamplerDefaults, Stage};

/// A setting that is a number.
#[derive(Debug)]
pub struct Number {
    /// llama-server's name.
    pub name: &'static str,
    /// Name after `general.sampling.` in a model file, where llama.cpp has one.
    pub key: Option<&'static str>,
    /// Least and greatest value.
    range: (f64, f64),
    /// Whether it is an integer.
    pub is_whole: bool,
    /// The sampler that it belongs to.
    pub stage: Option<Stage>,
    /// Value with which it does nothing.
    pub off: Option<f64>,
    get: fn(&SamplerDefaults) -> Option<f64>,
    set: fn(&mut SamplerDefaults, f64),
}

/// Largest `f32`.
const MAX: f64 = f32::MAX as f64;
/// Least number above 0 that is not denormal.
const ABOVE_0: f64 = f32::MIN_POSITIVE as f64;
/// Greatest integer.
const MAX_WHOLE: f64 = u32::MAX as f64;

/// A row: the field, llama-server's name, the file's key, the range, the sampler, and the value
/// without effect. `f32` or `usize` is the field's type; below 0, a `usize` is `negative`.
macro_rules! number {
    ($field:ident: f32, $name:expr, $key:expr, $range:expr, $stage:expr, $off:expr) => {
        Number {
            name: $name,
            key: $key,
            range: $range,
            is_whole: false,
            stage: $stage,
            off: $off,
            // the decimal number that is meant, not its exact binary value
            get: |all| all.$field.map(decimal),
            set: |all, value| all.$field = Some(value as f32),
        }
    };
    ($field:ident: usize or $negative:expr, $name:expr, $key:expr, $range:expr, $stage:expr,
     $off:expr) => {
        Number {
            name: $name,
            key: $key,
            range: $range,
            is_whole: true,
            stage: $stage,
            off: $off,
            get: |all| {
                all.$field
                    .map(|n| if n == usize::MAX { -1.0 } else { n as f64 })
            },
            set: |all, value| {
                all.$field = Some(if value < 0.0 {
                    $negative
                } else {
                    value as usize
                });
            },
        }
    };
}

/// Every setting that is a number.
pub static NUMBERS: [Number; 24] = [
    number!(temperature: f32, "temperature", Some("temp"), (0.0, MAX),
        Some(Stage::Temperature), Some(0.0)),
    number!(dynatemp_range: f32, "dynatemp_range", None, (0.0, MAX),
        Some(Stage::Temperature), Some(0.0)),
    number!(dynatemp_exponent: f32, "dynatemp_exponent", None, (0.0, MAX),
        Some(Stage::Temperature), None),
    // llama.cpp's "all" is a value below 0 too
    number!(top_k: usize or 0, "top_k", Some("top_k"), (-1.0, MAX_WHOLE),
        Some(Stage::TopK), Some(0.0)),
    number!(top_p: f32, "top_p", Some("top_p"), (ABOVE_0, 1.0), Some(Stage::TopP), Some(1.0)),
    number!(min_p: f32, "min_p", Some("min_p"), (0.0, 1.0), Some(Stage::MinP), Some(0.0)),
    number!(typical_p: f32, "typical_p", None, (ABOVE_0, 1.0),
        Some(Stage::TypicalP), Some(1.0)),
    number!(top_n_sigma: f32, "top_n_sigma", None, (-MAX, MAX),
        Some(Stage::TopNSigma), Some(-1.0)),
    number!(min_keep: usize or 0, "min_keep", None, (0.0, MAX_WHOLE), None, Some(0.0)),
    number!(xtc_probability: f32, "xtc_probability", Some("xtc_probability"), (0.0, 1.0),
        Some(Stage::Xtc), Some(0.0)),
    number!(xtc_threshold: f32, "xtc_threshold", Some("xtc_threshold"), (0.0, 1.0),
        Some(Stage::Xtc), None),
    number!(penalty_window: usize or usize::MAX, "repeat_last_n", Some("penalty_last_n"),
        (-1.0, MAX_WHOLE), Some(Stage::Penalties), None),
    number!(repeat_penalty: f32, "repeat_penalty", Some("penalty_repeat"), (ABOVE_0, MAX),
        Some(Stage::Penalties), Some(1.0)),
    number!(presence_penalty: f32, "presence_penalty", None, (-MAX, MAX),
        Some(Stage::Penalties), Some(0.0)),
    number!(frequency_penalty: f32, "frequency_penalty", None, (-MAX, MAX),
        Some(Stage::Penalties), Some(0.0)),
    number!(dry_multiplier: f32, "dry_multiplier", None, (0.0, MAX), Some(Stage::Dry), Some(0.0)),
    number!(dry_base: f32, "dry_base", None, (0.0, MAX), Some(Stage::Dry), None),
    number!(dry_allowed_length: usize or 0, "dry_allowed_length", None, (0.0, MAX_WHOLE),
        Some(Stage::Dry), None),
    number!(dry_penalty_last_n: usize or usize::MAX, "dry_penalty_last_n", None,
        (-1.0, MAX_WHOLE), Some(Stage::Dry), None),
    number!(mirostat: usize or 0, "mirostat", Some("mirostat"), (0.0, 2.0), None, Some(0.0)),
    number!(mirostat_tau: f32, "mirostat_tau", Some("mirostat_tau"), (0.0, MAX), None, None),
    number!(mirostat_eta: f32, "mirostat_eta", Some("mirostat_eta"), (0.0, MAX), None, None),
    number!(adaptive_target: f32, "adaptive_target", None, (-1.0, 1.0),
        Some(Stage::AdaptiveP), Some(-1.0)),
    number!(adaptive_decay: f32, "adaptive_decay", None, (0.0, 0.99),
        Some(Stage::AdaptiveP), None),
];

impl Number {
    /// Returns the setting with llama-server's name.
    pub fn named(name: &str) -> Option<&'static Number> {
        NUMBERS.iter().find(|number| number.name == name)
    }

    /// Returns the setting's value, if it is given; -1 for an integer without a limit.
    pub fn get(&self, all: &SamplerDefaults) -> Option<f64> {
        (self.get)(all)
    }

    /// Sets the setting.
    ///
    /// # Errors
    /// [`ConfigError`] if the value is out of its range.
    pub fn set(&self, all: &mut SamplerDefaults, value: f64) -> Result<(), ConfigError> {
        if !self.takes(value) {
            return Err(ConfigError::new(self.name, self.expected(), value));
        }
        (self.set)(all, value);
        Ok(())
    }

    /// Returns whether the setting may have this value.
    pub fn takes(&self, value: f64) -> bool {
        let (least, most) = self.range;
        (least..=most).contains(&value) && !(self.is_whole && value.fract() != 0.0)
    }

    /// Returns -1 for an integer below it, where that has a meaning, and the value elsewhere.
    pub(super) fn clamped(&self, value: f64) -> f64 {
        match self.is_whole && self.range.0 == -1.0 && value.fract() == 0.0 {
            true => value.max(-1.0),
            false => value,
        }
    }

    /// Returns the least and the greatest value.
    pub fn range(&self) -> std::ops::RangeInclusive<f64> {
        self.range.0..=self.range.1
    }

    /// Returns which values it may have, in words.
    pub fn expected(&self) -> String {
        let kind = match self.is_whole {
            true => "a whole number",
            false => "a number",
        };
        match self.range {
            (least, MAX) if least == -MAX => "a finite number".to_owned(),
            (ABOVE_0, MAX) => "a finite number above 0".to_owned(),
            (least, MAX) => format!("a finite number of at least {least}"),
            (ABOVE_0, most) => format!("{kind} above 0 and up to {most}"),
            (least, most) => format!("{kind} from {least} to {most}"),
        }
    }

    pub(super) fn check(&self, all: &SamplerDefaults) -> Result<(), ConfigError> {
        match self.get(all) {
            Some(value) if !self.takes(value) => {
                Err(ConfigError::new(self.name, self.expected(), value))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the decimal number that is meant, not its exact binary value.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
