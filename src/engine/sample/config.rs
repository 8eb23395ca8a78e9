//! Settings of a sampler, and which of them are refused.

use std::fmt;
use std::str::FromStr;

/// A stage of the sampler chain whose place can be chosen. Logit bias always comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalties over the last tokens.
    Penalties,
    /// Divides the logits.
    Temperature,
    /// Keeps tokens at least this probable relative to the most probable one.
    MinP,
    /// Keeps the most probable tokens.
    TopK,
    /// Keeps the smallest set of most probable tokens that reaches this probability.
    TopP,
}

impl Stage {
    /// The default order.
    pub const DEFAULT_ORDER: [Stage; 5] = [
        Stage::Penalties,
        Stage::TopK,
        Stage::TopP,
        Stage::MinP,
        Stage::Temperature,
    ];

    /// llama.cpp's samplers that do nothing by default and are not implemented here, with the
    /// letter of each.
    const ELSEWHERE: [(&'static str, char); 6] = [
        ("dry", 'd'),
        ("top_n_sigma", 's'),
        ("typ_p", 'y'),
        ("xtc", 'x'),
        ("infill", 'i'),
        ("adaptive_p", 'a'),
    ];

    /// Returns its name, the same as llama.cpp's.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Penalties => "penalties",
            Stage::Temperature => "temperature",
            Stage::MinP => "min_p",
            Stage::TopK => "top_k",
            Stage::TopP => "top_p",
        }
    }

    /// Returns the letter that llama.cpp has for it in `--sampling-seq`.
    fn letter(self) -> char {
        match self {
            Stage::Penalties => 'e',
            Stage::Temperature => 't',
            Stage::MinP => 'm',
            Stage::TopK => 'k',
            Stage::TopP => 'p',
        }
    }

    /// Returns the stages among these names, each once, in their order, and the names that no
    /// sampler has. Those of llama.cpp's samplers that are off by default are skipped.
    pub fn known_of<'a>(names: impl IntoIterator<Item = &'a str>) -> (Vec<Stage>, Vec<&'a str>) {
        let (mut order, mut unknown) = (Vec::new(), Vec::new());
        for name in names {
            let name = name.trim();
            let is_elsewhere = Stage::ELSEWHERE
                .iter()
                .any(|(other, _)| *other == name.replace('-', "_"));
            match name.parse::<Stage>() {
                Ok(stage) if order.contains(&stage) => {}
                Ok(stage) => order.push(stage),
                Err(_) if name.is_empty() || is_elsewhere => {}
                Err(_) => unknown.push(name),
            }
        }
        (order, unknown)
    }

    /// As [`Stage::known_of`], for a text in llama-server's format: names separated by `;` or `,`,
    /// or a word of llama.cpp's letters, such as `kpmt`.
    pub fn known_in(text: &str) -> (Vec<Stage>, Vec<&str>) {
        let is_letter = |c: char| {
            Stage::DEFAULT_ORDER.iter().any(|stage| stage.letter() == c)
                || Stage::ELSEWHERE.iter().any(|(_, letter)| *letter == c)
        };
        if text.parse::<Stage>().is_ok() || !text.chars().all(is_letter) {
            return Stage::known_of(text.split([';', ',']));
        }
        let of = |c: char| Stage::DEFAULT_ORDER.into_iter().find(|s| s.letter() == c);
        Stage::known_of(text.chars().filter_map(of).map(Stage::name))
    }

    /// Parses an order: names separated by `,` or `;`. A stage left out does not run.
    ///
    /// # Errors
    /// [`ConfigError`] on an unknown name, or one given twice.
    pub fn parse_order(text: &str) -> Result<Vec<Stage>, ConfigError> {
        let mut order = Vec::new();
        for name in text
            .split([',', ';'])
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let stage: Stage = name.parse()?;
            if order.contains(&stage) {
                return Err(ConfigError::new(
                    "samplers",
                    "each stage once",
                    format!("{name} twice"),
                ));
            }
            order.push(stage);
        }
        Ok(order)
    }
}

impl FromStr for Stage {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Stage, ConfigError> {
        let name = s.replace('-', "_");
        Stage::DEFAULT_ORDER
            .into_iter()
            .find(|stage| stage.name() == name || (*stage == Stage::Temperature && name == "temp"))
            .ok_or_else(|| {
                ConfigError::new(
                    "samplers",
                    "penalties, temperature, min_p, top_k or top_p",
                    s.to_owned(),
                )
            })
    }
}

/// Sampling settings. The default is greedy, without bias and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divides the logits; 0 takes the most likely token (after bias and penalties) and draws
    /// nothing.
    pub temperature: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most probable tokens until their sum reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Divisor of recent tokens' logits (factor if they are negative); 1 does nothing.
    pub repeat_penalty: f32,
    /// Subtracted once from a recent token's logit.
    pub presence_penalty: f32,
    /// Subtracted from a recent token's logit for each time it occurred.
    pub frequency_penalty: f32,
    /// Number of recent tokens that penalties see, including the prompt's; 0 turns penalties off.
    pub penalty_window: usize,
    /// Added to the logits of these tokens before anything else; negative infinity bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws.
    pub seed: u64,
    /// Stages in the order they run; one that is left out does not run.
    pub order: Vec<Stage>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
            order: Stage::DEFAULT_ORDER.to_vec(),
        }
    }
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
    fn new(what: &'static str, expected: impl Into<String>, got: impl Into<String>) -> ConfigError {
        ConfigError {
            what,
            expected: expected.into(),
            got: got.into(),
        }
    }
}

impl SamplerConfig {
    /// Returns whether the most likely token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    pub(super) fn validate(&self, n_vocab: usize) -> Result<(), ConfigError> {
        let range = |ok: bool, what, expected: &str, got: f32| match ok {
            true => Ok(()),
            false => Err(ConfigError::new(what, expected, got.to_string())),
        };
        let t = self.temperature;
        range(
            t.is_finite() && t >= 0.0,
            "temperature",
            "a finite number of at least 0",
            t,
        )?;
        range(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "top_p",
            "a number above 0 and up to 1",
            self.top_p,
        )?;
        range(
            (0.0..=1.0).contains(&self.min_p),
            "min_p",
            "a number from 0 to 1",
            self.min_p,
        )?;
        let r = self.repeat_penalty;
        range(
            r.is_finite() && r > 0.0,
            "repeat_penalty",
            "a finite number above 0",
            r,
        )?;
        range(
            self.presence_penalty.is_finite(),
            "presence_penalty",
            "a finite number",
            self.presence_penalty,
        )?;
        range(
            self.frequency_penalty.is_finite(),
            "frequency_penalty",
            "a finite number",
            self.frequency_penalty,
        )?;
        for &(id, bias) in &self.logit_bias {
            if id as usize >= n_vocab {
                return Err(ConfigError::new(
                    "logit_bias",
                    format!("a token id below {n_vocab}"),
                    id.to_string(),
                ));
            }
            range(
                bias < f32::INFINITY,
                "logit_bias",
                "a finite number, or -inf to ban the token",
                bias,
            )?;
        }
        Ok(())
    }

    pub(super) fn penalises(&self) -> bool {
        self.penalty_window > 0
            && self.order.contains(&Stage::Penalties)
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
