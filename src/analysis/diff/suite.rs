//! Test suites: models × prompts × instruction sets compared with stored goldens.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use octavo_engine::Engine;
use octavo_kernels::{Isa, IsaChoice, IsaError};
use octavo_text::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};

use super::{Measured, Reference, ReferenceValues, Tolerance};

/// Reasons a suite cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file with invalid contents.
    #[error("{}: {what}", path.display())]
    Unsound {
        /// Path of the file.
        path: PathBuf,
        /// Description of what was expected.
        what: String,
    },
    /// A golden that does not exist.
    #[error("{}: no golden (nor .gguf)", path.display())]
    NoGolden {
        /// Path where it was expected.
        path: PathBuf,
    },
    /// An unknown instruction set.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A golden that cannot be read or compared with.
    #[error(transparent)]
    Diff(#[from] super::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// A prompt that cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::tokenizer::Error),
}

/// A suite's file. Paths are relative to it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Model files.
    models: Vec<PathBuf>,
    /// Texts by name; special tokens are added but not parsed.
    prompts: BTreeMap<String, String>,
    /// Instruction sets to run; those that this CPU lacks are skipped.
    #[serde(default)]
    isa: Vec<String>,
    /// Folder with `MODEL/PROMPT.safetensors` or `MODEL/PROMPT.gguf`.
    goldens: PathBuf,
    /// Side of a golden to compare with.
    #[serde(default)]
    against: Side,
    /// NMSE allowed; the default depends on the coarsest weight type.
    tol_nmse: Option<f64>,
    /// Mean KL allowed; not checked unless given.
    tol_kl: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    #[default]
    Logits,
    Exact,
}

impl From<Side> for ReferenceValues {
    fn from(side: Side) -> ReferenceValues {
        match side {
            Side::Logits => ReferenceValues::Logits,
            Side::Exact => ReferenceValues::Exact,
        }
    }
}

/// A suite that has been read.
#[derive(Debug)]
pub struct Suite {
    file: File,
    models: Vec<SuiteModel>,
}

/// A model of a suite.
#[derive(Clone, Debug)]
pub struct SuiteModel {
    /// Path as given in the suite.
    pub name: PathBuf,
    /// Path of the model file.
    pub file: PathBuf,
    /// Folder of its goldens.
    pub goldens: PathBuf,
}

impl SuiteModel {
    /// Returns the path of a prompt's golden, or of a file that belongs to it.
    pub fn golden(&self, prompt: &str, extension: &str) -> PathBuf {
        self.goldens.join(format!("{prompt}.{extension}"))
    }
}

/// The goldens of a model's prompts.
#[derive(Debug)]
pub struct References(Vec<Recorded>);

#[derive(Debug)]
struct Recorded {
    prompt: String,
    text: String,
    path: PathBuf,
    reference: Reference,
}

impl References {
    /// Returns the positions that a comparison with them needs.
    pub fn n_ctx(&self) -> usize {
        let n_ctx = |recorded: &Recorded| recorded.reference.n_ctx(None);
        self.0.iter().map(n_ctx).max().unwrap_or(1).max(1)
    }
}

/// Result of one model, prompt and instruction set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Model file name without its extension.
    pub model: String,
    /// Name of the prompt.
    pub prompt: String,
    /// Name of the instruction set that ran.
    pub isa: String,
    /// Whether the figures are within the tolerances.
    pub within: bool,
    /// Normalised mean square error of the logits.
    pub nmse: f64,
    /// Mean KL divergence of the predictions.
    pub kl: f64,
    /// The NMSE allowed.
    pub allowed: f64,
}

impl Suite {
    /// Reads a suite file.
    ///
    /// # Errors
    /// If it cannot be read, or has no model or no prompt.
    pub fn read(path: &Path) -> Result<Suite, SuiteError> {
        let unsound = |what: String| SuiteError::Unsound {
            path: path.to_owned(),
            what,
        };
        let text = std::fs::read_to_string(path).map_err(|source| SuiteError::Io {
            path: path.to_owned(),
            source,
        })?;
        let file: File = toml::from_str(&text).map_err(|error| unsound(error.to_string()))?;
        if file.models.is_empty() || file.prompts.is_empty() {
            let what = "expected at least one model and one prompt";
            return Err(unsound(what.to_owned()));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let model = |name: &PathBuf| SuiteModel {
            name: name.clone(),
            file: folder.join(name),
            goldens: folder.join(&file.goldens).join(stem(name)),
        };
        let models = file.models.iter().map(model).collect();
        Ok(Suite { file, models })
    }

    /// Returns the models.
    pub fn models(&self) -> &[SuiteModel] {
        &self.models
    }

    /// Returns the prompts: texts by name.
    pub fn prompts(&self) -> &BTreeMap<String, String> {
        &self.file.prompts
    }

    /// Returns whether the suite names instruction sets to run.
    pub fn names_instruction_sets(&self) -> bool {
        !self.file.isa.is_empty()
    }

    /// Returns the instruction sets it names: those this CPU has, and those it lacks.
    ///
    /// # Errors
    /// If one is unknown.
    pub fn instruction_sets(&self) -> Result<(Vec<Isa>, Vec<Isa>), SuiteError> {
        let (mut here, mut lacking) = (Vec::new(), Vec::new());
        for name in &self.file.isa {
            match name.parse::<IsaChoice>()? {
                IsaChoice::Auto => here.push(Isa::best()),
                IsaChoice::Only(isa) if isa.is_available() => here.push(isa),
                IsaChoice::Only(isa) => lacking.push(isa),
            }
        }
        Ok((here, lacking))
    }

    /// Returns the golden files of a model, in the order of the prompts.
    ///
    /// # Errors
    /// If one is missing.
    pub fn goldens(&self, model: &SuiteModel) -> Result<Vec<PathBuf>, SuiteError> {
        let golden = |prompt: &String| {
            let places = ["safetensors", "gguf"].map(|extension| model.golden(prompt, extension));
            let there = places.iter().find(|place| place.is_file()).cloned();
            let [path, _] = places;
            there.ok_or(SuiteError::NoGolden { path })
        };
        self.file.prompts.keys().map(golden).collect()
    }

    /// Reads the goldens of a model.
    ///
    /// # Errors
    /// If one is missing or unsound.
    pub fn references(&self, model: &SuiteModel) -> Result<References, SuiteError> {
        let mut all = Vec::new();
        for ((prompt, text), path) in self.file.prompts.iter().zip(self.goldens(model)?) {
            all.push(Recorded {
                prompt: prompt.clone(),
                text: text.clone(),
                reference: Reference::read(&path, self.file.against.into())?,
                path,
            });
        }
        Ok(References(all))
    }

    /// Compares a loaded model with its goldens, for the prompts at these indices in the order of
    /// [`Suite::prompts`].
    ///
    /// # Errors
    /// If a golden has other tokens, or no logits.
    pub fn compare(
        &self,
        model: &SuiteModel,
        references: &References,
        prompts: Range<usize>,
        engine: &Engine,
        isa: Isa,
    ) -> Result<Vec<Cell>, SuiteError> {
        let default = Tolerance::of(engine.model());
        let tolerance = Tolerance {
            nmse: self.file.tol_nmse.unwrap_or(default.nmse),
            kl: self.file.tol_kl,
            ..default
        };
        let mut cells = Vec::new();
        let first = prompts.start;
        for recorded in references.0.iter().skip(first).take(prompts.len()) {
            let Recorded {
                prompt,
                text,
                path,
                reference,
            } = recorded;
            let unsound = |what: String| SuiteError::Unsound {
                path: path.clone(),
                what,
            };
            // tokenize prompts as llama.cpp's tools do
            let options = EncodeOptions::default();
            let tokens = engine.tokenizer().encode(text.as_bytes(), options)?;
            let theirs = reference.tokens.as_ref();
            if theirs.is_some_and(|theirs| *theirs != tokens) {
                let what = format!("prompt {prompt:?}: other tokens than the golden's");
                return Err(unsound(what));
            }
            let Measured::Logits(logits) = reference.compare(engine, None, &tolerance)? else {
                return Err(unsound("expected a golden with logits".to_owned()));
            };
            cells.push(Cell {
                model: stem(&model.name),
                prompt: prompt.clone(),
                isa: isa.name().to_owned(),
                within: tolerance.allows(&logits),
                nmse: logits.nmse,
                kl: logits.mean_kl,
                allowed: tolerance.nmse,
            });
        }
        Ok(cells)
    }
}

fn stem(model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}
