//! Settings of a sampler, and which of them are refused.

use super::Stage;
use super::numbers::NUMBERS;

/// Most strings that break a repetition.
pub const MAX_BREAKERS: usize = 64;

/// Declares the settings of a sampler once: with their values where they have no effect, and as
/// optional ones that a source may leave open.
macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $none:expr,)*) => {
        /// Sampling settings. The default is greedy, without bias and penalties.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplerConfig {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for SamplerConfig {
            fn default() -> Self {
                SamplerConfig { $($field: $none,)* }
            }
        }

        /// Settings of a sampler; those that are `None` are left to another source.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct SamplerDefaults {
            $(
                #[doc = concat!("See [`SamplerConfig::", stringify!($field), "`].")]
                pub $field: Option<$type>,
            )*
        }

        impl SamplerDefaults {
            /// Fills the settings that are open from `other`.
            pub fn or(self, other: &SamplerDefaults) -> SamplerDefaults {
                SamplerDefaults {
                    $($field: self.$field.or_else(|| other.$field.clone()),)*
                }
            }

            /// Returns the configuration of these settings; what is open has no effect. `seed` is
            /// called if the seed is open.
            pub fn config(self, seed: impl FnOnce() -> u64) -> SamplerConfig {
                let none = SamplerConfig::default();
                let this = SamplerDefaults { seed: self.seed.or_else(|| Some(seed())), ..self };
                SamplerConfig { $($field: this.$field.unwrap_or(none.$field),)* }
            }
        }

        impl From<SamplerConfig> for SamplerDefaults {
            fn from(config: SamplerConfig) -> SamplerDefaults {
                SamplerDefaults { $($field: Some(config.$field),)* }
            }
        }
    };
}

settings! {
    /// Divides the logits; 0 takes the most likely token (after bias and penalties) and draws
    /// nothing.
    temperature: f32 = 0.0,
    /// Most by which the temperature is lowered or raised, with the entropy; 0 keeps it.
    dynatemp_range: f32 = 0.0,
    /// Exponent of the entropy, as a fraction of the largest one possible, in that.
    dynatemp_exponent: f32 = 1.0,
    /// Keep this many tokens; 0 keeps all.
    top_k: usize = 0,
    /// Keep the most probable tokens until their sum reaches this; 1 keeps all.
    top_p: f32 = 1.0,
    /// Keep tokens with at least this fraction of the highest probability; 0 keeps all.
    min_p: f32 = 0.0,
    /// Keep the tokens whose information content is closest to the entropy, until their sum
    /// exceeds this; 1 keeps all.
    typical_p: f32 = 1.0,
    /// Keep tokens whose logits are at most this many standard deviations below the largest; 0
    /// and less keeps all.
    top_n_sigma: f32 = -1.0,
    /// Least number of tokens that top-p, min-p, typical-p and XTC keep.
    min_keep: usize = 0,
    /// Probability with which XTC removes tokens; 0 turns it off.
    xtc_probability: f32 = 0.0,
    /// Tokens of at least this probability, but the least likely of them, are removed by XTC;
    /// above 0.5 turns it off.
    xtc_threshold: f32 = 0.1,
    /// Divisor of recent tokens' logits (factor if they are negative); 1 does nothing.
    repeat_penalty: f32 = 1.0,
    /// Subtracted once from a recent token's logit.
    presence_penalty: f32 = 0.0,
    /// Subtracted from a recent token's logit for each time it occurred.
    frequency_penalty: f32 = 0.0,
    /// Number of recent tokens that penalties see, including the prompt's; 0 turns penalties off,
    /// `usize::MAX` is the whole context.
    penalty_window: usize = 64,
    /// DRY subtracts this from the logit of a token that makes a repetition of
    /// [`dry_allowed_length`](SamplerConfig::dry_allowed_length) tokens one longer; 0 turns it off.
    dry_multiplier: f32 = 0.0,
    /// Factor of that for each further token of the repetition; below 1 turns it off.
    dry_base: f32 = 1.75,
    /// Longest repetition, in tokens, that DRY lets pass.
    dry_allowed_length: usize = 2,
    /// Number of recent tokens that DRY sees; 0 turns it off, `usize::MAX` is the whole context.
    dry_penalty_last_n: usize = 64,
    /// Texts that end a repetition.
    dry_sequence_breakers: Vec<String> = ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
    /// Version of Mirostat, 1 or 2, which then takes the place of all other samplers but bias and
    /// temperature; 0 is none.
    mirostat: usize = 0,
    /// Surprise that Mirostat aims at, in bits a token.
    mirostat_tau: f32 = 5.0,
    /// Learning rate of Mirostat.
    mirostat_eta: f32 = 0.1,
    /// Probability that the adaptive sampler aims at; below 0 draws as usual.
    adaptive_target: f32 = -1.0,
    /// Weight that each earlier token keeps in the adaptive sampler's average.
    adaptive_decay: f32 = 0.9,
    /// Added to the logits of these tokens before anything else; negative infinity bans a token.
    logit_bias: Vec<(u32, f32)> = Vec::new(),
    /// Seed of the draws.
    seed: u64 = 0,
    /// Stages in the order they run; one that is left out does not run.
    order: Vec<Stage> = Stage::DEFAULT_ORDER.to_vec(),
}

/// A setting out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct ConfigError {
    /// The setting.
    pub what: &'static str,
    /// Its range.
    pub expected: String,
    /// The value.
    pub got: String,
}

impl ConfigError {
    pub(super) fn new(
        what: &'static str,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> ConfigError {
        ConfigError {
            what,
            expected: expected.into(),
            got: got.to_string(),
        }
    }
}

impl SamplerConfig {
    /// Returns whether the most likely token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.dynatemp_range == 0.0
    }

    pub(super) fn validate(&self, n_vocab: usize) -> Result<(), ConfigError> {
        let given = SamplerDefaults::from(self.clone());
        for number in &NUMBERS {
            number.check(&given)?;
        }
        let n_breakers = self.dry_sequence_breakers.len();
        if n_breakers > MAX_BREAKERS {
            let expected = format!("at most {MAX_BREAKERS} strings");
            return Err(ConfigError::new(
                "dry_sequence_breakers",
                expected,
                n_breakers,
            ));
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= n_vocab {
                let expected = format!("a token id below {n_vocab}");
                return Err(ConfigError::new("logit_bias", expected, id));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                let expected = "a finite number, or -inf to ban the token";
                return Err(ConfigError::new("logit_bias", expected, bias));
            }
        }
        Ok(())
    }

    /// Returns whether a stage runs.
    fn runs(&self, stage: Stage) -> bool {
        self.mirostat == 0 && self.order.contains(&stage)
    }

    /// Returns whether penalties change logits.
    pub(super) fn penalises(&self) -> bool {
        self.penalty_window > 0
            && self.runs(Stage::Penalties)
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// Returns whether DRY may change logits.
    pub(super) fn penalises_repetitions(&self) -> bool {
        self.dry_penalty_last_n > 0
            && self.runs(Stage::Dry)
            && self.dry_multiplier != 0.0
            && self.dry_base >= 1.0
    }

    /// Returns whether a token other than the most likely one may become it, bias apart.
    pub(super) fn reorders(&self) -> bool {
        self.penalises()
            || self.penalises_repetitions()
            || self.runs(Stage::TypicalP) && self.typical_p < 1.0
            || self.runs(Stage::Xtc) && self.xtc_probability > 0.0
    }

    /// Returns whether the adaptive sampler draws.
    pub(super) fn adapts(&self) -> bool {
        self.runs(Stage::AdaptiveP) && self.adaptive_target >= 0.0
    }
}
