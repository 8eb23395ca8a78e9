//! The samplers of the chain, their names and their order.

use std::fmt;
use std::str::FromStr;

use super::ConfigError;

/// A sampler whose place in the chain can be chosen. Logit bias always comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalties over the last tokens.
    Penalties,
    /// Makes tokens less likely that would continue a repetition ("don't repeat yourself").
    Dry,
    /// Keeps tokens whose logits are at most this many standard deviations below the largest.
    TopNSigma,
    /// Keeps the most probable tokens.
    TopK,
    /// Keeps tokens whose information content is close to the entropy (locally typical sampling).
    TypicalP,
    /// Keeps the smallest set of most probable tokens that reaches this probability.
    TopP,
    /// Keeps tokens at least this probable relative to the most probable one.
    MinP,
    /// Removes the most probable tokens but one at random ("exclude top choices").
    Xtc,
    /// Divides the logits.
    Temperature,
    /// Draws tokens whose probability is close to a target; wherever it is listed, it comes last.
    AdaptiveP,
}

/// Every sampler with llama.cpp's name, the letter of its `--sampler-seq`, and other names that
/// llama.cpp takes.
const NAMES: [(Stage, &str, char, &[&str]); 10] = [
    (Stage::Penalties, "penalties", 'e', &[]),
    (Stage::Dry, "dry", 'd', &[]),
    (Stage::TopNSigma, "top_n_sigma", 's', &["topnsigma"]),
    (Stage::TopK, "top_k", 'k', &["topk"]),
    (
        Stage::TypicalP,
        "typ_p",
        'y',
        &["typp", "typ", "typical", "typical_p"],
    ),
    (Stage::TopP, "top_p", 'p', &["topp", "nucleus"]),
    (Stage::MinP, "min_p", 'm', &["minp"]),
    (Stage::Xtc, "xtc", 'x', &[]),
    (Stage::Temperature, "temperature", 't', &["temp"]),
    (Stage::AdaptiveP, "adaptive_p", 'a', &["adaptivep"]),
];

/// A sampler of llama.cpp that is not implemented here and passed over where it is listed: its
/// name, and its letter.
const ELSEWHERE: (&str, char) = ("infill", 'i');

impl Stage {
    /// The default order, llama.cpp's.
    pub const DEFAULT_ORDER: [Stage; 9] = [
        Stage::Penalties,
        Stage::Dry,
        Stage::TopNSigma,
        Stage::TopK,
        Stage::TypicalP,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::Temperature,
    ];

    /// Returns its name, the same as llama.cpp's.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|row| row.0 == self)
            .map_or("", |row| row.1)
    }

    fn of_letter(letter: char) -> Option<Stage> {
        NAMES.iter().find(|row| row.2 == letter).map(|row| row.0)
    }

    /// Returns the stages among these names, each once, in their order, and the names that no
    /// sampler has. Those of llama.cpp's samplers that there are none of here are skipped.
    pub fn known_of<'a>(names: impl IntoIterator<Item = &'a str>) -> (Vec<Stage>, Vec<&'a str>) {
        let (mut order, mut unknown) = (Vec::new(), Vec::new());
        for name in names {
            let name = name.trim();
            match name.parse::<Stage>() {
                Ok(stage) if order.contains(&stage) => {}
                Ok(stage) => order.push(stage),
                Err(_) if name.is_empty() || name == ELSEWHERE.0 => {}
                Err(_) => unknown.push(name),
            }
        }
        (order, unknown)
    }

    /// As [`Stage::known_of`], for a text in llama-server's format: names separated by `;` or `,`,
    /// or a word of llama.cpp's letters, such as `kpmt`.
    pub fn known_in(text: &str) -> (Vec<Stage>, Vec<&str>) {
        let is_letter = |c: char| c == ELSEWHERE.1 || Stage::of_letter(c).is_some();
        if text.parse::<Stage>().is_ok() || !text.chars().all(is_letter) {
            return Stage::known_of(text.split([';', ',']));
        }
        Stage::known_of(text.chars().filter_map(Stage::of_letter).map(Stage::name))
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
            add(&mut order, name.parse()?)?;
        }
        Ok(order)
    }

    /// Parses an order of llama.cpp's letters, such as `edskypmxt`.
    ///
    /// # Errors
    /// [`ConfigError`] on an unknown letter, or one given twice.
    pub fn parse_letters(text: &str) -> Result<Vec<Stage>, ConfigError> {
        let mut order = Vec::new();
        for letter in text.chars() {
            let stage = Stage::of_letter(letter).ok_or_else(|| {
                let letters: String = NAMES.iter().map(|row| row.2).collect();
                ConfigError::new("samplers", format!("letters of {letters}"), letter)
            })?;
            add(&mut order, stage)?;
        }
        Ok(order)
    }
}

/// Adds a stage that is not in the order yet.
fn add(order: &mut Vec<Stage>, stage: Stage) -> Result<(), ConfigError> {
    if order.contains(&stage) {
        let got = format!("{stage} twice");
        return Err(ConfigError::new("samplers", "each stage once", got));
    }
    order.push(stage);
    Ok(())
}

impl FromStr for Stage {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Stage, ConfigError> {
        let name = text.to_lowercase().replace('-', "_");
        let mut rows = NAMES.iter();
        let row = rows.find(|(_, own, _, others)| *own == name || others.contains(&&*name));
        row.map(|row| row.0).ok_or_else(|| {
            let names = NAMES.map(|row| row.1).join(", ");
            ConfigError::new("samplers", format!("one of {names}"), text)
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
